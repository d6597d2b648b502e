import { randomUUID } from 'node:crypto';
import { jest } from '@jest/globals';
import { Injectable, Logger } from '@nestjs/common';
import { InjectRepository } from '@nestjs/typeorm';
import {
  CurrentLease,
  FencedWrite,
  FencingConfigError,
  type Lease,
  Leased,
  LeaseKeyError,
  LeaseLostError,
  StaleGenerationError,
  StoreUnavailableError,
} from 'nestjs-fencing';
import { MemoryLeaseStore } from 'nestjs-fencing/testing';
import { Column, Entity, PrimaryColumn, type Repository } from 'typeorm';
import { BareFence, newGrant } from './support/bare-fence.js';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { eventually, Gate } from './support/gate.js';
import { freshDatabase } from './support/postgres-server.js';

@Entity('revoked_entry')
class Entry {
  @PrimaryColumn('text') id!: string;
  @Column('text') text!: string;
}

@Injectable()
class Entries {
  constructor(@InjectRepository(Entry) readonly entries: Repository<Entry>) {}

  @Leased('entry:{0}', { ttlMs: 1_500, waitMs: 10_000 })
  run<T>(_id: string, work: (lease: Lease) => Promise<T>, @CurrentLease() lease?: Lease): Promise<T> {
    return work(lease!);
  }

  @Leased('entry:{0}', { activate: 'write' })
  runLazily<T>(_id: string, work: (lease: Lease) => Promise<T>, @CurrentLease() lease?: Lease): Promise<T> {
    return work(lease!);
  }

  @FencedWrite()
  async write(id: string, text: string, until: Promise<unknown> = Promise.resolve()): Promise<void> {
    await this.entries.save({ id, text });
    await until;
  }
}

interface AuditRow {
  [column: string]: unknown;
  generation: string | null;
  superseded_by: string;
  owner: string | null;
}

