import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { Cluster, Redis } from 'ioredis';
import { FencingConfigError, type LeaseStore } from 'nestjs-fencing';
import { type RedisClient, redisLeases } from 'nestjs-fencing/redis';
import { eventually } from './support/gate.js';
import { TcpProxy } from './support/proxy.js';
import { RedisServer } from './support/redis-server.js';

const request = { key: 'report:42', owner: 'a', ttlMs: 60_000, floor: 0 };
const successor = { owner: 'b', ttlMs: 60_000, waiterId: 'mine', forMs: 60_000 };

describe('redisLeases({ replicas })', () => {
  let primary: RedisServer;
  let replica: RedisServer;
  let proxy: TcpProxy;
  let redis: Redis;
  let store: LeaseStore;

  beforeAll(async () => {
    primary = await RedisServer.start(['--repl-diskless-sync-delay', '0']);
    replica = await RedisServer.start(['--replicaof', '127.0.0.1', String(primary.port)]);
    proxy = await TcpProxy.start(primary.url);
  });
  afterAll(async () => {
    await proxy.stop();
    await replica.stop();
    await primary.stop();
  });
  beforeEach(async () => {
    redis = new Redis(proxy.url);
    store = redisLeases(redis, { replicas: { min: 1, timeoutMs: 1_000 } });
    // The primary counts a replica from its first acknowledgement on, which may be a second after the link is up.
    await eventually(async () =>
      String(await primary.command('INFO', 'replication')).includes('state=online'),
    );
    await primary.command('FLUSHALL');
    proxy.forget();
  });
  afterEach(async () => {
    replica.resume();
    await store.close();
    redis.disconnect();
  });

  it('gives a grant once the replica has it', async () => {
    const answer = await store.acquire(request);
    expect(answer.granted).toBe(true);
    const there = (await replica.command('KEYS', '*:lease:report:42')) as string[];
    expect(there).toHaveLength(1);
  });

  it('hands over once the replica has it', async () => {
    await store.acquire(request);
    expect((await store.release({ ...request, successor })).successor).toHaveProperty('generation');
    const [name] = (await replica.command('KEYS', '*:lease:report:42')) as string[];
    expect(await replica.command('GET', name!)).toMatch(/^b \d+/);
  });

  it('gives a grant back that no replica confirms in time, and is unavailable', async () => {
    replica.pause();
    await expect(store.acquire(request)).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
      retryable: true,
      message: expect.stringMatching(/0 of 1 replicas confirmed the grant within 1000 ms; it was given back/),
    });
    expect(await primary.command('KEYS', '*:lease:*')).toEqual([]);
    replica.resume();
    await eventually(async () => (await store.acquire(request).catch(() => undefined))?.granted);
  });

  it('hands nothing over that no replica confirms: the successor asks for itself', async () => {
    await store.acquire(request);
    replica.pause();
    expect(await store.release({ ...request, successor })).toEqual({ held: true });
    expect(await primary.command('KEYS', '*:lease:*')).toEqual([]);
  });

  it('does not give back what its owner held before it asked for more', async () => {
    const answer = await store.acquire(request);
    replica.pause();
    const floor = (answer as { generation: number }).generation + 1_000;
    await expect(store.acquire({ ...request, floor })).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
    expect(await primary.command('KEYS', '*:lease:*')).toHaveLength(1);
  });

  it('renewals, releases and refusals wait for nobody, and grants that come together wait once', async () => {
    await Promise.all([1, 2, 3, 4, 5].map((n) => store.acquire({ ...request, key: `report:${n}` })));
    expect(proxy.count('WAIT')).toBeLessThanOrEqual(2);
    proxy.forget();
    await store.renew([{ ...request, key: 'report:1' }]);
    await store.acquire({ ...request, key: 'report:1', owner: 'other' });
    await store.release({ ...request, key: 'report:1' });
    await store.withdraw('report:1', 'w');
    expect(proxy.count('WAIT')).toBe(0);
  });

  it('without the option nothing is sent but the step itself', async () => {
    const plain = redisLeases(redis);
    await plain.acquire(request);
    proxy.forget();
    await plain.acquire({ ...request, key: 'report:7' });
    await plain.release({ ...request, key: 'report:7', successor });
    expect(proxy.requests.map(({ type }) => type.toUpperCase())).toEqual(['EVALSHA', 'EVALSHA']);
    await plain.close();
  });

  it('says at boot that there are fewer replicas than it waits for', async () => {
    const more = redisLeases(redis, { replicas: { min: 2 } });
    const problems = (await more.check()).map(({ problem }) => problem);
    expect(problems).toEqual([expect.stringMatching(/waits for 2 replicas .*, and 1 are connected/)]);
    expect(await store.check()).toEqual([]);
    await more.close();
  });

  it('refuses a Cluster client, whose WAIT would ask some other node', () => {
    const cluster = new Cluster([{ host: '127.0.0.1', port: 1 }], { lazyConnect: true });
    const make = () => redisLeases(cluster as unknown as RedisClient, { replicas: { min: 1 } });
    expect(make).toThrow(FencingConfigError);
    expect(make).toThrow(/WAIT does not work through a Cluster client/);
    cluster.disconnect();
  });

  it.each([
    [{ min: 0 }, /min must be a whole number, 1 or more, got 0/],
    [{ min: 1.5 }, /min must be a whole number/],
    [{ min: 1, timeoutMs: 0 }, /timeoutMs must be a whole number of milliseconds from 1/],
    [{ min: 1, wait: 3 }, /no option "wait"/],
    // Not left out, but computed wrongly: nobody would be waited for, in silence.
    [null, /replicas: options must be an object, got null/],
    [0, /got 0/],
    [NaN, /got NaN/],
    ['', /got ''/],
  ])('refuses %j', (replicas, message) => {
    expect(() => redisLeases(redis, { replicas } as never)).toThrow(FencingConfigError);
    expect(() => redisLeases(redis, { replicas } as never)).toThrow(message);
  });
});
