import { randomUUID } from 'node:crypto';
import { afterEach, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import type { FencingModuleOptions, Lease } from 'nestjs-fencing';
import { quorumLeases, redisLeases } from 'nestjs-fencing/redis';
import { memoryLeases, type MemoryLeaseStore } from 'nestjs-fencing/testing';
import { postgresLeases } from 'nestjs-fencing/typeorm';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { Gate } from './support/gate.js';
import { freshDatabase } from './support/postgres-server.js';
import { RedisServer } from './support/redis-server.js';

/** A deployment that changes its lease store while leases are alive: each step is an application with the next store. */
describe('a deployment that moves to another lease store, over one fence', () => {
  const closing: (() => Promise<unknown>)[] = [];
  afterEach(async () => {
    for (const close of closing.splice(0).reverse()) await close();
  });

  const begin = async () => {
    const database = await freshDatabase();
    closing.push(() => database.drop());
    const redis = new Redis(process.env.REDIS_URL!);
    closing.push(() => redis.quit());
    const prefix = `moving-${randomUUID()}`;
    const stores: Record<string, () => FencingModuleOptions['leases']> = {
      memory: () => memoryLeases(),
      postgres: () => postgresLeases({ ensureSchema: true }),
      redis: () => redisLeases(redis, { prefix }),
      quorum: async () => {
        const nodes = await Promise.all([1, 2, 3].map(() => RedisServer.start()));
        const clients = nodes.map((node) => new Redis(node.url));
        closing.push(async () => {
          for (const client of clients) client.disconnect();
          await Promise.all(nodes.map((node) => node.stop()));
        });
        return quorumLeases(clients);
      },
    };
    const start = async (leases: FencingModuleOptions['leases']): Promise<FencedApp> => {
      const app = await startFencedApp({ leases, databaseUrl: database.url });
      closing.push(() => app.close());
      await app.dataSource.query(
        'CREATE TABLE IF NOT EXISTS written (n serial, text text, generation bigint)',
      );
      return app;
    };
    return { stores, start };
  };
  const write = (app: FencedApp, lease: Lease, text: string) =>
    app.fencing.write({}, () =>
      app.dataSource.query('INSERT INTO written (text, generation) VALUES ($1, $2)', [
        text,
        lease.generation,
      ]),
    );
  /** A holder that is in the middle of its work. */
  const hold = async (app: FencedApp, text: string) => {
    const [inside, end] = [new Gate(), new Gate()];
    let generation = 0;
    const outcome = app.fencing.run('key', { ttlMs: 60_000, waitMs: 10_000 }, async (lease) => {
      generation = lease.generation;
      await write(app, lease, `${text}: first`);
      inside.open();
      await end.wait();
      await write(app, lease, `${text}: second`);
    });
    outcome.catch(() => undefined);
    await Promise.race([inside.wait(), outcome]);
    return { generation, end, outcome };
  };
  const written = async (app: FencedApp) =>
    (
      await app.dataSource.query<{ text: string; generation: string }[]>('SELECT * FROM written ORDER BY n')
    ).map(({ text, generation }) => ({ text, generation: Number(generation) }));

  it('I1, I2: memory → Postgres → Redis → quorum → Postgres: each new holder is above the one before, which is refused though its lease lives', async () => {
    const { stores, start } = await begin();
    const path = ['memory', 'postgres', 'redis', 'quorum', 'postgres'];
    const holders: Awaited<ReturnType<typeof hold>>[] = [];
    let last!: FencedApp;
    for (const [i, name] of path.entries()) {
      // The second visit of Postgres meets the lease of the first, which is alive: it ends as a rolled-out instance does.
      if (i === 4) holders[1]!.end.open();
      if (i === 4) await expect(holders[1]!.outcome).rejects.toMatchObject({ code: 'STALE_GENERATION' });
      last = await start(stores[name]!());
      holders.push(await hold(last, `${i} ${name}`));
    }
    const generations = holders.map(({ generation }) => generation);
    expect(generations).toEqual([...new Set(generations)].sort((a, b) => a - b));
    for (const { end, outcome } of holders.slice(0, 4)) {
      end.open();
      await expect(outcome).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    }
    holders[4]!.end.open();
    await holders[4]!.outcome;
    const rows = await written(last);
    expect(rows.map(({ text }) => text)).toEqual([
      '0 memory: first',
      '1 postgres: first',
      '2 redis: first',
      '3 quorum: first',
      '4 postgres: first',
      '4 postgres: second',
    ]);
    const order = rows.map(({ generation }) => generation);
    expect(order).toEqual([...order].sort((a, b) => a - b));
  });

  it('I7: a store whose clock is behind is healed by the fence: the first holder in it is above all before', async () => {
    const { stores, start } = await begin();
    const ahead: MemoryLeaseStore = memoryLeases({
      wallClockUs: () => Math.floor((performance.timeOrigin + performance.now() + 3_600_000) * 1_000),
    });
    const before = await start(ahead);
    const old = await hold(before, 'an hour ahead');
    for (const name of ['postgres', 'redis', 'quorum']) {
      const app = await start(stores[name]!());
      const { generation, end, outcome } = await hold(app, name);
      expect(generation).toBeGreaterThan(old.generation);
      end.open();
      await outcome;
    }
    old.end.open();
    await expect(old.outcome).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    const order = (await written(before)).map(({ generation }) => generation);
    expect(order).toHaveLength(7);
    expect(order).toEqual([...order].sort((a, b) => a - b));
  });
});
