import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import type { Lease } from 'nestjs-fencing';
import { redisLeases } from 'nestjs-fencing/redis';
import { bucketOf } from '../libs/fencing/src/core/buckets.js';
import { eventually, Gate } from './support/gate.js';
import { isAcquire, isRenew } from './support/fault-bench.js';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { TcpProxy } from './support/proxy.js';
import { RedisServer } from './support/redis-server.js';

describe('a Redis that is slow, silent or cut off', () => {
  let server: RedisServer;
  let proxy: TcpProxy;
  /** Behind the proxy. */
  let app: FencedApp;
  /** Straight at the server. */
  let other: FencedApp;
  let redis: Redis;
  let key: string;

  beforeAll(async () => {
    server = await RedisServer.start();
    proxy = await TcpProxy.start(server.url);
    app = await startFencedApp({ redisUrl: proxy.url, fence: false });
    other = await startFencedApp({ redisUrl: server.url, fence: false });
    redis = new Redis(server.url);
  });
  afterAll(async () => {
    redis.disconnect();
    await app.close();
    await other.close();
    await proxy.stop();
    await server.stop();
  });
  beforeEach(() => {
    key = `report:${randomUUID()}`;
    proxy.forget();
  });
  afterEach(() => {
    server.resume();
    proxy.resume();
    proxy.delayReplies(0);
  });

  const pttl = async () => {
    const [name] = await redis.keys(`*:lease:${key}`);
    return name === undefined ? -2 : redis.pttl(name);
  };
  const aborted = (lease: Lease) =>
    lease.signal.aborted
      ? Promise.resolve()
      : new Promise<void>((resolve) => lease.signal.addEventListener('abort', () => resolve()));

  it('frozen by SIGSTOP: the signal aborts at the local deadline, not later than the store would free the key', async () => {
    const ttlMs = 1_500;
    const call = app.fencing.run(key, { ttlMs }, async (lease) => {
      server.pause();
      expect(lease.remainingMs()).toBeGreaterThan(0);
      await aborted(lease);
      expect(lease.signal.reason).toMatchObject({ code: 'LEASE_LOST', reason: 'expired' });
      expect(lease.remainingMs()).toBe(0);
    });
    await expect(call).rejects.toMatchObject({ code: 'LEASE_LOST' });
    // A call that begins now is unavailable within its own bounds, and not "busy".
    await expect(app.fencing.run(key, { waitMs: 1_500 }, () => 0)).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
    });
    server.resume();
    expect(await other.fencing.run(key, { waitMs: 20_000 }, () => 'next')).toBe('next');
  });

  it('frozen at boot: the application starts all the same, and works once Redis answers', async () => {
    server.pause();
    const fencing = { storeTimeoutMs: 500 };
    const late = await startFencedApp({ redisUrl: proxy.url, fence: false, fencing });
    await expect(late.fencing.run(key, { waitMs: 0 }, () => 0)).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
    });
    server.resume();
    expect(await late.fencing.run(key, { waitMs: 20_000 }, () => 'works')).toBe('works');
    await late.close();
  });

  it('frozen for less than the ttl: an uncertain lease is held again', async () => {
    await app.fencing.run(key, { ttlMs: 6_000 }, async (lease) => {
      server.pause();
      await eventually(() => lease.state === 'uncertain');
      server.resume();
      await eventually(() => lease.state === 'held');
      expect(lease.signal.aborted).toBe(false);
    });
  });

  it('field report 23: renewals that fail while the connection is cut do not end renewing; the lease is never away', async () => {
    // A client that does not repair it silently: what is under way when the connection breaks fails at once.
    const client = new Redis(proxy.url, { maxRetriesPerRequest: 0 });
    client.on('error', () => undefined);
    const third = await startFencedApp({ leases: redisLeases(client), fence: false });
    const end = new Gate();
    let lease!: Lease;
    const call = third.fencing.run(key, { ttlMs: 9_000 }, (held) => {
      lease = held;
      return end.wait();
    });
    await eventually(async () => (await pttl()) > 0);
    proxy.refuse();
    proxy.cutAll();
    await eventually(() => lease.state === 'uncertain', { timeoutMs: 20_000 });
    await proxy.accept();
    proxy.forget();
    const missing: number[] = [];
    await eventually(
      async () => {
        const left = await pttl();
        if (left < 0) missing.push(left);
        return proxy.requests.filter(({ text }) => isRenew(text)).length >= 3;
      },
      { everyMs: 100, timeoutMs: 40_000 },
    );
    expect(missing).toEqual([]);
    await eventually(() => lease.state === 'held');
    end.open();
    await call;
    await third.close();
    client.disconnect();
  });

  it('field report 23: after a true loss the next acquisition of the key on the same instance is renewed as usual', async () => {
    const ttlMs = 1_500;
    const lost = app.fencing.run(key, { ttlMs }, async (lease) => {
      await redis.del(await redis.keys(`*:lease:${key}`));
      await aborted(lease);
    });
    await expect(lost).rejects.toMatchObject({ code: 'LEASE_LOST', reason: 'superseded' });
    proxy.forget();
    await app.fencing.run(key, { ttlMs, waitMs: 20_000 }, async (lease) => {
      await eventually(() => proxy.requests.filter(({ text }) => isRenew(text)).length >= 6);
      lease.assertHeld();
    });
  });

  it('I9: a wake-up message that is lost costs its waiter no turn', async () => {
    const end = new Gate();
    const holder = other.fencing.run(key, { ttlMs: 60_000 }, () => end.wait());
    await eventually(async () => (await pttl()) > 0);
    const waiting = app.fencing.run(key, { ttlMs: 60_000, waitMs: 60_000 }, ({ generation }) => generation);
    const channel = `fencing:{${bucketOf(key)}}:wake`;
    await eventually(async () => (await redis.keys(`*:waiters:${key}`)).length === 1);
    await eventually(
      async () => Number(((await redis.call('PUBSUB', 'NUMSUB', channel)) as unknown[])[1]) > 0,
    );
    // All that comes from the server is held up while the key is freed; then the connections break, and it is gone.
    proxy.stall('replies');
    end.open();
    await holder;
    await eventually(async () => (await redis.keys(`*:waiters:${key}`)).length === 0);
    proxy.cutAll();
    proxy.resume();
    expect(await waiting).toBeGreaterThan(0);
  });

  it('I9: a waiter that never hears anything gets its turn all the same', async () => {
    const deaf = new Redis(proxy.url);
    // Its subscriber never gets a connection.
    deaf.duplicate = () => new Redis({ port: 1, lazyConnect: true, retryStrategy: () => null });
    const third = await startFencedApp({ leases: redisLeases(deaf), fence: false });
    const end = new Gate();
    const holder = other.fencing.run(key, { ttlMs: 60_000 }, () => end.wait());
    await eventually(async () => (await pttl()) > 0);
    const waiting = third.fencing.run(key, { ttlMs: 60_000, waitMs: 60_000 }, () => 'its turn');
    // It has tried again since its subscription failed, so nothing but its own patience is left.
    await eventually(
      () => proxy.requests.filter(({ text }) => isAcquire(text) && text.includes(key)).length >= 2,
    );
    end.open();
    await holder;
    expect(await waiting).toBe('its turn');
    await third.close();
    deaf.disconnect();
  });

  describe('field report 38', () => {
    const ttlMs = 1_000;

    it('after a long wait the lease is a fresh one: its validity counts from the request that was granted', async () => {
      const end = new Gate();
      const holder = other.fencing.run(key, { ttlMs }, () => end.wait());
      await eventually(async () => (await pttl()) > 0);
      const waiting = app.fencing.run(key, { ttlMs, waitMs: 60_000 }, (lease) => lease.remainingMs());
      const since = performance.now();
      await eventually(() => performance.now() - since > 3 * ttlMs);
      end.open();
      await holder;
      expect(await waiting).toBeGreaterThan(ttlMs / 4);
    });

    it('a grant whose reply comes after more than the ttl is never used: released and tried again, then reported', async () => {
      proxy.delayReplies(1.5 * ttlMs);
      let began = 0;
      const call = app.fencing.run(key, { ttlMs, waitMs: 4_000 }, () => (began += 1));
      await expect(call).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
      expect(began).toBe(0);
      proxy.delayReplies(0);
      expect(await other.fencing.run(key, { waitMs: 20_000 }, () => 'free')).toBe('free');
      expect(
        await app.fencing.run(key, { ttlMs, waitMs: 20_000 }, (lease) => lease.remainingMs()),
      ).toBeGreaterThan(ttlMs / 4);
    });

    it('the body begins with at least half of the ttl left, however slow the answers are', async () => {
      for (const delayMs of [0, 100, 300, 450, 600, 800]) {
        proxy.delayReplies(delayMs);
        const left = await app.fencing
          .run(key, { ttlMs, waitMs: 3_000 }, (lease) => lease.remainingMs())
          .catch(({ code }: { code: string }) => code);
        // Half of it, less what the machine takes between the check and the body.
        if (left !== 'STORE_UNAVAILABLE') expect(left).toBeGreaterThan(ttlMs / 4);
        proxy.delayReplies(0);
        await eventually(async () => (await pttl()) < 0);
      }
    });

    it.each<[string, () => unknown, object]>([
      ['keeps the value of its method', () => 'value', { result: 'value' }],
      [
        'keeps the error of its method',
        () => {
          throw new Error('of the method');
        },
        { bodyError: expect.objectContaining({ message: 'of the method' }) },
      ],
    ])('a call whose lease was deleted ends as lost, and %s', async (_, end, facts) => {
      const call = app.fencing.run(key, { ttlMs }, async (lease) => {
        await redis.del(await redis.keys(`*:lease:${key}`));
        await aborted(lease);
        return end();
      });
      await expect(call).rejects.toMatchObject({ code: 'LEASE_LOST', acceptedWrites: 0, ...facts });
      // Its release found nothing, and is not repeated.
      expect(await app.fencing.run(key, { ttlMs }, () => 'next')).toBe('next');
    });
  });
});
