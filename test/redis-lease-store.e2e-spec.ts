import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, jest } from '@jest/globals';
import { Redis } from 'ioredis';
import { Redis as Redis5 } from 'ioredis5';
import type { LeaseStore, WakeHint } from 'nestjs-fencing';
import { type RedisClient, redisLeases } from 'nestjs-fencing/redis';
import { HOSTILE_KEYS, leaseStoreContract } from 'nestjs-fencing/testing';
import { bucketOf } from '../libs/fencing/src/core/buckets.js';
import { eventually } from './support/gate.js';
import { RedisServer } from './support/redis-server.js';

/** Both majors that the package supports; their types differ, what the package uses of them does not. */
const CLIENTS = [
  ['6', (url: string, options: object) => new Redis(url, options)],
  ['5', (url: string, options: object) => new Redis5(url, options) as unknown as Redis],
] as const;

describe.each(CLIENTS)('leases in Redis over ioredis %s', (_, connect) => {
  let redis: Redis;
  let prefix: string;
  let store: LeaseStore;
  let key: string;

  beforeAll(() => {
    redis = connect(process.env.REDIS_URL!, {});
  });
  afterAll(() => redis.quit());
  beforeEach(() => {
    prefix = `test-${randomUUID()}`;
    store = redisLeases(redis as RedisClient, { prefix });
    key = 'report:42';
  });
  afterEach(() => store.close());

  const names = () => {
    const bucket = `${prefix}:{${bucketOf(key)}}`;
    return {
      lease: `${bucket}:lease:${key}`,
      waiters: `${bucket}:waiters:${key}`,
      counter: `${bucket}:generation`,
    };
  };
  const acquire = (owner: string, more = {}) =>
    store.acquire({ key, owner, ttlMs: 10_000, floor: 0, ...more });
  const granted = async (owner: string, more = {}) => {
    const answer = await acquire(owner, more);
    if (!answer.granted) throw new Error('busy');
    return answer.generation;
  };

  describe('the contract', () => {
    // Connections of their own, as processes have them.
    leaseStoreContract({ describe, it }, () => {
      const own = `test-${randomUUID()}`;
      const clients: Redis[] = [];
      return {
        open: () => {
          const client = connect(process.env.REDIS_URL!, {});
          clients.push(client);
          return redisLeases(client as RedisClient, { prefix: own });
        },
        lose: async () => {
          const keys = await redis.keys(`${own}:*`);
          if (keys.length > 0) await redis.del(keys);
        },
        close: async () => {
          await Promise.all(clients.map((client) => client.quit()));
        },
      };
    });
  });

  it('never leaves a key without expiry, whatever step made or changed it', async () => {
    const expiries = async () => {
      const { lease, waiters } = names();
      for (const name of [lease, waiters]) expect(await redis.pttl(name)).not.toBe(-1);
      return redis.pttl(lease);
    };
    const waiter = { id: 'w', forMs: 5_000 };
    const successor = { owner: 's', ttlMs: 10_000, waiterId: 'me', forMs: 5_000 };
    const first = await granted('a');
    expect(await expiries()).toBeGreaterThan(9_000);
    await acquire('a');
    expect(await expiries()).toBeGreaterThan(9_000);
    await acquire('a', { floor: first + 2 ** 40 });
    expect(await expiries()).toBeGreaterThan(9_000);
    await store.renew([{ key, owner: 'a', ttlMs: 20_000 }]);
    expect(await expiries()).toBeGreaterThan(19_000);
    await acquire('b', { waiter });
    await store.release({ key, owner: 'a', successor });
    expect(await expiries()).toBeGreaterThan(0);
    await acquire('b', { waiter });
    expect(await expiries()).toBeGreaterThan(9_000);
    await store.withdraw(key, 'me');
    await store.release({ key, owner: 'b', successor });
    expect(await expiries()).toBeGreaterThan(9_000);
    await store.release({ key, owner: 's', holdMs: 5_000 });
    expect(await expiries()).toBeGreaterThan(0);
  });

  it('a process that waits is not forgotten by hand-overs inside another process', async () => {
    await granted('a');
    await acquire('theirs', { waiter: { id: 'theirs', forMs: 60_000 } });
    for (const [owner, next] of [
      ['a', 'b'],
      ['b', 'c'],
    ] as const) {
      const successor = { owner: next, ttlMs: 10_000, waiterId: 'mine', forMs: 60_000, mayOvertake: true };
      expect((await store.release({ key, owner, successor })).successor).toHaveProperty('generation');
    }
    await store.release({ key, owner: 'c' });
    expect(await redis.get(names().lease)).toBe('> theirs');
  });

  it('a process that gets its key leaves the line, however the key became free', async () => {
    const waiter = { id: 'mine', forMs: 60_000 };
    await granted('a');
    await acquire('b', { waiter });
    expect(await redis.lrange(names().waiters, 0, -1)).toEqual(['mine']);
    // As an expiry frees it: nobody is woken.
    await redis.del(names().lease);
    await granted('b', { waiter });
    expect(await redis.exists(names().waiters)).toBe(0);
    expect(await redis.get(names().lease)).toMatch(/^b \d+$/);
  });

  it('keeps the expiry of a lease within the ttl asked for', async () => {
    await granted('a', { ttlMs: 1_500 });
    const left = await redis.pttl(names().lease);
    expect(left).toBeLessThanOrEqual(1_500);
    expect(left).toBeGreaterThan(1_000);
  });

  it("issues its server's clock in microseconds while the counter is behind it", async () => {
    const before = microseconds(await redis.time());
    const generation = await granted('a');
    const after = microseconds(await redis.time());
    expect(generation).toBeGreaterThanOrEqual(before);
    expect(generation).toBeLessThanOrEqual(after);
    // As digits: an exponent would round it.
    expect(await redis.get(names().counter)).toBe(String(generation));
    expect(await redis.get(names().lease)).toBe(`a ${generation}`);
  });

  it('counts on from a counter that is ahead of its clock, one by one', async () => {
    const ahead = microseconds(await redis.time()) + 3_600_000_000;
    await redis.set(names().counter, ahead);
    expect(await granted('a')).toBe(ahead + 1);
    await store.release({ key, owner: 'a' });
    expect(await granted('b')).toBe(ahead + 2);
  });

  it.each(['', 'not a number'])('starts from the clock when its counter holds %j', async (broken) => {
    await redis.set(names().counter, broken);
    expect(await granted('a')).toBeGreaterThan(1_700_000_000_000_000);
  });

  it('issues above all earlier ones after the counter was lost', async () => {
    const first = await granted('a');
    await redis.del(names().counter, names().lease);
    expect(await granted('b')).toBeGreaterThan(first);
  });

  it('keeps to the keyPrefix of a client: one prefix, one world; hints arrive', async () => {
    const [mine, same, other] = ['mine:', 'mine:', 'other:'].map((keyPrefix) =>
      connect(process.env.REDIS_URL!, { keyPrefix }),
    ) as [Redis, Redis, Redis];
    const [mineStore, sameStore, otherStore] = [mine, same, other].map((client) =>
      redisLeases(client as RedisClient, { prefix }),
    ) as [LeaseStore, LeaseStore, LeaseStore];
    const take = (from: LeaseStore, owner: string, waiter?: { id: string; forMs: number }) =>
      from.acquire({ key, owner, ttlMs: 10_000, floor: 0, waiter });

    expect((await take(mineStore, 'a')).granted).toBe(true);
    expect(await redis.exists(`mine:${names().lease}`)).toBe(1);
    const hints: WakeHint[] = [];
    const watch = sameStore.watch(key, (hint) => hints.push(hint), performance.now());
    await watch.live;
    expect((await take(sameStore, 'b', { id: 'w', forMs: 5_000 })).granted).toBe(false);
    expect((await take(otherStore, 'c')).granted).toBe(true);
    await mineStore.release({ key, owner: 'a' });
    await eventually(() => hints.some(({ waiterId }) => waiterId === 'w'));
    watch.stop();
    await Promise.all([mineStore, sameStore, otherStore].map((one) => one.close()));
    await Promise.all([mine, same, other].map((client) => client.quit()));
  });

  it('understands a client that answers numbers as texts (stringNumbers)', async () => {
    const client = connect(process.env.REDIS_URL!, { stringNumbers: true });
    const texts = redisLeases(client as RedisClient, { prefix });
    const request = { key, owner: 'a', ttlMs: 10_000 };
    const generation = await granted('a');
    expect(await texts.acquire({ ...request, floor: 0 })).toEqual({ granted: true, generation });
    expect(await texts.acquire({ ...request, owner: 'b', floor: 0 })).toMatchObject({ granted: false });
    expect(await texts.renew([request, { ...request, owner: 'b' }])).toEqual([true, false]);
    expect(await texts.inspect(key)).toEqual({ owner: 'a', generation, remainingMs: expect.any(Number) });
    const successor = { owner: 'b', ttlMs: 10_000, waiterId: 'w', forMs: 0, mayOvertake: true };
    const handed = await texts.release({ key, owner: 'a', successor });
    expect(handed).toMatchObject({ held: true, successor: { generation: expect.any(Number) } });
    await redis.set(names().lease, 'b 1');
    await redis.set(names().counter, String(Number.MAX_SAFE_INTEGER));
    await expect(texts.acquire({ ...request, owner: 'b', floor: 1 })).rejects.toMatchObject({
      code: 'GENERATIONS_EXHAUSTED',
    });
    await client.quit();
  });

  it('fails a step alone: those that share its request are done', async () => {
    await redis.lpush(names().lease, 'a list');
    const other = { key: 'report:43', owner: 'a', ttlMs: 10_000 };
    const [mine, theirs] = await Promise.allSettled([acquire('a'), store.acquire({ ...other, floor: 0 })]);
    expect(mine).toMatchObject({ status: 'rejected', reason: { code: 'STORE_UNAVAILABLE' } });
    expect(theirs).toMatchObject({ status: 'fulfilled', value: { granted: true } });
    expect(await store.renew([{ ...other, key }, other])).toEqual([false, true]);
    const ends = [store.release({ key, owner: 'a' }), store.withdraw(key, 'w'), store.release(other)];
    expect((await Promise.allSettled(ends)).map(({ status }) => status)).toEqual([
      'rejected',
      'rejected',
      'fulfilled',
    ]);
    expect(await store.inspect(other.key)).toBeUndefined();
    await redis.del(names().lease);
  });

  it('leaves a client that the application made open when it closes', async () => {
    const watch = store.watch(key, () => undefined, performance.now());
    await watch.live;
    await store.close();
    expect(await redis.ping()).toBe('PONG');
  });

  it("treats a key that somebody else made as busy, or as the store's failure, and never touches it", async () => {
    await redis.set(names().lease, 'not ours');
    expect(await acquire('a')).toEqual({ granted: false, remainingMs: 10_000 });
    expect(await store.inspect(key)).toBeUndefined();
    expect(await store.release({ key, owner: 'a' })).toEqual({ held: false });
    expect(await redis.get(names().lease)).toBe('not ours');
    await redis.del(names().lease);
    await redis.lpush(names().lease, 'a list');
    const refused = { code: 'STORE_UNAVAILABLE', retryable: false };
    await expect(acquire('a')).rejects.toMatchObject(refused);
    await expect(store.release({ key, owner: 'a' })).rejects.toMatchObject(refused);
    expect(await store.renew([{ key, owner: 'a', ttlMs: 10_000 }])).toEqual([false]);
    expect(await redis.lrange(names().lease, 0, -1)).toEqual(['a list']);
    await redis.del(names().lease);
  });
});