describe('a key that is revoked', () => {
  let database: Awaited<ReturnType<typeof freshDatabase>>;
  let app: FencedApp;
  let entries: Entries;
  let id: string;
  let key: string;

  beforeAll(async () => {
    database = await freshDatabase();
    app = await startFencedApp({ entities: [Entry], providers: [Entries], databaseUrl: database.url });
    entries = app.get(Entries);
  });
  afterAll(async () => {
    await app.close();
    await database.drop();
  });
  beforeEach(() => {
    id = randomUUID();
    key = `entry:${id}`;
  });

  const audit = (of = key): Promise<AuditRow[]> =>
    app.dataSource.query(
      // Writes that were refused leave rows too, some time later: test/audit.e2e-spec.ts.
      `SELECT * FROM fencing_audit WHERE key = $1 AND kind <> 'stale' ORDER BY id`,
      [of],
    );
  const fence = async (of = key) => (await app.fencing.inspect(of)).fence;
  /** A leased call that stays inside its method until it is let out, or its lease ends. */
  const hold = async () => {
    const inside = new Gate();
    const out = new Gate();
    let lease!: Lease;
    const call = entries.run(id, async (own) => {
      lease = own;
      inside.open();
      await out.wait();
    });
    call.catch(() => undefined);
    await Promise.race([inside.wait(), call]);
    return { lease, call, letOut: () => out.open() };
  };

  it('is free at once, its holder’s writes are refused from that moment, and its signal aborts at the next renewal', async () => {
    const refused: unknown[] = [];
    let aborted: unknown;
    const call = entries.run(id, async (lease) => {
      await entries.write(id, 'before');
      await app.fencing.revoke(key, { by: 'jane', reason: 'it hangs' });
      // No renewal has been due yet: nothing but the database knows.
      await new Promise<void>((resolve) => {
        lease.signal.addEventListener('abort', () => {
          aborted = lease.signal.reason;
          resolve();
        });
      });
      await entries.write(id, 'after').catch((error: unknown) => refused.push(error));
    });
    await expect(call).rejects.toMatchObject({ code: 'LEASE_LOST', reason: 'superseded', acceptedWrites: 1 });
    expect(aborted).toBeInstanceOf(LeaseLostError);
    expect(refused).toHaveLength(1);
    expect(await entries.entries.findOneByOrFail({ id })).toEqual({ id, text: 'before' });
  });

  it('refuses a write that its holder begins before it has noticed anything', async () => {
    const call = entries.run(id, async () => {
      await app.fencing.revoke(key);
      await entries.write(id, 'after');
    });
    await expect(call).rejects.toBeInstanceOf(StaleGenerationError);
    expect(await entries.entries.findOneBy({ id })).toBeNull();
  });

  it('goes to the next caller, whose generation is above', async () => {
    const { lease, call, letOut } = await hold();
    const revocation = await app.fencing.revoke(key);
    const next = await entries.run(id, async (own) => {
      await entries.write(id, 'of the next');
      return own.generation;
    });
    expect(revocation).toEqual({
      supersededGeneration: lease.generation,
      generation: expect.any(Number),
    });
    expect(revocation!.generation).toBeGreaterThan(lease.generation);
    expect(next).toBeGreaterThan(revocation!.generation);
    letOut();
    await expect(call).rejects.toBeInstanceOf(LeaseLostError);
  });

  it('is audited: who, why, when, and which grant was superseded by which generation', async () => {
    const { lease, call, letOut } = await hold();
    const before = Date.now();
    const revocation = await app.fencing.revoke(key, { by: 'jane', reason: 'it hangs' });
    letOut();
    await call.catch(() => undefined);
    const [row, ...more] = await audit();
    expect(more).toEqual([]);
    expect(row).toMatchObject({
      kind: 'revoked',
      key,
      generation: String(lease.generation),
      owner: lease.owner,
      superseded_by: String(revocation!.generation),
      by: 'jane',
      reason: 'it hangs',
    });
    expect(Math.abs(Number(row!.at) - before)).toBeLessThan(60_000);
  });

  it('is audited in the transaction that raises the fence', async () => {
    await app.fencing.revoke(key);
    const [together] = await app.dataSource.query<{ same: boolean }[]>(
      `SELECT f.xmin::text = (a.transaction % (1::bigint << 32))::text AND a.xmin = f.xmin AS same
       FROM fencing_fence f JOIN fencing_audit a USING (key) WHERE key = $1`,
      [key],
    );
    expect(together).toEqual({ same: true });
  });

  it('without an audit is not revoked: neither happens without the other, and the holder goes on', async () => {
    await app.dataSource.query(
      `ALTER TABLE fencing_audit ADD CONSTRAINT no_more CHECK (reason <> 'refused by the test')`,
    );
    const { lease, call, letOut } = await hold();
    try {
      await expect(app.fencing.revoke(key, { reason: 'refused by the test' })).rejects.toThrow();
      expect(await fence()).toMatchObject({ generation: lease.generation, owner: lease.owner });
      expect((await app.fencing.inspect(key)).lease).toMatchObject({ owner: lease.owner });
    } finally {
      await app.dataSource.query('ALTER TABLE fencing_audit DROP CONSTRAINT no_more');
      letOut();
    }
    await call;
  });

  it('by nobody in particular is audited with the role of the database', async () => {
    await app.fencing.revoke(key);
    const [{ role }] = await app.dataSource.query<[{ role: string }]>('SELECT current_user AS role');
    expect(await audit()).toMatchObject([{ by: role, reason: null, generation: null, owner: null }]);
  });

  it.each([
    ['', false],
    [', also where it knows an older one', true],
  ])('whose grant the database has not seen yet is superseded as well%s', async (_, used) => {
    if (used) await entries.run(id, async () => undefined);
    const call = entries.runLazily(id, async (lease) => {
      expect((await fence())?.owner).not.toBe(lease.owner);
      const revocation = await app.fencing.revoke(key);
      expect(revocation!.supersededGeneration).toBe(lease.generation);
      expect(revocation!.generation).toBe(lease.generation + 1);
      expect(await audit()).toMatchObject([{ generation: String(lease.generation), owner: lease.owner }]);
      await entries.write(id, 'late');
    });
    await expect(call).rejects.toBeInstanceOf(StaleGenerationError);
    expect(await entries.entries.findOneBy({ id })).toBeNull();
  });

  it('by ten at once is raised ten times: a chain without a gap', async () => {
    await entries.run(id, () => entries.write(id, 'before'));
    const raised = await Promise.all(Array.from({ length: 10 }, () => app.fencing.revoke(key)));
    const chain = (await audit()).map(({ generation, superseded_by: by }) => [
      Number(generation),
      Number(by),
    ]);
    expect(chain).toHaveLength(10);
    const sorted = chain.sort(([a], [b]) => a! - b!);
    expect(sorted.every(([from, to], i) => to === from! + 1 && (i === 0 || sorted[i - 1]![1] === from))).toBe(
      true,
    );
    expect(new Set(raised.map((one) => one!.generation)).size).toBe(10);
  });

  it('by ten at once, and never used, is raised ten times as well', async () => {
    await Promise.all(Array.from({ length: 10 }, () => app.fencing.revoke(key)));
    expect((await audit()).map((row) => Number(row.superseded_by)).sort((a, b) => a - b)).toEqual(
      Array.from({ length: 10 }, (_, i) => i + 1),
    );
    expect(await fence()).toMatchObject({ generation: 10 });
  });

  it('waits for a write that is under way; one that does not end is named, and nothing has changed', async () => {
    const [inside, out] = [new Gate(), new Gate()];
    const call = entries.run(id, async () => {
      inside.open();
      await entries.write(id, 'under way', out.wait());
    });
    call.catch(() => undefined);
    await inside.wait();
    await eventually(async () => {
      const open = `SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()`;
      return (await app.dataSource.query<unknown[]>(open)).length > 0;
    });
    const began = performance.now();
    const refused = await app.fencing.revoke(key).catch((error: unknown) => error);
    expect(performance.now() - began).toBeLessThan(15_000);
    out.open();
    await call;
    expect(refused).toBeInstanceOf(StoreUnavailableError);
    expect((refused as Error).message).toMatch(/still open after 2000 ms: backend \d+/);
    expect(await audit()).toEqual([]);
    expect(await entries.entries.findOneByOrFail({ id })).toEqual({ id, text: 'under way' });
  });

  it('at its ceiling says so', async () => {
    await app.dataSource.query(`INSERT INTO fencing_fence VALUES ($1, 9007199254740991, 'x')`, [key]);
    await expect(app.fencing.revoke(key)).rejects.toMatchObject({ code: 'GENERATIONS_EXHAUSTED' });
    expect(await audit()).toEqual([]);
  });

  it('is not in the log, neither are who and why', async () => {
    const warn = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => undefined);
    try {
      await app.fencing.revoke(key, { by: 'jane', reason: 'secret' });
      expect(warn).toHaveBeenCalledTimes(1);
      expect(String(warn.mock.calls[0])).toMatch(/^Lease #\w+ was revoked/);
      expect(String(warn.mock.calls[0])).not.toMatch(new RegExp(`${id}|jane|secret`));
    } finally {
      warn.mockRestore();
    }
  });

  it.each([
    [{ by: '' }, /by must be a text of 1 to 1000 characters/],
    [{ reason: ' ' }, /reason must be a text/],
    [{ reason: 'x'.repeat(1_001) }, /reason must be a text.*got one of 1001 characters/],
    [{ reason: 7 as never }, /reason must be a text.*got 7/],
    [{ reason: 'a\0b' }, /U\+0000/],
    [{ because: 'x' } as never, /no option "because"/],
  ])('with the options %j is refused before anything happens', async (options, message) => {
    await expect(app.fencing.revoke(key, options)).rejects.toThrow(message);
    await expect(app.fencing.revoke(key, options)).rejects.toBeInstanceOf(FencingConfigError);
    await expect(app.fencing.revoke(' ', {})).rejects.toBeInstanceOf(LeaseKeyError);
    expect(await fence()).toBeUndefined();
  });

  it('while the lease store is silent has its writes refused all the same, and the silence is reported', async () => {
    class Silent extends MemoryLeaseStore {
      isSilent = false;
      override async inspect(of: string) {
        if (this.isSilent) throw new StoreUnavailableError('lease store', 'no answer.');
        return super.inspect(of);
      }
    }
    const leases = new Silent();
    const own = await startFencedApp({
      entities: [Entry],
      providers: [Entries],
      databaseUrl: database.url,
      leases,
    });
    try {
      const call = own.get(Entries).run(id, async () => {
        leases.isSilent = true;
        await expect(own.fencing.revoke(key)).rejects.toMatchObject({ store: 'lease store' });
        await own.get(Entries).write(id, 'late');
      });
      await expect(call).rejects.toBeInstanceOf(StaleGenerationError);
      expect(await audit()).toHaveLength(1);
    } finally {
      await own.close();
    }
  });

  it('without a fence is only freed, and who and why can not be kept', async () => {
    const own = await startFencedApp({ leases: new MemoryLeaseStore(), fence: false });
    try {
      const lease = await own.fencing.acquire(key);
      await expect(own.fencing.revoke(key, { by: 'jane' })).rejects.toThrow(/no fence is configured/);
      expect((await own.fencing.inspect(key)).lease).toMatchObject({ owner: lease.owner });
      expect(await own.fencing.revoke(key)).toBeUndefined();
      expect((await own.fencing.inspect(key)).lease).toBeUndefined();
      lease.release();
      await expect(own.fencing.pruneAudit({ olderThanMs: 0 })).rejects.toThrow(/no fence is configured/);
    } finally {
      await own.close();
    }
  });

  describe('and its audit', () => {
    it('goes by age, and says how many rows went', async () => {
      await app.dataSource.query('DELETE FROM fencing_audit');
      for (const age of ['1 hour', '2 hours', '3 hours'])
        await app.dataSource.query(
          `INSERT INTO fencing_audit (at, kind, key) VALUES (now() - $1::interval, 'revoked', $2)`,
          [age, key],
        );
      expect(await app.fencing.pruneAudit({ olderThanMs: 2.5 * 3_600_000 })).toBe(1);
      expect(await audit()).toHaveLength(2);
      expect(await app.fencing.pruneAudit({ olderThanMs: 0 })).toBe(2);
      expect(await app.fencing.pruneAudit({ olderThanMs: 0 })).toBe(0);
    });

    it.each([[{}], [{ olderThanMs: -1 }], [{ olderThanMs: '1h' as never }], [{ olderThanMs: 1, by: 'x' }]])(
      'is not pruned by %j',
      async (options) => {
        await expect(app.fencing.pruneAudit(options as never)).rejects.toBeInstanceOf(FencingConfigError);
      },
    );

    it('is not pruned by a database user without the right to, and it is said which one is missing', async () => {
      const role = `role_${randomUUID().replaceAll('-', '')}`;
      await app.dataSource.query(`CREATE ROLE ${role} LOGIN PASSWORD 'secret'`);
      const url = new URL(database.url);
      [url.username, url.password] = [role, 'secret'];
      const user = await BareFence.open({ url: url.href, check: false });
      try {
        await expect(user.fence.pruneAudit(0)).rejects.toThrow(/SELECT and DELETE on fencing_audit/);
        const { key: unused } = newGrant();
        await expect(user.fence.revoke({ key: unused, held: undefined, waitMs: 100 })).rejects.toThrow(
          /INSERT on fencing_audit/,
        );
      } finally {
        await user.close();
        await app.dataSource.query(`DROP ROLE ${role}`);
      }
    });
  });
});
