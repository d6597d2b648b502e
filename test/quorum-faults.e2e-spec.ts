import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { FencingConfigError, type FencingError, type Lease, type LeaseStore } from 'nestjs-fencing';
import { quorumLeases } from 'nestjs-fencing/redis';
import { bucketOf } from '../libs/fencing/src/core/buckets.js';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { isAcquire, isRelease, isRenew } from './support/fault-bench.js';
import { Barrier, eventually, Gate } from './support/gate.js';
import { freshDatabase } from './support/postgres-server.js';
import { TcpProxy } from './support/proxy.js';
import { RedisServer } from './support/redis-server.js';

const TTL_MS = 60_000;

describe('fenced writes with leases at a quorum of real servers', () => {
  let servers: RedisServer[];
  let proxies: TcpProxy[];
  let database: Awaited<ReturnType<typeof freshDatabase>>;
  let clients: Redis[];
  let apps: FencedApp[];
  let key: string;

  const connect = (proxy: TcpProxy): Redis => {
    const client = new Redis(proxy.url);
    client.on('error', () => undefined); // some are killed
    clients.push(client);
    return client;
  };

  const begin = async (count: number, processes = 2) => {
    clients = [];
    servers = await Promise.all(Array.from({ length: count }, () => RedisServer.start()));
    proxies = await Promise.all(servers.map((server) => TcpProxy.start(server.url)));
    database = await freshDatabase();
    key = `report:${randomUUID()}`;
    apps = [];
    for (let i = 0; i < processes; i++)
      apps.push(
        await startFencedApp({
          leases: quorumLeases(proxies.map(connect), { nodeTimeoutMs: 500 }),
          databaseUrl: database.url,
        }),
      );
    await apps[0]!.dataSource.query('CREATE TABLE written (n serial, text text, generation bigint)');
  };
  afterEach(async () => {
    await Promise.all(apps.map((app) => app.close()));
    for (const client of clients) client.disconnect();
    await Promise.all(proxies.map((proxy) => proxy.stop()));
    await database.drop();
    await Promise.all(servers.map((server) => server.stop()));
  });

  const write = (app: FencedApp, lease: Lease, text: string) =>
    app.fencing.write({}, () =>
      app.dataSource.query('INSERT INTO written (text, generation) VALUES ($1, $2)', [
        text,
        lease.generation,
      ]),
    );
  const once = (app: FencedApp, text: string): Promise<number | undefined> =>
    app.fencing.run(key, { ttlMs: TTL_MS, waitMs: 20_000 }, async (lease) => {
      await write(app, lease, text);
      return lease.generation;
    });
  /** A holder in the middle of its work. */
  const hold = async (app: FencedApp, text: string) => {
    const [inside, end] = [new Gate(), new Gate()];
    let generation = 0;
    const outcome = app.fencing.run(key, { ttlMs: TTL_MS, waitMs: 20_000 }, async (lease) => {
      generation = lease.generation;
      inside.open();
      await end.wait();
      await write(app, lease, text);
    });
    outcome.catch(() => undefined);
    await Promise.race([inside.wait(), outcome]);
    return { generation, end, outcome };
  };
  const written = async (): Promise<{ text: string; generation: number }[]> => {
    const rows = await apps[0]!.dataSource.query<{ text: string; generation: string }[]>(
      'SELECT text, generation FROM written ORDER BY n',
    );
    return rows.map(({ text, generation }) => ({ text, generation: Number(generation) }));
  };
  const expectFreeEverywhere = () =>
    eventually(async () => {
      const left = await Promise.all(servers.map((server) => server.command('KEYS', `*:lease:${key}`)));
      return left.every((names) => (names as string[]).length === 0);
    });
  const expectRising = (generations: readonly (number | undefined)[]) =>
    expect(generations).toEqual([...new Set(generations)].sort((a, b) => a! - b!));

  it('field report 1: whichever majority of 5 answers while nodes freeze, die and come back empty, generations rise and nobody is refused', async () => {
    await begin(5);
    const generations: (number | undefined)[] = [];
    const work = async (times: number) => {
      for (let i = 0; i < times; i++) generations.push(await once(apps[i % 2]!, `${generations.length}`));
    };
    await work(4);
    servers[0]!.pause();
    await servers[1]!.kill();
    await work(6);
    servers[0]!.resume();
    await servers[1]!.restart({ empty: true });
    servers[2]!.pause();
    await work(6);
    servers[2]!.resume();
    await servers[3]!.kill();
    await servers[4]!.command('FLUSHALL');
    await work(6);
    expectRising(generations);
    expect((await written()).map(({ generation }) => generation)).toEqual(generations);
  });

  it('field report 16: counters lost on a majority that ran ahead of the clock: the next holder is above, the former one is refused', async () => {
    await begin(3);
    const counter = `fencing:{${bucketOf(key)}}:generation`;
    const ahead = (Date.now() + 3_600_000) * 1_000;
    for (const server of servers) await server.command('SET', counter, ahead);
    const former = await hold(apps[0]!, 'late');
    expect(former.generation).toBeGreaterThan(ahead);
    await servers[0]!.kill();
    await servers[0]!.restart({ empty: true });
    await servers[1]!.command('FLUSHALL');
    // The third remembers; without it the quorum has nothing but clocks.
    await servers[2]!.kill();
    const next = await once(apps[1]!, 'next');
    expect(next).toBeGreaterThan(former.generation);
    former.end.open();
    await expect(former.outcome).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    expect((await written()).map(({ text }) => text)).toEqual(['next']);
  });

  it('a lease outlives the death of one node of three, is renewed by the others and excludes everybody else', async () => {
    await begin(3);
    const ttlMs = 3_000;
    const [inside, end] = [new Gate(), new Gate()];
    const outcome = apps[0]!.fencing.run(key, { ttlMs }, async (lease) => {
      inside.open();
      await end.wait();
      await write(apps[0]!, lease, 'first');
    });
    await Promise.race([inside.wait(), outcome]);
    await servers[0]!.kill();
    const began = performance.now();
    const others: unknown[] = [];
    // Longer than its ttl. On a busy machine a request may find no answer within its wait: granted it must never be.
    while (performance.now() - began < ttlMs * 1.5)
      others.push(
        await apps[1]!.fencing
          .run(key, { waitMs: 500 }, async () => 'granted')
          .catch((error: FencingError) => error.code),
      );
    expect(others).not.toContain('granted');
    expect(others).toContain('LEASE_BUSY');
    end.open();
    await outcome;
    await once(apps[1]!, 'second');
    expect((await written()).map(({ text }) => text)).toEqual(['first', 'second']);
  });

  it('with a majority frozen it is unavailable in time, never busy, and goes on when they wake', async () => {
    await begin(3);
    await once(apps[0]!, 'before');
    servers[0]!.pause();
    servers[1]!.pause();
    await expect(apps[0]!.fencing.run(key, { waitMs: 0 }, async () => undefined)).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
      retryable: true,
    });
    servers[0]!.resume();
    servers[1]!.resume();
    await once(apps[1]!, 'after');
    // What was asked of the frozen nodes is taken back: nobody keeps the key for its ttl.
    await expectFreeEverywhere();
  });

  it.each([
    ['acquire', isAcquire],
    ['renew', isRenew],
    ['release', isRelease],
  ])(
    'field report 14: the reply to %s is lost at a majority: the call ends well and nobody keeps the key',
    async (_, is) => {
      await begin(3);
      const before = await once(apps[0]!, 'before');
      const lost = proxies.slice(0, 2).map((proxy) => proxy.swallowReplyOnce(is));
      const generation = await apps[0]!.fencing.run(key, { ttlMs: 6_000, waitMs: 20_000 }, async (lease) => {
        // A renewal is sent at a third of the ttl.
        if (is === isRenew) await Promise.all(lost);
        await write(apps[0]!, lease, 'during');
        return lease.generation;
      });
      await Promise.all(lost);
      await expectFreeEverywhere();
      const after = await once(apps[1]!, 'after');
      expectRising([before, generation, after]);
      expect((await written()).map(({ text }) => text)).toEqual(['before', 'during', 'after']);
    },
  );

  it('field report 33: nodes that forget the script are told it again, in the middle of a lease', async () => {
    await begin(3);
    const holder = await hold(apps[0]!, 'first');
    for (const server of servers) await server.command('SCRIPT', 'FLUSH');
    holder.end.open();
    await holder.outcome;
    for (const server of servers) await server.command('SCRIPT', 'FLUSH');
    await once(apps[1]!, 'second');
    expect((await written()).map(({ text }) => text)).toEqual(['first', 'second']);
  });

  it('R2: two processes that take two keys in opposite orders both get them', async () => {
    await begin(3);
    const keys = [`${key}:a`, `${key}:b`];
    let inside = 0;
    const take = async (app: FencedApp, order: string[]) => {
      for (let i = 0; i < 5; i++)
        await app.fencing.run(order, { ttlMs: TTL_MS, waitMs: 25_000 }, async () => {
          expect(++inside).toBe(1);
          await new Promise(setImmediate);
          inside -= 1;
        });
    };
    await Promise.all([take(apps[0]!, keys), take(apps[1]!, [...keys].reverse())]);
  });

  it('contended by four applications, ten tasks each: all have their turn, mixed, and nobody polls', async () => {
    await begin(3, 4);
    const order: number[] = [];
    const [all, start] = [new Barrier(4), new Gate()];
    const tasks = apps.map(async (app, at) => {
      await all.arrive();
      await start.wait();
      await Promise.all(
        Array.from({ length: 10 }, () =>
          app.fencing.run(key, { ttlMs: TTL_MS, waitMs: 60_000 }, async () => {
            order.push(at);
            // Longer than a process may keep a key for itself.
            await new Promise((resolve) => setTimeout(resolve, 12));
          }),
        ),
      );
    });
    for (const proxy of proxies) proxy.forget();
    start.open();
    await Promise.all(tasks);
    const changes = order.filter((at, i) => i > 0 && order[i - 1] !== at).length;
    expect(order).toHaveLength(40);
    expect(changes).toBeGreaterThanOrEqual(20);
    const sent = proxies.map((proxy) => proxy.count('EVALSHA') / 40);
    // About four: a release that wakes, an acquisition and what it takes to agree.
    for (const perTask of sent) expect(perTask).toBeLessThan(8);
  });

  it('R5: a version with a shorter ttl does not take the key before the ttl of its holder', async () => {
    await begin(3);
    const holder = await hold(apps[0]!, 'first');
    for (let i = 0; i < 3; i++)
      await expect(
        apps[1]!.fencing.run(key, { ttlMs: 100, waitMs: 300 }, async () => undefined),
      ).rejects.toMatchObject({ code: 'LEASE_BUSY' });
    holder.end.open();
    await holder.outcome;
    expect((await written()).map(({ text }) => text)).toEqual(['first']);
  });
});

