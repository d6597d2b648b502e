import { randomUUID } from 'node:crypto';
import { afterEach, describe, expect, it } from '@jest/globals';
import { FencingService, type Lease } from 'nestjs-fencing';
import { FencingModule } from 'nestjs-fencing';
import { postgresLeases } from 'nestjs-fencing/typeorm';
import { Test } from '@nestjs/testing';
import pg from 'pg';
import { type FencedApp, type FencedAppOptions, startFencedApp } from './support/fenced-app.js';
import { eventually, Gate } from './support/gate.js';
import { freshDatabase, PostgresServer } from './support/postgres-server.js';
import { TcpProxy } from './support/proxy.js';

/** Applications without a Redis: leases and fence in one PostgreSQL. */
describe('an application that keeps its leases in PostgreSQL', () => {
  const opened: { close?(): Promise<unknown>; stop?(): Promise<unknown> }[] = [];
  afterEach(async () => {
    for (const one of opened.splice(0).reverse()) await (one.close ?? one.stop)!.call(one);
  });
  const database = async () => {
    const fresh = await freshDatabase();
    opened.push({ close: () => fresh.drop() });
    const sql = new pg.Client({ connectionString: fresh.url });
    await sql.connect();
    opened.push({ close: () => sql.end() });
    await sql.query('CREATE TABLE written (n serial, text text, generation bigint)');
    return { url: fresh.url, sql };
  };
  const start = async (databaseUrl: string, more: Partial<FencedAppOptions> = {}): Promise<FencedApp> => {
    const app = await startFencedApp({
      leases: postgresLeases({ ensureSchema: true }),
      databaseUrl,
      ...more,
    });
    opened.push(app);
    return app;
  };
  const write = (app: FencedApp, lease: Lease, text: string) =>
    app.fencing.write({}, () =>
      app.dataSource.query('INSERT INTO written (text, generation) VALUES ($1, $2)', [
        text,
        lease.generation,
      ]),
    );

  it('field report 5: calls of two applications at once run one after the other, each under a generation of its own', async () => {
    const { url, sql } = await database();
    const apps = [await start(url), await start(url)];
    let inside = 0;
    const generations: number[] = [];
    await Promise.all(
      Array.from({ length: 50 }, (_, i) =>
        apps[i % 2]!.fencing.run('key', { waitMs: 60_000 }, async (lease) => {
          expect(++inside).toBe(1);
          generations.push(lease.generation);
          await write(apps[i % 2]!, lease, `call ${i}`);
          inside -= 1;
        }),
      ),
    );
    expect(generations).toHaveLength(50);
    expect(generations).toEqual([...new Set(generations)].sort((a, b) => a - b));
    const { rows } = await sql.query<{ generation: string }>('SELECT generation FROM written ORDER BY n');
    expect(rows.map(({ generation }) => Number(generation))).toEqual(generations);
  });

  it('takes a key that it has just released without waiting: the release is never overtaken', async () => {
    const app = await start((await database()).url);
    for (let i = 0; i < 50; i++) await app.fencing.run('key', { waitMs: 0 }, () => undefined);
  });

  it('is woken by a release in another process, long before it would look again', async () => {
    const { url } = await database();
    const [first, second] = [await start(url), await start(url)];
    const { sql } = { sql: new pg.Client({ connectionString: url }) };
    await sql.connect();
    try {
      const gate = new Gate();
      const inside = new Gate();
      const holder = first.fencing.run('key', { ttlMs: 60_000 }, () => {
        inside.open();
        return gate.wait();
      });
      await inside.wait();
      const waiting = second.fencing.run('key', { waitMs: 60_000 }, () => performance.now());
      await eventually(
        async () =>
          (await sql.query('SELECT 1 FROM fencing_lease WHERE cardinality(waiters) = 1')).rowCount === 1,
      );
      gate.open();
      await holder;
      // It gets the key that was kept for it: its generation follows on the holder's.
      await waiting;
      const { rows } = await sql.query<{ n: string }>(
        'SELECT count(*) AS n FROM fencing_lease WHERE cardinality(waiters) > 0',
      );
      expect(rows).toEqual([{ n: '0' }]);
    } finally {
      await sql.end();
    }
  });

  it('field report 12: renews while all connections of the application are busy, with a pool of one', async () => {
    const { url, sql } = await database();
    const app = await start(url, { poolSize: 1 });
    await app.fencing.run('key', { ttlMs: 600 }, async (lease) => {
      const runner = app.dataSource.createQueryRunner();
      await runner.startTransaction();
      try {
        const expiry = async () => {
          const { rows } = await sql.query<{ at: string }>(
            "SELECT expires_at::text AS at FROM fencing_lease WHERE key = 'key'",
          );
          return rows[0]!.at;
        };
        for (let renewals = 0, before = await expiry(); renewals < 6; renewals++) {
          await eventually(async () => (await expiry()) !== before);
          before = await expiry();
        }
        expect(lease.state).toBe('held');
      } finally {
        await runner.rollbackTransaction();
        await runner.release();
      }
      await write(app, lease, 'after six renewals');
    });
  });

  it('leaves no connection behind when it stops', async () => {
    const { url, sql } = await database();
    const name = `app-${randomUUID().slice(0, 8)}`;
    const app = await startFencedApp({
      leases: postgresLeases({ ensureSchema: true }),
      databaseUrl: url,
      dataSource: { applicationName: name } as never,
    });
    await app.fencing.run('key', {}, () => undefined);
    const sessions = async () =>
      (await sql.query('SELECT 1 FROM pg_stat_activity WHERE application_name LIKE $1', [`${name}%`]))
        .rowCount;
    const own = await sql.query('SELECT 1 FROM pg_stat_activity WHERE application_name = $1', [
      `${name} leases`,
    ]);
    expect(own.rowCount).toBeGreaterThan(0);
    await app.close();
    await eventually(async () => (await sessions()) === 0);
  });

  it('does not start without a DataSource, and says what to do', async () => {
    const module = Test.createTestingModule({
      imports: [FencingModule.forRoot({ leases: postgresLeases() })],
    });
    const compiled = await module.compile();
    await expect(compiled.init()).rejects.toMatchObject({
      code: 'INVALID_CONFIG',
      message: expect.stringContaining('TypeOrmModule.forRoot'),
    });
  });

  it('works on a URL of its own, without a DataSource', async () => {
    const { url } = await database();
    const leases = postgresLeases({ url, ensureSchema: true });
    const module = await Test.createTestingModule({ imports: [FencingModule.forRoot({ leases })] }).compile();
    await module.init();
    opened.push(module);
    expect(await module.get(FencingService).run('key', {}, (lease) => lease.generation)).toBeGreaterThan(0);
  });

  it('I6; field report 14: a call whose acquisition lost its reply runs all the same, and frees its key', async () => {
    const { url, sql } = await database();
    const proxy = await TcpProxy.start(url);
    opened.push(proxy);
    const app = await start(url, { leases: postgresLeases({ url: proxy.url, ensureSchema: true }) });
    await app.fencing.run('warm', {}, () => undefined);
    const swallow = () => proxy.swallowReplyOnce((request) => request.includes('fencing_lease_steps'));
    for (const step of ['acquire', 'release']) {
      let swallowed = step === 'acquire' ? swallow() : undefined;
      const generation = await app.fencing.run('key', { waitMs: 20_000 }, async (lease) => {
        await write(app, lease, step);
        swallowed ??= swallow();
        return lease.generation;
      });
      await swallowed;
      await eventually(async () => {
        const { rows } = await sql.query(
          "SELECT 1 FROM fencing_lease WHERE key = 'key' AND expires_at > now()",
        );
        return rows.length === 0;
      });
      expect((await app.fencing.run('key', { waitMs: 0 }, (lease) => lease.generation))!).toBeGreaterThan(
        generation!,
      );
    }
    const { rows } = await sql.query('SELECT text FROM written ORDER BY n');
    expect(rows).toEqual([{ text: 'acquire' }, { text: 'release' }]);
  });

  it('I7; field report 16: a crash of the server: leases are lost, the fence is not: the new holder writes, the old one is refused', async () => {
    const server = await PostgresServer.start({ fsync: 'on', synchronous_commit: 'on' });
    opened.push(server);
    const [first, second] = [await start(server.url), await start(server.url)];
    await first.dataSource.query('CREATE TABLE written (n serial, text text, generation bigint)');
    const inside = new Gate();
    const crashed = new Gate();
    let old = 0;
    const holder = first.fencing.run('key', { ttlMs: 60_000 }, async (lease) => {
      old = lease.generation;
      await write(first, lease, 'first, before');
      inside.open();
      await crashed.wait();
      await write(first, lease, 'first, after');
    });
    holder.catch(() => undefined);
    await Promise.race([inside.wait(), holder]);
    await server.restart('immediate');
    const generation = await eventually(
      () =>
        second.fencing
          .run('key', { waitMs: 10_000 }, async (lease) => {
            await write(second, lease, 'second');
            return lease.generation;
          })
          .catch((error: { code?: string }) => {
            expect(error).toMatchObject({ code: 'STORE_UNAVAILABLE' });
            return undefined;
          }),
      { timeoutMs: 40_000 },
    );
    expect(generation).toBeGreaterThan(old);
    crashed.open();
    await expect(holder).rejects.toMatchObject({
      code: expect.stringMatching(/^(STALE_GENERATION|LEASE_LOST)$/),
    });
    const rows = await second.dataSource.query<{ text: string }[]>('SELECT text FROM written ORDER BY n');
    expect(rows.map(({ text }) => text)).toEqual(['first, before', 'second']);
  });
});
