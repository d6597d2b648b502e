import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import type { Fence, LeaseStore, WakeHint } from 'nestjs-fencing';
import { leaseStoreContract } from 'nestjs-fencing/testing';
import { fencingLeaseMigrations, fencingLeaseMigrationsIn, postgresLeases } from 'nestjs-fencing/typeorm';
import pg from 'pg';
import { DataSource } from 'typeorm';
import {
  PostgresConnections,
  type PgListener,
} from '../libs/fencing/src/typeorm/leases/postgres-connections.js';
import { PostgresLeaseStore } from '../libs/fencing/src/typeorm/leases/postgres-lease-store.js';
import { LeaseSql } from '../libs/fencing/src/typeorm/leases/postgres-leases-sql.js';
import { BareFence } from './support/bare-fence.js';
import { eventually } from './support/gate.js';
import { type LeaseDatabase, leaseDatabase } from './support/lease-database.js';
import { freshDatabase, PostgresServer } from './support/postgres-server.js';
import { TcpProxy } from './support/proxy.js';

const take = (store: LeaseStore, key: string, owner = 'a', more = {}) =>
  store.acquire({ key, owner, ttlMs: 20_000, floor: 0, ...more });
const generationOf = async (store: LeaseStore, key: string, owner = 'a', more = {}) => {
  const answer = await take(store, key, owner, more);
  if (!answer.granted) throw new Error('busy');
  return answer.generation;
};