describe('a Redis of its own', () => {
  let server: RedisServer | undefined;
  let redis: Redis | undefined;
  const start = async (...args: string[]) => {
    server = await RedisServer.start(args);
    redis = new Redis(server.url);
    redis.on('error', () => undefined);
    await redis.ping();
    return redisLeases(redis);
  };
  const take = (store: LeaseStore, key: string, owner: string, ttlMs = 10_000) =>
    store.acquire({ key, owner, ttlMs, floor: 0, waiter: { id: 'w', forMs: 1_000 } });

  afterEach(async () => {
    redis?.disconnect();
    await server?.stop();
  });

  it('keeps all that belongs to a key in one slot of a cluster, also with braces in the key', async () => {
    const store = await start('--cluster-enabled', 'yes');
    await server!.command('CLUSTER', 'ADDSLOTSRANGE', 0, 16383);
    await eventually(async () => String(await redis!.call('CLUSTER', 'INFO')).includes('cluster_state:ok'));
    for (const key of HOSTILE_KEYS) {
      expect((await take(store, key, 'a')).granted).toBe(true);
      expect((await take(store, key, 'b')).granted).toBe(false);
      expect(await store.renew([{ key, owner: 'a', ttlMs: 10_000 }])).toEqual([true]);
      await store.withdraw(key, 'w');
      expect(await store.release({ key, owner: 'a' })).toEqual({ held: true });
    }
  });

  it('works on when the server has forgotten its scripts', async () => {
    const store = await start();
    const forget = () => redis!.call('SCRIPT', 'FLUSH');
    expect((await take(store, 'key', 'a')).granted).toBe(true);
    await forget();
    expect((await take(store, 'key', 'a')).granted).toBe(true);
    await forget();
    expect(await store.renew([{ key: 'key', owner: 'a', ttlMs: 10_000 }])).toEqual([true]);
    await forget();
    expect(await store.inspect('key')).toMatchObject({ owner: 'a' });
    await forget();
    expect(await store.release({ key: 'key', owner: 'a' })).toEqual({ held: true });
    await forget();
    await store.withdraw('key', 'w');
  });

  it('field report R1 / I11: 100 000 distinct keys leave no more than one counter per bucket', async () => {
    const store = await start();
    const keys = Array.from({ length: 100_000 }, (_, i) => `customer:${i}`);
    for (let from = 0; from < keys.length; from += 1_000) {
      const some = keys.slice(from, from + 1_000);
      // Every other one is left to its ttl, as a crashed process leaves it.
      await Promise.all(some.map((key, i) => take(store, key, 'a', i % 2 ? 100 : 60_000)));
      await Promise.all(some.filter((_, i) => i % 2 === 0).map((key) => store.release({ key, owner: 'a' })));
    }
    await eventually(async () => (await redis!.dbsize()) <= 64, { timeoutMs: 30_000 });
    expect((await redis!.keys('*')).every((name) => name.endsWith(':generation'))).toBe(true);
  });

  it('sends what is asked for together in few requests: the first one soon, and none too large', async () => {
    const store = await start();
    const keys = Array.from({ length: 30 }, (_, i) => `customer:${i}`);
    // The script is known, and so is that steps come together.
    await Promise.all(keys.map((key) => take(store, key, 'a', 60_000)));
    const sent = jest.spyOn(redis!, 'evalsha');
    await Promise.all(keys.map((key) => store.release({ key, owner: 'a' })));
    await Promise.all(keys.map((key) => take(store, key, 'b', 60_000)));
    const steps = sent.mock.calls.map(([, ...args]) => Number(args[0]) / 3);
    expect(steps).toEqual([4, 8, 8, 8, 2, 4, 8, 8, 8, 2]);
  });

  it('takes and releases a key that nobody waits for by six commands and a look at the clock', async () => {
    const store = await start();
    await take(store, 'warm', 'up', 60_000);
    const commands = async () => {
      const calls = [...(await redis!.info('commandstats')).matchAll(/^cmdstat_(\w+):calls=(\d+)/gm)];
      return Object.fromEntries(calls.map(([, name, count]) => [name, Number(count)]));
    };
    await redis!.config('RESETSTAT');
    for (let i = 0; i < 10; i++) {
      const waiter = { id: 'mine', forMs: 60_000 };
      await store.acquire({ key: 'key', owner: `owner ${i}`, ttlMs: 10_000, floor: 0, waiter });
      await store.release({ key: 'key', owner: `owner ${i}` });
    }
    expect(await commands()).toMatchObject({ evalsha: 20, get: 30, set: 20, time: 10, del: 10 });
    for (const name of ['lrem', 'lpop', 'exists', 'publish'])
      expect(await commands()).not.toHaveProperty(name);
  });

  it.each(['allkeys-lru', 'volatile-ttl', 'allkeys-random', 'volatile-lru'])(
    'field report 17: warns at boot when memory pressure may evict leases (%s)',
    async (policy) => {
      const store = await start('--maxmemory-policy', policy);
      expect(await store.check()).toEqual([
        {
          problem: expect.stringContaining(policy),
          consequence: expect.any(String),
          fix: expect.stringContaining('noeviction'),
        },
      ]);
    },
  );

  it('field report 17: has nothing to warn of with noeviction', async () => {
    const store = await start('--maxmemory-policy', 'noeviction');
    expect(await store.check()).toEqual([]);
  });

  it('field report 17: at its memory limit acquiring is unavailable, never busy; renewing and releasing go on', async () => {
    const store = await start('--maxmemory-policy', 'noeviction');
    for (const key of ['held', 'wanted']) expect((await take(store, key, 'a')).granted).toBe(true);
    expect((await take(store, 'wanted', 'b')).granted).toBe(false);
    await redis!.config('SET', 'maxmemory', '1');
    await expect(take(store, 'new', 'b')).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
      retryable: false,
      message: expect.stringContaining('OOM'),
    });
    expect(await store.renew([{ key: 'held', owner: 'a', ttlMs: 20_000 }])).toEqual([true]);
    for (const key of ['held', 'wanted'])
      expect(await store.release({ key, owner: 'a' })).toEqual({ held: true });
    expect((await redis!.keys('*:lease:*')).map((name) => name.replace(/.*:/, ''))).toEqual(['wanted']);
    expect(await redis!.get((await redis!.keys('*:lease:wanted'))[0]!)).toBe('> w');
  });

  it('field report 17: a user without leave to run scripts is told at boot; at a call it is unavailable', async () => {
    const store = await start();
    await redis!.call('ACL', 'SETUSER', 'limited', 'on', '>secret', '~*', '&*', '+@all', '-@scripting');
    const limited = new Redis(server!.url, { username: 'limited', password: 'secret' });
    const limitedStore = redisLeases(limited);
    await expect(limitedStore.check()).rejects.toMatchObject({ code: 'INVALID_CONFIG' });
    await expect(take(limitedStore, 'key', 'a')).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
      retryable: false,
    });
    limited.disconnect();
    await store.close();
  });

  it('that is silent does not hold up the end of an application that let the package open the connection', async () => {
    await start();
    const own = await redisLeases({ url: server!.url });
    expect(await own.check()).toEqual([]);
    server!.pause();
    await own.close();
  });

  it('is unavailable, and may be tried again, when it is gone', async () => {
    const store = await start();
    redis!.options.retryStrategy = () => null;
    await server!.kill();
    await expect(take(store, 'key', 'a')).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
      retryable: true,
    });
    await expect(store.check()).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
  });
});

