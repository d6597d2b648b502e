import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import type { LeaseStore, WakeHint } from 'nestjs-fencing';
import { type RedisClient, redisLeases } from 'nestjs-fencing/redis';
import { bucketOf } from '../libs/fencing/src/core/buckets.js';
import { eventually } from './support/gate.js';
import { TcpProxy } from './support/proxy.js';

describe('a release that has not left when its key is wanted again', () => {
  const key = 'report:42';
  let proxy: TcpProxy;
  let redis: Redis;
  let direct: Redis;
  let store: LeaseStore;
  let prefix: string;
  let others: { store: LeaseStore; client: Redis }[];

  beforeAll(async () => {
    proxy = await TcpProxy.start(process.env.REDIS_URL!);
    redis = new Redis(proxy.url);
    direct = new Redis(process.env.REDIS_URL!);
    await redis.ping();
  });
  afterAll(async () => {
    await redis.quit();
    await direct.quit();
    await proxy.stop();
  });
  beforeEach(() => {
    prefix = `test-${randomUUID()}`;
    store = redisLeases(redis as RedisClient, { prefix });
    others = [];
  });
  afterEach(async () => {
    await store.close();
    for (const { store: other, client } of others) {
      await other.close();
      await client.quit();
    }
  });

  const me = { id: 'me', forMs: 5_000 };
  const acquire = (owner: string, more = {}) =>
    store.acquire({ key, owner, ttlMs: 10_000, floor: 0, waiter: me, ...more });
  const granted = async (owner: string) => {
    const answer = await acquire(owner);
    if (!answer.granted) throw new Error('busy');
    return answer.generation;
  };
  const anotherProcess = (): LeaseStore => {
    const client = new Redis(process.env.REDIS_URL!);
    const other = redisLeases(client as RedisClient, { prefix });
    others.push({ store: other, client });
    return other;
  };
  const leaseName = () => `${prefix}:{${bucketOf(key)}}:lease:${key}`;

  it('becomes one step with the acquire, and one request', async () => {
    const first = await granted('a');
    proxy.forget();
    const [ended, next] = await Promise.all([store.release({ key, owner: 'a' }), granted('b')]);
    expect(proxy.requests.map(({ text }) => text.includes('handOver'))).toEqual([true]);
    expect(ended).toEqual({ held: true });
    expect(next).toBeGreaterThan(first);
    expect(await store.inspect(key)).toMatchObject({ owner: 'b', generation: next });
    expect(await store.renew([{ key, owner: 'a', ttlMs: 10_000 }])).toEqual([false]);
  });

  it('goes first where the acquire cannot join it: one of a caller that does not wait', async () => {
    await granted('a');
    const ended = store.release({ key, owner: 'a' });
    const answer = acquire('b', { waiter: undefined });
    expect(await ended).toEqual({ held: true });
    expect(await answer).toMatchObject({ granted: true });
  });

  it('serves the process that waits before the caller here, which gets in line behind it', async () => {
    const other = anotherProcess();
    const hints: WakeHint[] = [];
    const watch = other.watch(key, (hint) => hints.push(hint), 0);
    await watch.live;
    await granted('a');
    const waiting = { key, owner: 'o', ttlMs: 10_000, floor: 0, waiter: { id: 'other', forMs: 5_000 } };
    expect(await other.acquire(waiting)).toMatchObject({ granted: false });

    const [ended, answer] = await Promise.all([store.release({ key, owner: 'a' }), acquire('b')]);
    expect(ended).toEqual({ held: true });
    expect(answer).toMatchObject({ granted: false });
    await eventually(() => hints.some(({ waiterId }) => waiterId === 'other'));
    expect(await other.acquire(waiting)).toMatchObject({ granted: true });

    // That one's release wakes it.
    const mine: WakeHint[] = [];
    const listening = store.watch(key, (hint) => mine.push(hint), 0);
    await listening.live;
    await other.release({ key, owner: 'o' });
    await eventually(() => mine.some(({ waiterId }) => waiterId === 'me'));
    expect(await acquire('b')).toMatchObject({ granted: true });
    watch.stop();
    listening.stop();
  });

  it('leaves the line again once its caller has the key, however it got it', async () => {
    const other = anotherProcess();
    await granted('a');
    await other.acquire({ key, owner: 'o', ttlMs: 10_000, floor: 0, waiter: { id: 'other', forMs: 5_000 } });
    await Promise.all([store.release({ key, owner: 'a' }), acquire('b')]);
    const waiters = `${prefix}:{${bucketOf(key)}}:waiters:${key}`;
    expect(await direct.lrange(waiters, 0, -1)).toEqual(['me']);
    await direct.del(leaseName()); // what was kept for the other one expires
    expect(await acquire('b')).toMatchObject({ granted: true });
    expect(await direct.lrange(waiters, 0, -1)).toEqual([]);
  });

  it('of a lease that is lost tells so, and the acquire asks for itself', async () => {
    await granted('a');
    await direct.del(leaseName());
    const [ended, next] = await Promise.all([store.release({ key, owner: 'a' }), granted('b')]);
    expect(ended).toEqual({ held: false });
    expect(await store.inspect(key)).toMatchObject({ owner: 'b', generation: next });

    await direct.del(leaseName());
    const other = anotherProcess();
    await other.acquire({ key, owner: 'o', ttlMs: 10_000, floor: 0 });
    const [late, answer] = await Promise.all([store.release({ key, owner: 'b' }), acquire('c')]);
    expect(late).toEqual({ held: false });
    expect(answer).toMatchObject({ granted: false });
    expect(await store.inspect(key)).toMatchObject({ owner: 'o' });
  });

  it('is answered, and so is every other release of its key', async () => {
    await granted('a');
    const ends = ['b', 'a', 'c'].map((owner) => store.release({ key, owner }));
    expect(await Promise.all(ends)).toEqual([{ held: false }, { held: true }, { held: false }]);
    expect(await store.inspect(key)).toBeUndefined();
  });

  it('fails with the acquire where the step cannot be done', async () => {
    await granted('a');
    await direct.del(leaseName());
    await direct.lpush(leaseName(), 'a list');
    const both = await Promise.allSettled([store.release({ key, owner: 'a' }), acquire('b')]);
    for (const one of both) {
      expect(one).toMatchObject({ status: 'rejected', reason: { code: 'STORE_UNAVAILABLE' } });
    }
    await direct.del(leaseName());
  });

  it('is one step for each of many callers that go on at once, and no key is forgotten', async () => {
    const keys = Array.from({ length: 100 }, (_, i) => `many:${i}`);
    const take = (one: string, owner: string) =>
      store.acquire({ key: one, owner, ttlMs: 10_000, floor: 0, waiter: me });
    await Promise.all(keys.map((one) => take(one, 'a')));
    proxy.forget();
    const both = keys.map((one) => [store.release({ key: one, owner: 'a' }), take(one, 'b')] as const);
    for (const [ended, next] of both) {
      expect(await ended).toEqual({ held: true });
      expect(await next).toMatchObject({ granted: true });
    }
    const sent = proxy.requests.map(({ text }) => text).join();
    expect([sent.match(/handOver/g), sent.match(/acquire|release/g)]).toMatchObject([{ length: 100 }, null]);
    await Promise.all(keys.map((one) => store.release({ key: one, owner: 'b' })));
    expect(await direct.keys(`${prefix}:*:lease:*`)).toEqual([]);
  });
});
