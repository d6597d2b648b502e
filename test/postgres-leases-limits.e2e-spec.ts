import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import type { LeaseStore } from 'nestjs-fencing';
import { postgresLeases } from 'nestjs-fencing/typeorm';
import pg from 'pg';
import { eventually } from './support/gate.js';
import { PostgresServer } from './support/postgres-server.js';

/** Field report 17, for PostgreSQL: what it cannot do now is *unavailable*, never *busy*, and passes by itself. */
describe('leases in a PostgreSQL at its limits', () => {
  let server: PostgresServer;
  let admin: pg.Client;
  const stores: LeaseStore[] = [];
  const open = (url = server.url) => {
    const store = postgresLeases({ url, ensureSchema: true }).createStore();
    stores.push(store);
    return store;
  };
  const take = (store: LeaseStore, key: string) =>
    store.acquire({ key, owner: 'a', ttlMs: 20_000, floor: 0 });
  const passing = { code: 'STORE_UNAVAILABLE', retryable: true };

  beforeAll(async () => {
    server = await PostgresServer.start({ max_connections: 8, superuser_reserved_connections: 3 });
    admin = new pg.Client({ connectionString: server.url });
    await admin.connect();
    await open().check();
    await admin.query('CREATE ROLE application LOGIN');
    await admin.query('GRANT ALL ON ALL TABLES IN SCHEMA public TO application');
  });
  afterAll(async () => {
    for (const store of stores) await store.close();
    await admin.end();
    await server.stop();
  });
  const asApplication = () => {
    const url = new URL(server.url);
    url.username = 'application';
    return url.href;
  };

  it('without a free connection: unavailable; once there is one it goes on', async () => {
    for (const store of stores.splice(0)) await store.close();
    const taken: pg.Client[] = [];
    // As many as it takes: sessions that end just now count until they have.
    const isFull = async (): Promise<boolean> => {
      const client = new pg.Client({ connectionString: asApplication() });
      try {
        await client.connect();
        client.on('error', () => undefined);
        taken.push(client);
        return false;
      } catch (error) {
        return (error as { code?: string }).code === '53300';
      }
    };
    try {
      await eventually(isFull);
      const store = open(asApplication());
      await expect(take(store, 'key')).rejects.toMatchObject({
        ...passing,
        message: expect.stringContaining('53300'),
      });
      await expect(store.renew([{ key: 'key', owner: 'a', ttlMs: 1_000 }])).rejects.toMatchObject(passing);
      for (const client of taken.splice(0)) await client.end();
      const answer = await eventually(() => take(store, 'key').catch(() => undefined));
      expect(answer).toMatchObject({ granted: true });
    } finally {
      for (const client of taken) await client.end();
    }
  });

  it('read-only, as after a failover on a live connection: unavailable; what is held is neither renewed nor lost by it', async () => {
    const store = open();
    expect(await take(store, 'held')).toMatchObject({ granted: true });
    await admin.query('ALTER SYSTEM SET default_transaction_read_only = on');
    await admin.query('SELECT pg_reload_conf()');
    await eventually(async () => {
      const [row] = (await admin.query<{ on: string }>('SHOW default_transaction_read_only')).rows;
      return Object.values(row!)[0] === 'on';
    });
    try {
      await eventually(() =>
        take(store, 'other').then(
          () => false,
          () => true,
        ),
      );
      await expect(take(store, 'other')).rejects.toMatchObject({
        ...passing,
        message: expect.stringContaining('25006'),
      });
      const renewal = store.renew([{ key: 'held', owner: 'a', ttlMs: 20_000 }]);
      await expect(renewal).rejects.toMatchObject(passing);
      await expect(store.release({ key: 'held', owner: 'a' })).rejects.toMatchObject(passing);
    } finally {
      await admin.query('SET default_transaction_read_only = off');
      await admin.query('ALTER SYSTEM RESET default_transaction_read_only');
      await admin.query('SELECT pg_reload_conf()');
    }
    const renewed = await eventually(() =>
      store.renew([{ key: 'held', owner: 'a', ttlMs: 20_000 }]).catch(() => undefined),
    );
    expect(renewed).toEqual([true]);
  });

  it('whose rows somebody has locked by hand: unavailable after a bounded time, and no session is left waiting', async () => {
    const store = open();
    expect(await take(store, 'locked')).toMatchObject({ granted: true });
    const blocker = new pg.Client({ connectionString: server.url });
    await blocker.connect();
    try {
      await blocker.query('BEGIN');
      await blocker.query("SELECT 1 FROM fencing_lease WHERE key = 'locked' FOR UPDATE");
      const lockNotAvailable = { ...passing, message: expect.stringContaining('55P03') };
      await expect(store.release({ key: 'locked', owner: 'a' })).rejects.toMatchObject(lockNotAvailable);
      const waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
      expect((await admin.query(waiting)).rowCount).toBe(0);
      expect(await take(store, 'another')).toMatchObject({ granted: true });
      await blocker.query('ROLLBACK');
      expect(await store.release({ key: 'locked', owner: 'a' })).toEqual({ held: true });
    } finally {
      await blocker.end();
    }
  });

  it('whose statement was cancelled: unavailable, and nothing of the step remains', async () => {
    const store = open();
    const blocker = new pg.Client({ connectionString: server.url });
    await blocker.connect();
    try {
      // Somebody holds the lock of all buckets, as no program of the package does for longer than a statement.
      await blocker.query('BEGIN');
      await blocker.query('SELECT pg_advisory_xact_lock(1852206195, b) FROM generate_series(0, 63) AS b');
      const answer = take(store, 'blocked');
      await eventually(async () => {
        const cancel =
          "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%fencing_lease_steps%'";
        return (await admin.query(cancel)).rowCount === 1;
      });
      await expect(answer).rejects.toMatchObject({ ...passing, message: expect.stringContaining('57014') });
      await blocker.query('ROLLBACK');
      expect(await store.inspect('blocked')).toBeUndefined();
      expect(await take(store, 'blocked')).toMatchObject({ granted: true });
    } finally {
      await blocker.end();
    }
  });
});
