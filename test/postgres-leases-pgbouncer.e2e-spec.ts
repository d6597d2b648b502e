import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, describe, expect, it } from '@jest/globals';
import type { Fence } from 'nestjs-fencing';
import { fenceContract, leaseStoreContract } from 'nestjs-fencing/testing';
import { postgresLeases, type PostgresLeasesOptions } from 'nestjs-fencing/typeorm';
import pg from 'pg';
import type { EntityManager } from 'typeorm';
import { BareFence } from './support/bare-fence.js';
import { type FencedApp, type FencedAppOptions, startFencedApp } from './support/fenced-app.js';
import { eventually, Gate } from './support/gate.js';
import { leaseDatabase } from './support/lease-database.js';
import { findPgBouncer, NO_PGBOUNCER, PgBouncer } from './support/pgbouncer.js';
import { freshDatabase } from './support/postgres-server.js';

const found = findPgBouncer();
if (!found) console.warn(NO_PGBOUNCER);
const throughPgBouncer = found ? describe : describe.skip;

/** All that a session could keep of what was done on it, and what a new one has of it. */
const SESSION = `SELECT current_setting('lock_timeout') AS lock_timeout, current_setting('statement_timeout') AS statement_timeout,
  current_setting('idle_in_transaction_session_timeout') AS idle, current_setting('synchronous_commit') AS synchronous_commit,
  current_setting('client_connection_check_interval', true) AS connection_check, current_setting('search_path') AS search_path,
  current_setting('role') AS role, current_setting('transaction_isolation') AS isolation,
  coalesce(current_setting('fencing.generations', true), '') AS generations, coalesce(current_setting('fencing.bypass', true), '') AS bypass,
  (SELECT count(*)::int FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory') AS advisory_locks,
  (SELECT count(*)::int FROM pg_prepared_statements) AS prepared, (SELECT count(*)::int FROM pg_cursors) AS cursors,
  (SELECT count(*)::int FROM pg_listening_channels()) AS listening,
  (SELECT count(*)::int FROM pg_class WHERE relpersistence = 't' AND pg_my_temp_schema() <> 0) AS temporary`;