describe('the check of the server', () => {
  const answering = (info: string) => {
    const client = {
      evalsha: () => undefined,
      call: (command: string) => Promise.resolve(command === 'INFO' ? info : null),
    };
    return redisLeases(client as unknown as RedisClient);
  };

  it.each(['6.0.20', '5.0.14', '4.0.0'])(
    'refuses Redis %s, which has no LPOS or is not tested',
    async (version) => {
      await expect(answering(`redis_version:${version}\r\n`).check()).rejects.toMatchObject({
        code: 'INVALID_CONFIG',
      });
    },
  );

  it.each(['6.2.0', '7.4.1', '8.0.0', '10.0.0'])('accepts Redis %s', async (version) => {
    expect(await answering(`redis_version:${version}\r\n`).check()).toEqual([]);
  });
});

describe('a master that was demoted', () => {
  it.each([
    ['Redis 7', "READONLY You can't write against a read only replica. script: f1, on @user_script:24."],
    [
      'Redis 6',
      "ERR Error running script (call to f_1): @user_script:24: @user_script: 24: -READONLY You can't write.",
    ],
  ])('is left, and the step may be tried again (as %s tells it)', async (_, message) => {
    const disconnected: unknown[] = [];
    const client = {
      options: { sentinels: [] },
      evalsha: () => Promise.reject(Object.assign(new Error(message), { name: 'ReplyError' })),
      disconnect: (reconnect: boolean) => disconnected.push(reconnect),
    };
    const store = redisLeases(client as unknown as RedisClient);
    for (let i = 0; i < 2; i++) {
      const call = store.acquire({ key: 'key', owner: 'a', ttlMs: 10_000, floor: 0 });
      await expect(call).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE', retryable: true });
    }
    // Once: the new connection may meet the same node for a while.
    expect(disconnected).toEqual([true]);
  });
});

function microseconds([seconds, rest]: [number, number] | number[]): number {
  return Number(seconds) * 1_000_000 + Number(rest);
}