describe('leases in PostgreSQL', () => {
  describe('the contract', () => {
    leaseStoreContract({ describe, it }, () => leaseDatabase());
  });

  describe('the contract, by polling', () => {
    leaseStoreContract({ describe, it }, () => leaseDatabase({ hints: 'poll', pollMs: 20 }));
  });

  describe('the contract, in the database of the fence', () => {
    let bare: BareFence;
    beforeAll(async () => {
      bare = await BareFence.open();
    });
    afterAll(() => bare.close());
    const make = async () => ({
      ...(await leaseDatabase({ dataSource: bare.dataSource })),
      fence: () => bare.fence as Fence,
    });
    leaseStoreContract({ describe, it }, make, { activates: true });
  });

  describe('its tables', () => {
    let database: LeaseDatabase;
    let store: LeaseStore;
    const rows = async (what: string, table = 'fencing_lease') =>
      (await database.sql.query<Record<string, unknown>>(`SELECT ${what} FROM "${database.schema}".${table}`))
        .rows;

    beforeEach(async () => {
      database = await leaseDatabase();
      const connections = new PostgresConnections(process.env.DATABASE_URL!);
      const settings = { hints: 'listen', pollMs: 100, ensureSchema: true, sweepEveryMs: 50 } as const;
      store = new PostgresLeaseStore(connections, new LeaseSql(database.schema), settings);
      await store.check();
    });
    afterEach(async () => {
      await store.close();
      await database.close();
    });

    it('are UNLOGGED, so that no lease waits for the disk', async () => {
      const { rows: found } = await database.sql.query(
        `SELECT relname, relpersistence FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind = 'r' ORDER BY relname`,
        [`"${database.schema}"`],
      );
      expect(found).toEqual([
        { relname: 'fencing_lease', relpersistence: 'u' },
        { relname: 'fencing_lease_counter', relpersistence: 'u' },
      ]);
    });

    it('I11: keep nothing of the keys that were used: rows that are over are removed while the store is in use', async () => {
      const keys = Array.from({ length: 3_000 }, (_, i) => `customer:${i}`);
      await Promise.all(keys.map((key, i) => take(store, key, 'a', { ttlMs: i % 2 ? 100 : 60_000 })));
      // Every other one is left to its ttl, as a crashed process leaves it.
      await Promise.all(keys.filter((_, i) => i % 2 === 0).map((key) => store.release({ key, owner: 'a' })));
      await eventually(
        async () => {
          await take(store, 'in use');
          return (await rows('key')).length <= 1;
        },
        { timeoutMs: 30_000 },
      );
      expect(await rows('key')).toEqual([{ key: 'in use' }]);
      expect((await rows('bucket', 'fencing_lease_counter')).length).toBeLessThanOrEqual(64);
    });

    it('I5: a sweep leaves alone what is held, and those who wait for it', async () => {
      await take(store, 'held');
      await take(store, 'waited for', 'a', { ttlMs: 100 });
      await take(store, 'waited for', 'b', { waiter: { id: 'w', forMs: 60_000 } });
      await take(store, 'over', 'a', { ttlMs: 100 });
      const sweep = `SELECT "${database.schema}".fencing_lease_sweep(1000)`;
      await eventually(async () => {
        await database.sql.query(sweep);
        return (await rows('key')).length === 2;
      });
      expect(await store.renew([{ key: 'held', owner: 'a', ttlMs: 20_000 }])).toEqual([true]);
      expect(await rows('key, waiters')).toEqual(
        expect.arrayContaining([{ key: 'waited for', waiters: ['w'] }]),
      );
    });

    it('count on from a counter that is ahead of the clock, one by one', async () => {
      const first = await generationOf(store, 'key');
      const ahead = first + 3_600_000_000;
      await database.sql.query(`UPDATE "${database.schema}".fencing_lease_counter SET last = $1`, [ahead]);
      await store.release({ key: 'key', owner: 'a' });
      expect(await generationOf(store, 'key', 'b')).toBe(ahead + 1);
      await store.release({ key: 'key', owner: 'b' });
      expect(await generationOf(store, 'key', 'c')).toBe(ahead + 2);
    });
  });

  describe('its set-up', () => {
    const invalid = { code: 'INVALID_CONFIG' };
    let database: Awaited<ReturnType<typeof freshDatabase>>;
    let store: LeaseStore | undefined;
    beforeAll(async () => {
      database = await freshDatabase();
    });
    afterEach(async () => {
      await store?.close();
      store = undefined;
    });
    afterAll(() => database.drop());
    const open = (options = {}) => (store = postgresLeases({ url: database.url, ...options }).createStore());

    it('without its tables is told at boot; at a call it is unavailable for good', async () => {
      await expect(open().check()).rejects.toMatchObject({
        ...invalid,
        message: expect.stringContaining('fencingLeaseMigrations'),
      });
      const refused = { code: 'STORE_UNAVAILABLE', retryable: false };
      await expect(take(store!, 'key')).rejects.toMatchObject(refused);
      await expect(store!.renew([{ key: 'key', owner: 'a', ttlMs: 1_000 }])).rejects.toMatchObject(refused);
    });

    it('comes with the migrations, and goes with them', async () => {
      const source = new DataSource({
        type: 'postgres',
        url: database.url,
        migrations: fencingLeaseMigrations,
      });
      await source.initialize();
      try {
        await source.runMigrations();
        expect(await open().check()).toEqual([]);
        expect((await take(store!, 'key')).granted).toBe(true);
        await source.undoLastMigration();
        await expect(store!.check()).rejects.toMatchObject(invalid);
        const left = `SELECT proname AS name FROM pg_proc WHERE proname LIKE 'fencing%' UNION SELECT relname FROM pg_class WHERE relname LIKE 'fencing%'`;
        expect(await source.query(left)).toEqual([]);
      } finally {
        await source.destroy();
      }
    });

    it('may live in a schema of its own, also one that must be quoted', async () => {
      const schema = `of "mine" 'x'`;
      const source = new DataSource({
        type: 'postgres',
        url: database.url,
        migrations: fencingLeaseMigrationsIn(schema),
      });
      await source.initialize();
      try {
        await source.query(`CREATE SCHEMA "of ""mine"" 'x'"`);
        await source.runMigrations();
        expect(await open({ schema }).check()).toEqual([]);
        expect((await take(store!, 'key')).granted).toBe(true);
      } finally {
        await source.destroy();
      }
    });

    it('of another version is refused', async () => {
      await open({ schema: 'other_version', ensureSchema: true }).check();
      await withClient(database.url, (client) =>
        client.query(
          `COMMENT ON FUNCTION other_version.fencing_lease_steps(jsonb) IS 'nestjs-fencing leases 0'`,
        ),
      );
      await store!.close();
      await expect(open({ schema: 'other_version' }).check()).rejects.toMatchObject(invalid);
    });

    it('whose sessions do not run in READ COMMITTED is refused, at boot and at a call', async () => {
      await open({ schema: 'isolated', ensureSchema: true }).check();
      await store!.close();
      const url = `${database.url}?options=-c%20default_transaction_isolation%3Dserializable`;
      open({ url, schema: 'isolated' });
      await expect(store!.check()).rejects.toMatchObject({
        ...invalid,
        message: expect.stringContaining('default_transaction_isolation'),
      });
      await expect(take(store!, 'key')).rejects.toMatchObject({
        code: 'STORE_UNAVAILABLE',
        retryable: false,
      });
    });

    it('for a user without the rights is refused, at boot and at a call', async () => {
      await open({ schema: 'guarded', ensureSchema: true }).check();
      await store!.close();
      await withClient(database.url, async (client) => {
        await client.query(`DROP ROLE IF EXISTS lease_stranger`);
        await client.query(`CREATE ROLE lease_stranger LOGIN PASSWORD 'secret'`);
        await client.query(`GRANT USAGE ON SCHEMA guarded TO lease_stranger`);
      });
      const url = new URL(database.url);
      [url.username, url.password] = ['lease_stranger', 'secret'];
      open({ url: url.href, schema: 'guarded' });
      await expect(store!.check()).rejects.toMatchObject({
        ...invalid,
        message: expect.stringContaining('EXECUTE'),
      });
      await expect(take(store!, 'key')).rejects.toMatchObject({
        code: 'STORE_UNAVAILABLE',
        retryable: false,
      });
      await store!.close();
      await withClient(database.url, async (client) => {
        await client.query(`REVOKE USAGE ON SCHEMA guarded FROM lease_stranger`);
        await client.query(`DROP ROLE lease_stranger`);
      });
    });

    it('with a connection that cannot LISTEN (PgBouncer in transaction mode) is warned of; polling is not', async () => {
      await open({ schema: 'deaf', ensureSchema: true }).check();
      await store!.close();
      const settings = { hints: 'listen', pollMs: 100, ensureSchema: false } as const;
      store = new PostgresLeaseStore(new DeafConnections(database.url), new LeaseSql('deaf'), settings);
      expect(await store.check()).toEqual([
        {
          problem: expect.stringContaining('LISTEN'),
          consequence: expect.any(String),
          fix: expect.stringContaining("hints: 'poll'"),
        },
      ]);
      await store.close();
      store = new PostgresLeaseStore(new DeafConnections(database.url), new LeaseSql('deaf'), {
        ...settings,
        hints: 'poll',
      });
      expect(await store.check()).toEqual([]);
    });

    it('takes the longest pollMs, which no 32-bit setting holds', async () => {
      const { open, close } = await leaseDatabase({ hints: 'poll', pollMs: 365 * 24 * 3_600_000 });
      const store = open();
      await store.check(); // makes the tables
      const ask = (owner: string) =>
        store.acquire({ key: 'rare', owner, ttlMs: 60_000, floor: 0, waiter: { id: 'w', forMs: 60_000 } });
      expect(await ask('a')).toMatchObject({ granted: true });
      expect(await ask('b')).toMatchObject({ granted: false });
      await store.release({ key: 'rare', owner: 'a' });
      await store.close();
      await close();
    });

    it.each([
      [{ pollMs: 0 }, 'pollMs'],
      [{ pollMs: '100' }, 'pollMs'],
      [{ hints: 'push' }, 'hints'],
      [{ schema: '' }, 'schema'],
      [{ url: 'redis://localhost' }, 'url'],
      [{ dataSource: 7 }, 'dataSource'],
      [{ url: 'postgres://localhost/x', dataSource: 'reports' }, 'not both'],
      [{ ensureSchema: 'yes' }, 'ensureSchema'],
      [{ pool: 3 }, '"pool"'],
      ['postgres://localhost/x', 'object'],
    ])('refuses the options %j, and says why', (options, named) => {
      expect(() => postgresLeases(options as never)).toThrow(named);
    });
  });

  describe('behind a network that misbehaves', () => {
    let database: LeaseDatabase;
    let proxy: TcpProxy;
    let store: LeaseStore;
    beforeEach(async () => {
      proxy = await TcpProxy.start(process.env.DATABASE_URL!);
      database = await leaseDatabase({ url: proxy.url });
      store = database.open();
      await store.check();
    });
    afterEach(async () => {
      await store.close();
      await database.close();
      await proxy.stop();
    });
    const unavailable = { code: 'STORE_UNAVAILABLE', retryable: true };
    const isSteps = (request: string) => request.includes('fencing_lease_steps');
    const isRenew = (request: string) => request.includes('fencing_lease_renew');

    it('I6; field report 14: a lost reply to each step: sent again it changes nothing', async () => {
      const lost = async <T>(matches: (request: string) => boolean, step: () => Promise<T>): Promise<T> => {
        const swallowed = proxy.swallowReplyOnce(matches);
        await expect(step()).rejects.toMatchObject(unavailable);
        await swallowed;
        return step();
      };
      const generation = await lost(isSteps, () => generationOf(store, 'key'));
      expect(await store.inspect('key')).toMatchObject({ owner: 'a', generation });
      expect(await generationOf(store, 'key')).toBe(generation);
      expect(await lost(isRenew, () => store.renew([{ key: 'key', owner: 'a', ttlMs: 30_000 }]))).toEqual([
        true,
      ]);
      // The first did it: the second finds nothing to do, and nothing of the next owner's.
      expect(await lost(isSteps, () => store.release({ key: 'key', owner: 'a' }))).toEqual({ held: false });
      expect((await take(store, 'key', 'b')).granted).toBe(true);
      expect(await store.release({ key: 'key', owner: 'a' })).toEqual({ held: false });
      expect(await store.inspect('key')).toMatchObject({ owner: 'b' });
    });

    it('that is silent is given up after a bounded time, and the next request takes a new connection', async () => {
      await take(store, 'key');
      proxy.stall('replies');
      await expect(take(store, 'other')).rejects.toMatchObject(unavailable);
      await expect(store.renew([{ key: 'key', owner: 'a', ttlMs: 20_000 }])).rejects.toMatchObject(
        unavailable,
      );
      proxy.resume();
      expect((await take(store, 'other')).granted).toBe(true);
      expect(await store.renew([{ key: 'key', owner: 'a', ttlMs: 20_000 }])).toEqual([true]);
    });

    it('I9: a connection that listens is replaced when it breaks, and everyone who waits looks again', async () => {
      const hints: WakeHint[] = [];
      await take(store, 'key');
      await take(store, 'key', 'b', { waiter: { id: 'w', forMs: 60_000 } });
      const watch = store.watch('key', (hint) => hints.push(hint), performance.now());
      await watch.live;
      proxy.cutAll();
      await eventually(() => hints.some(({ waiterId }) => waiterId === undefined));
      hints.length = 0;
      await eventually(() => store.release({ key: 'key', owner: 'a' }));
      await eventually(() => hints.some(({ waiterId }) => waiterId === 'w'));
      watch.stop();
    });

    it('costs one request for each step, and what is asked for together shares one', async () => {
      const statements = () =>
        proxy.requests.filter(({ type, text }) => type === 'P' && isSteps(text)).length;
      proxy.forget();
      await take(store, 'key');
      expect(statements()).toBe(1);
      await store.release({ key: 'key', owner: 'a' });
      expect(statements()).toBe(2);
      proxy.forget();
      await Promise.all(Array.from({ length: 100 }, (_, i) => take(store, `key ${i}`)));
      expect(statements()).toBe(1);
      expect(proxy.requests.filter(({ text }) => /^(BEGIN|COMMIT)/i.test(text))).toEqual([]);
    });

    it('uses three connections at most, and none when it is closed', async () => {
      await Promise.all(
        Array.from({ length: 50 }, async (_, i) => {
          await take(store, `key ${i}`);
          store.watch(`key ${i}`, () => undefined, performance.now());
          await store.renew([{ key: `key ${i}`, owner: 'a', ttlMs: 20_000 }]);
        }),
      );
      expect(proxy.connections).toBeLessThanOrEqual(3);
      await store.close();
      await eventually(() => proxy.connections === 0);
    });
  });

  describe('after a crash of the server', () => {
    let server: PostgresServer;
    beforeAll(async () => {
      server = await PostgresServer.start();
    });
    afterAll(() => server.stop());

    it('I7; field reports 1 and 16: the leases are gone, generations rise all the same, and the store works again', async () => {
      const store = postgresLeases({ url: server.url, ensureSchema: true }).createStore();
      try {
        await store.check();
        const first = await generationOf(store, 'key');
        await server.restart('immediate');
        // The tables are there, and empty: they were not logged.
        const second = await eventually(
          () =>
            generationOf(store, 'key', 'b').catch((error: { code?: string; retryable?: boolean }) => {
              expect(error).toMatchObject({ code: 'STORE_UNAVAILABLE', retryable: true });
              return undefined;
            }),
          { timeoutMs: 20_000 },
        );
        expect(second).toBeGreaterThan(first);
        expect(await store.renew([{ key: 'key', owner: 'a', ttlMs: 20_000 }])).toEqual([false]);
        expect(await store.release({ key: 'key', owner: 'a' })).toEqual({ held: false });
        expect(await store.inspect('key')).toMatchObject({ owner: 'b', generation: second });
      } finally {
        await store.close();
      }
    });
  });
});

/** Connections through PgBouncer in transaction mode: LISTEN is accepted, and its session is not this client's. */
class DeafConnections extends PostgresConnections {
  override async listener(): Promise<PgListener> {
    const client = await super.listener();
    const query = client.query.bind(client);
    client.query = (text) => query(text.startsWith('LISTEN') ? 'SELECT 1' : text);
    return client;
  }
}

async function withClient(url: string, work: (client: pg.Client) => Promise<unknown>): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    await work(client);
  } finally {
    await client.end();
  }
}