throughPgBouncer('through PgBouncer in transaction mode', () => {
  const opened: { close?(): Promise<unknown>; stop?(): Promise<unknown> }[] = [];
  afterEach(async () => {
    for (const one of opened.splice(0).reverse()) await (one.close ?? one.stop)!.call(one);
  });
  const database = async (poolSize?: number) => {
    const fresh = await freshDatabase();
    opened.push({ close: () => fresh.drop() });
    const bouncer = await PgBouncer.start(fresh.url, { poolSize });
    opened.push(bouncer);
    return { direct: fresh.url, url: bouncer.urlOf(fresh.url) };
  };
  const start = async (
    databaseUrl: string,
    leases: PostgresLeasesOptions,
    more: Partial<FencedAppOptions> = {},
  ): Promise<FencedApp> => {
    const app = await startFencedApp({
      leases: postgresLeases({ ensureSchema: true, ...leases }),
      databaseUrl,
      ...more,
    });
    opened.push(app);
    return app;
  };
  const strict = { fencing: { strict: true } };

  describe('leases and their activation, by polling', () => {
    let bouncer: PgBouncer;
    let bare: BareFence;
    beforeAll(async () => {
      bouncer = await PgBouncer.start(process.env.DATABASE_URL!);
      bare = await BareFence.open({ url: bouncer.urlOf(process.env.DATABASE_URL!) });
    });
    afterAll(async () => {
      await bare.close();
      await bouncer.stop();
    });
    const make = async () => ({
      ...(await leaseDatabase({ dataSource: bare.dataSource, hints: 'poll', pollMs: 20 })),
      fence: () => bare.fence as Fence,
    });
    leaseStoreContract({ describe, it }, make, { activates: true });
  });

  describe('fenced writes', () => {
    let bouncer: PgBouncer;
    let observer: BareFence;
    beforeAll(async () => {
      bouncer = await PgBouncer.start(process.env.DATABASE_URL!, { poolSize: 40 });
      observer = await BareFence.open();
      await observer.dataSource.query('CREATE TABLE IF NOT EXISTS bounced (run text, text text)');
    });
    afterAll(async () => {
      await observer.dataSource.query('DROP TABLE bounced');
      await observer.close();
      await bouncer.stop();
    });
    fenceContract<EntityManager>({ describe, it }, () => {
      const run = randomUUID();
      const bares: BareFence[] = [];
      return {
        open: async () => {
          const url = bouncer.urlOf(process.env.DATABASE_URL!);
          const bare = await BareFence.open({ url, check: false });
          bares.push(bare);
          return bare.fence;
        },
        note: async (manager, text) => {
          await manager.query('INSERT INTO bounced VALUES ($1, $2)', [run, text]);
        },
        noted: async () => {
          const rows = await observer.dataSource.query<{ text: string }[]>(
            'SELECT text FROM bounced WHERE run = $1',
            [run],
          );
          return rows.map(({ text }) => text);
        },
        close: async () => {
          for (const { dataSource } of bares) await dataSource.destroy();
        },
      };
    });
  });

  it('LISTEN does not work there: the boot says so, and a strict module does not start', async () => {
    const { url } = await database();
    await expect(start(url, {}, strict)).rejects.toMatchObject({
      code: 'INVALID_CONFIG',
      message: expect.stringContaining("hints: 'poll'"),
    });
  });

  it('by polling there is nothing to say; callers of two processes have their turn, under rising generations', async () => {
    const { direct, url } = await database();
    const apps = [
      await start(url, { hints: 'poll', pollMs: 20 }, strict),
      await start(url, { hints: 'poll', pollMs: 20 }, strict),
    ];
    const sql = new pg.Client({ connectionString: direct });
    await sql.connect();
    opened.push({ close: () => sql.end() });
    await sql.query('CREATE TABLE written (n serial, app int, generation bigint)');
    await Promise.all(
      Array.from({ length: 40 }, (_, i) =>
        apps[i % 2]!.fencing.run('key', { waitMs: 60_000 }, (lease) =>
          apps[i % 2]!.fencing.write({}, () =>
            apps[i % 2]!.dataSource.query('INSERT INTO written (app, generation) VALUES ($1, $2)', [
              i % 2,
              lease.generation,
            ]),
          ),
        ),
      ),
    );
    const { rows } = await sql.query<{ generation: string }>('SELECT generation FROM written ORDER BY n');
    const generations = rows.map(({ generation }) => Number(generation));
    expect(generations).toHaveLength(40);
    expect(generations).toEqual([...new Set(generations)].sort((a, b) => a - b));
  });

  it('with a URL past it for the leases, waiting callers are woken and there is nothing to say', async () => {
    const { direct, url } = await database();
    const leases = { url: direct };
    const [first, second] = [await start(url, leases, strict), await start(url, leases, strict)];
    const [inside, gate] = [new Gate(), new Gate()];
    const holder = first.fencing.run('key', { ttlMs: 60_000 }, () => {
      inside.open();
      return gate.wait();
    });
    await inside.wait();
    const waiting = second.fencing.run('key', { waitMs: 60_000 }, () => 'its turn');
    const sql = new pg.Client({ connectionString: direct });
    await sql.connect();
    opened.push({ close: () => sql.end() });
    await eventually(
      async () =>
        (await sql.query('SELECT 1 FROM fencing_lease WHERE cardinality(waiters) = 1')).rowCount === 1,
    );
    gate.open();
    await holder;
    expect(await waiting).toBe('its turn');
  });

  it('the doctor sees it, and says what to do', async () => {
    const { url } = await database();
    const polling = await start(url, { hints: 'poll' });
    const text = async (app: FencedApp) =>
      (await app.fencing.diagnose()).findings.map((one) => `${one.problem} ${one.fix}`).join('\n');
    expect(await text(polling)).toMatch(/A connection pooler \(PgBouncer.*hints: 'poll'/);
    expect(await text(polling)).not.toMatch(/LISTEN and NOTIFY do not work/);
    const listening = await start(url, {});
    expect(await text(listening)).toMatch(/LISTEN and NOTIFY do not work/);
  });

  it('nothing is left in the sessions that clients share: no setting, lock, statement or subscription', async () => {
    const sessions = 3;
    const { direct, url } = await database(sessions);
    const untouched = new pg.Client({ connectionString: direct });
    await untouched.connect();
    opened.push({ close: () => untouched.end() });
    const asNew = (await untouched.query(SESSION)).rows[0];
    for (const activationDurability of ['durable', 'relaxed'] as const) {
      const app = await start(url, { hints: 'poll', pollMs: 20 }, { fence: { activationDurability } });
      const insert = (text: string) => () => app.dataSource.query('SELECT $1::text', [text]);
      await Promise.all(
        Array.from({ length: 30 }, (_, i) =>
          app.fencing.run(
            `key ${i % 5}`,
            { waitMs: 60_000, activate: i % 2 ? 'start' : 'write' },
            async () => {
              await app.fencing.write({}, insert('read committed'));
              await app.fencing.write({ isolation: 'SERIALIZABLE' }, insert('serializable'));
              await app.fencing.write({ operation: { id: `${activationDurability} ${i}` } }, insert('once'));
              const fails = app.fencing.write({}, () => app.dataSource.query('SELECT 1 / 0'));
              await expect(fails).rejects.toThrow('division by zero');
            },
          ),
        ),
      );
      const revoked = app.fencing.run('revoked', {}, async () => {
        await app.fencing.revoke('revoked', { by: 'ops' });
        await app.fencing.write({}, insert('late'));
      });
      await expect(revoked).rejects.toMatchObject({ code: 'STALE_GENERATION' });
      await app.close();
      opened.splice(opened.indexOf(app), 1);
    }
    // As many transactions at once as there are sessions: each is another one.
    const clients = await Promise.all(
      Array.from({ length: sessions }, async () => {
        const client = new pg.Client({ connectionString: url });
        await client.connect();
        await client.query('BEGIN');
        return client;
      }),
    );
    const pids = new Set<number>();
    for (const client of clients) {
      pids.add((await client.query<{ pid: number }>('SELECT pg_backend_pid() AS pid')).rows[0]!.pid);
      expect((await client.query(SESSION)).rows[0]).toEqual(asNew);
    }
    expect(pids.size).toBe(sessions);
    for (const client of clients) await client.end();
  });
});
