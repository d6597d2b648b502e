import { AsyncLocalStorage } from 'node:async_hooks';
import { afterAll, afterEach, beforeAll, describe, expect, it, jest } from '@jest/globals';
import { Redis } from 'ioredis';
import type { Lease } from 'nestjs-fencing';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { eventually } from './support/gate.js';
import { TcpProxy } from './support/proxy.js';
import { forkWorker, type WorkerProcess } from './support/workers.js';

const DAY = 24 * 3_600_000;
/** Runs a call as another caller does: without the leases of this one. */
const outside = AsyncLocalStorage.snapshot() as <T>(call: () => T) => T;

describe('field report 39: times are milliseconds, whole, and of any length', () => {
  let app: FencedApp;
  let proxy: TcpProxy;
  let redis: Redis;
  beforeAll(async () => {
    proxy = await TcpProxy.start(process.env.REDIS_URL!);
    app = await startFencedApp({ fence: false, redisUrl: proxy.url });
    redis = new Redis(process.env.REDIS_URL!);
  });
  afterAll(async () => {
    await app.close();
    await proxy.stop();
    redis.disconnect();
  });

  const name = async (key: string) => (await redis.keys(`*:lease:${key}`))[0]!;

  it.each([1_500, 30_000, 2 ** 31 + 5, 90 * DAY, 365 * DAY])(
    'ttlMs: %i is what Redis gets',
    async (ttlMs) => {
      const before = performance.now();
      await app.fencing.run(`ttl-${ttlMs}`, { ttlMs }, async (lease) => {
        const remaining = lease.remainingMs();
        const pttl = await redis.pttl(await name(`ttl-${ttlMs}`));
        const since = performance.now() - before;
        expect(pttl).toBeLessThanOrEqual(ttlMs);
        expect(pttl).toBeGreaterThan(ttlMs - 50 - since);
        // 1 % for clocks of different rates, and 2 ms.
        expect(remaining).toBeLessThanOrEqual(ttlMs * 0.99 - 2);
        expect(remaining).toBeGreaterThan(ttlMs * 0.99 - 2 - since);
      });
    },
  );

  it('90 days, beyond what a timer can do, cause no storm: neither of requests nor of timers, and waiters wait', async () => {
    const options = { ttlMs: 90 * DAY, waitMs: 90 * DAY, holdAtLeastMs: 0 };
    let waiting!: Promise<unknown>;
    await app.fencing.run('quarter', options, async (lease) => {
      waiting = outside(() => app.fencing.run('quarter', options, () => 'had its turn'));
      waiting.catch(() => undefined); // looked at below
      proxy.forget();
      const timers = jest.spyOn(globalThis, 'setTimeout');
      lease.assertHeld();
      const since = performance.now();
      await outside(() => app.fencing.run('another', options, () => undefined));
      await eventually(() => performance.now() - since > 3_000);
      const delays = timers.mock.calls.map(([, ms]) => ms ?? 0);
      timers.mockRestore();
      // Node fires a longer one after 1 ms.
      expect(delays.length).toBeGreaterThan(0);
      expect(Math.max(...delays)).toBeLessThan(2 ** 31);
      expect(proxy.count()).toBe(2); // for the other key
      expect(lease.state).toBe('held');
    });
    await expect(waiting).resolves.toBe('had its turn');
  });

  it('a short ttl is renewed at a third of it, one request each time', async () => {
    await app.fencing.run('short', { ttlMs: 1_500 }, async () => {
      proxy.forget();
      const since = performance.now();
      await eventually(() => performance.now() - since > 3_000);
      // Every 500 ms, up to 1/24 of the ttl earlier; fewer where the machine was slow, never more.
      expect(proxy.count()).toBeLessThanOrEqual((performance.now() - since) / (500 - 1_500 / 24) + 1);
      expect(proxy.count()).toBeGreaterThan(1);
    });
  });

  it('no lease and no line of waiters is ever without an expiry, not for a moment', async () => {
    let sampling = true;
    let samples = 0;
    const eternal: string[] = [];
    const sampler = (async () => {
      while (sampling) {
        const keys = (await redis.keys('fencing:*')).filter((key) => /:(lease|waiters):/.test(key));
        const pipeline = redis.pipeline();
        for (const key of keys) pipeline.pttl(key);
        const answers = (await pipeline.exec()) ?? [];
        answers.forEach(([, pttl], i) => {
          samples += 1;
          if (pttl === -1) eternal.push(keys[i]!);
        });
      }
    })();
    const other = await startFencedApp({ fence: false });
    const apps = [app, other];
    await Promise.all(
      Array.from({ length: 60 }, (_, i) =>
        apps[i % 2]!.fencing.run(
          `sampled-${i % 3}`,
          { ttlMs: 300, waitMs: 30_000, holdAtLeastMs: i % 5 === 0 ? 20 : 0 },
          async (lease: Lease) => {
            const until = performance.now() + (i % 7 === 0 ? 150 : 1);
            while (performance.now() < until) await redis.ping();
            lease.assertHeld();
          },
        ),
      ),
    );
    sampling = false;
    await sampler;
    await other.close();
    expect(eternal).toEqual([]);
    expect(samples).toBeGreaterThan(100);
  });
});

describe('no decision depends on a time zone', () => {
  let worker: WorkerProcess | undefined;
  afterEach(async () => {
    await worker?.kill();
  });

  it('a process in New York and a database session in Apia agree on every stored time, across a change of clocks', async () => {
    worker = forkWorker(new URL('./nest-time-units.worker.ts', import.meta.url), [], {
      TZ: 'America/New_York',
      DATABASE_ZONE: 'Pacific/Apia',
    });
    const times = await worker.waitFor<{
      zone: { process: number; database: string };
      activatedAfterMs: number;
      acceptedAfterMs: number;
      across: string[];
    }>('times', { timeoutMs: 40_000 });
    expect(times.zone).toEqual({ process: 300, database: 'Pacific/Apia' });
    // The same machine's clock; an hour or a day off is what a zone would do.
    for (const ms of [times.activatedAfterMs, times.acceptedAfterMs]) {
      expect(ms).toBeGreaterThan(-1_000);
      expect(ms).toBeLessThan(60_000);
    }
    expect(times.across).toEqual([
      '2026-11-01T05:30:00.000Z',
      '2026-11-01T06:30:00.000Z',
      '2026-03-08T07:00:00.000Z',
    ]);
    expect(await worker.exited).toEqual({ code: 0, signal: null });
  });
});