describe('quorumLeases', () => {
  let servers: RedisServer[];
  let clients: Redis[];
  let store: LeaseStore | undefined;
  beforeAll(async () => {
    servers = await Promise.all([1, 2, 3].map(() => RedisServer.start()));
  });
  afterAll(() => Promise.all(servers.map((server) => server.stop())));
  beforeEach(() => {
    clients = [...servers, servers[0]!].map((server) => new Redis(server.url));
  });
  afterEach(async () => {
    await store?.close();
    store = undefined;
    for (const client of clients) client.disconnect();
  });

  it.each([
    ['no nodes', () => quorumLeases([]), /0 nodes are too few/],
    ['two nodes', () => quorumLeases(clients.slice(0, 2)), /2 nodes are too few: a majority of two is both/],
    [
      'one client twice',
      () => quorumLeases([clients[0]!, clients[1]!, clients[0]!]),
      /nodes 1 and 3 are the same server/,
    ],
    [
      'two databases of one server',
      () => quorumLeases([{ url: 'redis://h:1/0' }, { url: 'redis://h:1/1' }, { url: 'redis://i:1' }]),
      /nodes 1 and 2 are the same server/,
    ],
    [
      'no client',
      () => quorumLeases([{} as never, clients[0]!, clients[1]!]),
      /node 1 must be an ioredis client, or \{ url \}/,
    ],
    ['a wrong option', () => quorumLeases(clients.slice(0, 3), { drift: 1 } as never), /no option "drift"/],
    [
      'a wrong time',
      () => quorumLeases(clients.slice(0, 3), { nodeTimeoutMs: 1.5 }),
      /nodeTimeoutMs must be a whole number/,
    ],
    [
      'a prefix with braces',
      () => quorumLeases(clients.slice(0, 3), { prefix: '{a}' }),
      /prefix must be text/,
    ],
  ])('refuses %s', (_, make, message) => {
    expect(make).toThrow(FencingConfigError);
    expect(make).toThrow(message);
  });

  it('refuses at boot two clients that reach one server by different names', async () => {
    store = quorumLeases([clients[1]!, clients[0]!, clients[3]!]);
    await expect(store.check()).rejects.toThrow(/node 2 and node 3 are the same Redis server/);
  });

  it('warns of an even number of nodes, of a replica, and of a node that is not there', async () => {
    const more = await RedisServer.start(['--replicaof', '127.0.0.1', String(servers[0]!.port)]);
    const fourth = new Redis(more.url);
    fourth.on('error', () => undefined);
    try {
      store = quorumLeases([...clients.slice(0, 3), fourth], { nodeTimeoutMs: 1_000 });
      const problems = async () => (await store!.check()).map(({ problem }) => problem).join(' ');
      expect(await problems()).toMatch(/has 4 nodes, an even number.*Node 4 is a replica/);
      await more.kill();
      expect(await problems()).toMatch(/Node 4 of quorumLeases does not answer/);
    } finally {
      fourth.disconnect();
      await more.stop();
    }
  });

  it('opens nodes that are given by their URL, and closes those only', async () => {
    store = await quorumLeases([clients[0]!, { url: servers[1]!.url }, { url: servers[2]!.url }]);
    expect(await store.check()).toEqual([]);
    const request = { key: randomUUID(), owner: 'a', ttlMs: 10_000, floor: 0 };
    expect(await store.acquire(request)).toMatchObject({ granted: true });
    await store.release(request);
    await store.close();
    expect(await clients[0]!.ping()).toBe('PONG');
    const connected = async () =>
      String(await clients[1]!.call('CLIENT', 'LIST'))
        .trim()
        .split('\n').length;
    await eventually(async () => (await connected()) === 1);
  });
});
