import { randomUUID } from 'node:crypto';
import { Injectable } from '@nestjs/common';
import { InjectRepository } from '@nestjs/typeorm';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import {
  type AuditEntry,
  CurrentLease,
  FencedWrite,
  FencingConfigError,
  FencingEvents,
  type Lease,
  Leased,
  LeaseKeyError,
} from 'nestjs-fencing';
import { MemoryLeaseStore } from 'nestjs-fencing/testing';
import { Column, Entity, PrimaryColumn, type Repository } from 'typeorm';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { eventually } from './support/gate.js';
import { freshDatabase } from './support/postgres-server.js';
import { TcpProxy } from './support/proxy.js';

@Entity('audited_row')
class Row {
  @PrimaryColumn('text') id!: string;
  @Column('text') value!: string;
}

@Injectable()
class Rows {
  constructor(@InjectRepository(Row) private readonly rows: Repository<Row>) {}

  @Leased('row:{0}', { ttlMs: 30_000, waitMs: 10_000 })
  under<T>(_id: string, work: (lease: Lease) => Promise<T>, @CurrentLease() lease?: Lease): Promise<T> {
    return work(lease!);
  }

  @FencedWrite()
  async save(id: string, value = 'value') {
    await this.rows.save({ id, value });
  }
}

describe('the audit: why was my write refused?', () => {
  let database: Awaited<ReturnType<typeof freshDatabase>>;
  let app: FencedApp;
  let rows: Rows;
  let id: string;
  let key: string;
  const opened: (() => Promise<unknown>)[] = [];

  beforeAll(async () => {
    database = await freshDatabase();
    app = await startFencedApp({ entities: [Row], providers: [Rows], databaseUrl: database.url });
    rows = app.get(Rows);
  });
  afterAll(async () => {
    await app.close();
    await database.drop();
  });
  beforeEach(() => {
    id = randomUUID();
    key = `row:${id}`;
  });
  afterEach(async () => {
    for (const close of opened.splice(0)) await close();
  });

  const another = async (options: Parameters<typeof startFencedApp>[0] = {}) => {
    const other = await startFencedApp({
      entities: [Row],
      providers: [Rows],
      databaseUrl: database.url,
      ...options,
    });
    opened.unshift(() => other.close());
    return other;
  };
  const entries = async (atLeast = 1): Promise<AuditEntry[]> => {
    await eventually(async () => (await app.fencing.audit(key)).length >= atLeast);
    return app.fencing.audit(key);
  };
  /** Takes the key from `late` behind its back, as after a pause, and has it write. */
  const supersede = async (by: FencedApp) => {
    let late!: Lease;
    let winner!: Lease;
    const call = rows.under(id, async (lease) => {
      late = lease;
      await by.redis.del(...(await by.redis.keys(`*:lease:${key}`)));
      await by.get(Rows).under(id, async (own) => {
        winner = own;
      });
      await rows.save(id, 'late');
    });
    await expect(call).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    return { late, winner };
  };

  it('a refused write leaves who superseded whom, when, and which method it was', async () => {
    const { late, winner } = await supersede(await another());
    const [entry] = await entries();
    expect(entry).toEqual({
      kind: 'stale',
      at: expect.any(Date),
      key,
      generation: late.generation,
      owner: late.owner,
      supersededBy: winner.generation,
      supersededAt: expect.any(Date),
      by: winner.owner,
      reason: undefined,
      where: '@FencedWrite on Rows.save',
    });
    expect(entry!.at.getTime()).toBeGreaterThanOrEqual(entry!.supersededAt!.getTime());
  });

  it('a write that was refused after a revocation stands beside it: the operator, the reason, the generation', async () => {
    const call = rows.under(id, async () => {
      await app.fencing.revoke(key, { by: 'erika', reason: 'stuck since noon' });
      await rows.save(id);
    });
    await expect(call).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    const [stale, revoked] = await entries(2);
    expect(revoked).toMatchObject({ kind: 'revoked', by: 'erika', reason: 'stuck since noon' });
    expect(stale).toMatchObject({
      kind: 'stale',
      generation: revoked!.generation,
      owner: revoked!.owner,
      supersededBy: revoked!.supersededBy,
    });
  });

  it('a write of unknown outcome leaves its grant and its method, once the database answers again', async () => {
    const proxy = await TcpProxy.start(database.url);
    opened.push(() => proxy.stop());
    const cut = await another({ databaseUrl: proxy.url });
    let owner = '';
    const call = cut.get(Rows).under(id, async (lease) => {
      ({ owner } = lease);
      void proxy.swallowReplyOnce((sql) => sql === 'COMMIT');
      await cut.get(Rows).save(id);
    });
    await expect(call).rejects.toMatchObject({ code: 'COMMIT_UNKNOWN' });
    const [entry] = await entries();
    expect(entry).toMatchObject({ kind: 'unknown', owner, where: '@FencedWrite on Rows.save' });
    expect(entry!.supersededBy).toBeUndefined();
  });

  it('is answered newest first, and as many as asked for', async () => {
    for (const reason of ['first', 'second', 'third']) await app.fencing.revoke(key, { reason });
    expect((await app.fencing.audit(key)).map(({ reason }) => reason)).toEqual(['third', 'second', 'first']);
    expect((await app.fencing.audit(key, { limit: 1 })).map(({ reason }) => reason)).toEqual(['third']);
    expect(await app.fencing.audit(`never used ${id}`)).toEqual([]);
  });

  it('keeps keys as they are, whatever is in them', async () => {
    const hostile = `'); DROP TABLE fencing_audit; --"{\\},NULL ${id}`;
    const call = app.fencing.run(hostile, {}, async () => {
      await app.fencing.revoke(hostile);
      await app.fencing.write({}, () => undefined);
    });
    await expect(call).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    key = hostile;
    expect((await entries(2)).map(({ kind, key }) => [kind, key])).toEqual([
      ['stale', hostile],
      ['revoked', hostile],
    ]);
  });

  it('nobody waits for it: the refusal is there while the table of the audit is locked, and the row when it is free', async () => {
    const other = await another();
    const locker = app.dataSource.createQueryRunner();
    await locker.startTransaction();
    await locker.query('LOCK TABLE fencing_audit IN ACCESS EXCLUSIVE MODE');
    await supersede(other);
    const [{ count }] = await locker.query('SELECT count(*)::int FROM fencing_audit WHERE key = $1', [key]);
    expect(count).toBe(0);
    await locker.commitTransaction();
    await locker.release();
    expect(await entries()).toMatchObject([{ kind: 'stale' }]);
  });

  it('is not in the way of the work, also where the only connection would have to wait for the table', async () => {
    const small = await another({ poolSize: 1 });
    const locker = app.dataSource.createQueryRunner();
    await locker.startTransaction();
    await locker.query('LOCK TABLE fencing_audit IN ACCESS EXCLUSIVE MODE');
    // Stale without a revocation, which would wait for the table as well.
    const call = small.fencing.run(key, {}, async (lease) => {
      await app.dataSource.query('UPDATE fencing_fence SET generation = $2 WHERE key = $1', [
        key,
        lease.generation + 1,
      ]);
      await small.fencing.write({}, () => undefined);
    });
    await expect(call).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    for (let i = 0; i < 3; i++) {
      const next = small.fencing.run(`work ${i} ${id}`, {}, () => small.fencing.write({}, () => 'accepted'));
      expect(await next).toBe('accepted');
    }
    await locker.commitTransaction();
    await locker.release();
    expect(await entries()).toMatchObject([{ kind: 'stale' }]);
  });

  it('takes one connection, also where there is only one and many writes are refused at once', async () => {
    const small = await another({ poolSize: 1 });
    const keys = Array.from({ length: 20 }, (_, i) => `small ${i} ${id}`);
    await Promise.all(
      keys.map(async (one) => {
        const call = small.fencing.run(one, { waitMs: 60_000 }, async () => {
          await app.fencing.revoke(one);
          await small.fencing.write({}, () => undefined);
        });
        await expect(call).rejects.toMatchObject({ code: 'STALE_GENERATION' });
      }),
    );
    await eventually(async () => {
      const sql = `SELECT count(*)::int FROM fencing_audit WHERE kind = 'stale' AND key = ANY($1)`;
      const [{ count }] = await app.dataSource.query(sql, [keys]);
      return count === keys.length;
    });
  });

  it('what the table does not take is dropped and told; writes are refused as ever', async () => {
    const other = await another({ leases: new MemoryLeaseStore() });
    const dropped: unknown[] = [];
    other
      .get(FencingEvents)
      .of('audit.dropped')
      .subscribe((event) => dropped.push(event));
    await app.dataSource.query(
      `ALTER TABLE fencing_audit ADD CONSTRAINT none CHECK (kind <> 'stale') NOT VALID`,
    );
    try {
      const call = other.fencing.run(key, {}, async () => {
        await app.fencing.revoke(key);
        await other.fencing.write({}, () => undefined);
      });
      await expect(call).rejects.toMatchObject({ code: 'STALE_GENERATION' });
      await eventually(() => dropped.length === 1);
      expect(dropped).toMatchObject([{ name: 'audit.dropped', count: 1, cause: 'unavailable' }]);
    } finally {
      await app.dataSource.query('ALTER TABLE fencing_audit DROP CONSTRAINT none');
    }
  });

  it('is kept before the application has ended', async () => {
    const other = await another({ leases: new MemoryLeaseStore() });
    const call = other.fencing.run(key, {}, async () => {
      await app.fencing.revoke(key);
      await other.fencing.write({}, () => undefined);
    });
    await expect(call).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    await other.close();
    opened.length = 0;
    expect((await app.fencing.audit(key)).map(({ kind }) => kind)).toEqual(['stale', 'revoked']);
  });

  it('is off with audit: false; revocations stay', async () => {
    const other = await another({ leases: new MemoryLeaseStore(), fencing: { audit: false } });
    const call = other.fencing.run(key, {}, async () => {
      await other.fencing.revoke(key);
      await other.fencing.write({}, () => undefined);
    });
    await expect(call).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    await other.close();
    opened.length = 0;
    expect((await app.fencing.audit(key)).map(({ kind }) => kind)).toEqual(['revoked']);
  });

  it('refuses what is no key, no limit, or has no fence to ask', async () => {
    await expect(app.fencing.audit('')).rejects.toThrow(LeaseKeyError);
    for (const limit of [0, 1.5, 1_001, '5' as never])
      await expect(app.fencing.audit(key, { limit })).rejects.toThrow(
        /limit must be a whole number from 1 to 1000/,
      );
    const bare = await startFencedApp({ fence: false, leases: new MemoryLeaseStore() });
    opened.unshift(() => bare.close());
    await expect(bare.fencing.audit(key)).rejects.toThrow(FencingConfigError);
  });
});
