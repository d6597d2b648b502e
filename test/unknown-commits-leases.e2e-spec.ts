import { randomUUID } from 'node:crypto';
import { memoryLeases } from 'nestjs-fencing';
import type { EntityManager } from 'typeorm';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { freshDatabase } from './support/postgres-server.js';
import { TcpProxy } from './support/proxy.js';

const isCommit = (sql: string) => sql === 'COMMIT';

describe('a lease whose write had no answer to its COMMIT', () => {
  let database: Awaited<ReturnType<typeof freshDatabase>>;
  let proxy: TcpProxy;
  let app: FencedApp;
  let key: string;

  beforeAll(async () => {
    database = await freshDatabase();
    proxy = await TcpProxy.start(database.url);
    app = await startFencedApp({ leases: memoryLeases(), databaseUrl: proxy.url, poolSize: 1, entities: [] });
    await app.dataSource.query('CREATE TABLE effects (key text, text text)');
  });
  afterAll(async () => {
    await app.close();
    await proxy.stop();
    await database.drop();
  });
  beforeEach(() => {
    key = `key-${randomUUID()}`;
  });

  const write = (text: string, operation?: { id: string }) =>
    app.fencing.write({ operation }, async (manager: EntityManager) => {
      await manager.query('INSERT INTO effects VALUES ($1, $2)', [key, text]);
      return text;
    });
  const effects = async () => {
    const rows = await app.dataSource.query('SELECT text FROM effects WHERE key = $1 ORDER BY text', [key]);
    return (rows as { text: string }[]).map(({ text }) => text);
  };

  it('goes on as held where the operation turns out to be accepted, and counts it', async () => {
    await app.fencing.run(key, {}, async (lease) => {
      const lost = proxy.swallowReplyOnce(isCommit);
      expect(await write('first', { id: key })).toBe('first');
      await lost;
      expect(lease.state).toBe('held');
      expect(lease).toHaveProperty('acceptedWrites', 1);
      await write('second');
      expect(lease).toHaveProperty('acceptedWrites', 2);
    });
    expect(await effects()).toEqual(['first', 'second']);
  });

  it('goes on as held where it turns out not to be, and may send it again', async () => {
    await app.fencing.run(key, {}, async (lease) => {
      void proxy.loseRequestsFrom(isCommit).then(() => proxy.cutAll());
      await expect(write('first', { id: key })).rejects.toMatchObject({
        code: 'STORE_UNAVAILABLE',
        retryable: true,
      });
      expect(lease.state).toBe('held');
      expect(lease).toHaveProperty('acceptedWrites', 0);
      expect(await write('again', { id: key })).toBe('again');
    });
    expect(await effects()).toEqual(['again']);
  });

  it('ends as unsettled without an operation id', async () => {
    const call = app.fencing.run(key, {}, async (lease) => {
      void proxy.swallowReplyOnce(isCommit);
      await expect(write('first')).rejects.toMatchObject({ code: 'COMMIT_UNKNOWN' });
      expect(lease.state).toBe('lost');
      await expect(write('second')).rejects.toMatchObject({ code: 'LEASE_LOST', reason: 'unsettled' });
    });
    await expect(call).rejects.toMatchObject({ code: 'LEASE_LOST', reason: 'unsettled' });
    expect(await effects()).toEqual(['first']);
  });

  it('ends as unsettled where the operation could not be found out about', async () => {
    const call = app.fencing.run(key, { ttlMs: 400 }, async () => {
      void proxy.swallowReplyOnce(isCommit).then(() => proxy.refuse());
      await write('first', { id: key });
    });
    await expect(call).rejects.toMatchObject({ code: 'COMMIT_UNKNOWN', search: { code: 'ECONNREFUSED' } });
    await proxy.accept();
    expect(await effects()).toEqual(['first']);
    // Sent again under a new lease, it is a duplicate.
    expect(await app.fencing.run(key, {}, () => write('again', { id: key }))).toBe('first');
    expect(await effects()).toEqual(['first']);
  });
});
