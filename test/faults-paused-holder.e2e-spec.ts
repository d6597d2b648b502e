import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { FaultBench, type FencedWorker, isRenew } from './support/fault-bench.js';
import { TcpProxy } from './support/proxy.js';

const TTL_MS = 1_000;

describe('a holder that is paused past its lease', () => {
  let bench: FaultBench;
  let redis: Redis;
  let proxy: TcpProxy;
  /** Behind the proxy. */
  let a: FencedWorker;
  let b: FencedWorker;
  let key: string;

  beforeAll(async () => {
    bench = await FaultBench.start();
    redis = new Redis(process.env.REDIS_URL!);
    proxy = await TcpProxy.start(process.env.REDIS_URL!);
    [a, b] = await Promise.all([bench.worker({ redisUrl: proxy.url }), bench.worker()]);
  });
  afterAll(async () => {
    await bench.close();
    await proxy.stop();
    redis.disconnect();
  });
  beforeEach(() => {
    key = `report:${randomUUID()}`;
    proxy.forget();
  });

  /** B's turn: it gets the key, and publishes. */
  const publishByB = async () => {
    const run = b.run(key, [{ do: 'write', text: 'B' }], { ttlMs: TTL_MS, waitMs: 20_000 });
    const { generation } = await run.began();
    expect(await run.ended()).toMatchObject({ ok: true });
    return generation;
  };

  it('I1, I2, I4; field report 3a: SIGSTOP longer than the ttl; what it writes on waking is refused, B stays', async () => {
    const run = a.run(
      key,
      [
        { do: 'write', text: 'A1' },
        { do: 'gate', name: 'before A2' },
        { do: 'write', text: 'A2' },
      ],
      { ttlMs: TTL_MS },
    );
    const { generation } = await run.began();
    expect(await run.wrote()).toEqual({ accepted: true });
    await run.at('before A2');
    // Both messages are in its inbox before any timer of it can fire.
    a.process.pause();
    run.open('before A2');
    const newer = await publishByB();
    a.process.resume();

    expect(newer).toBeGreaterThan(generation);
    expect(await run.wrote()).toMatchObject({ accepted: false });
    const outcome = await run.ended();
    expect(outcome.error).toMatchObject({ code: 'LEASE_LOST', acceptedWrites: 1 });
    expect(outcome.aborted).toBe(true);
    expect(await bench.report(key)).toBe('B');
    expect((await bench.expectOrder(key)).map(({ text }) => text)).toEqual(['A1', 'B']);
  });

  it('I2; field report 3a: also when it still believes that it holds: the database refuses the write as stale', async () => {
    // No renewal tells it, its deadline is far; only the fence knows of B.
    const run = a.run(
      key,
      [
        { do: 'gate', name: 'before A2' },
        { do: 'write', text: 'A2', caught: true },
      ],
      { ttlMs: 60_000 },
    );
    const { owner } = await run.began();
    await run.at('before A2');
    const lease = (await redis.keys(`*:lease:${key}`))[0]!;
    expect(await redis.get(lease)).toContain(owner);
    await redis.del(lease);
    await publishByB();
    run.open('before A2');
    expect(await run.wrote()).toEqual({ accepted: false, code: 'STALE_GENERATION' });
    expect(await run.ended()).toMatchObject({ ok: false, aborted: true, error: { code: 'LEASE_LOST' } });
    expect(await bench.report(key)).toBe('B');
  });

  it('I1, I2; field report 3b: an event loop blocked longer than the ttl; the write right after it is refused', async () => {
    const run = a.run(
      key,
      [
        { do: 'write', text: 'A1' },
        { do: 'gate', name: 'before the block' },
        { do: 'block', ms: 3 * TTL_MS },
        { do: 'write', text: 'A2' },
      ],
      { ttlMs: TTL_MS },
    );
    await run.began();
    await run.at('before the block');
    run.open('before the block');
    await publishByB();
    expect(await run.ended()).toMatchObject({
      aborted: true,
      error: { code: 'LEASE_LOST', acceptedWrites: 1 },
    });
    expect((await bench.expectOrder(key)).map(({ text }) => text)).toEqual(['A1', 'B']);
  });

  it('field report 3c: a wall clock that jumps an hour forth and back changes nothing', async () => {
    const ttlMs = 2_000;
    const began = performance.now();
    const run = a.run(
      key,
      [
        { do: 'shift wall clock', ms: 3_600_000 },
        { do: 'sleep', ms: 1.5 * ttlMs },
        { do: 'shift wall clock', ms: -7_200_000 },
        { do: 'sleep', ms: 1.5 * ttlMs },
        { do: 'shift wall clock', ms: 3_600_000 },
        { do: 'write', text: 'A' },
      ],
      { ttlMs },
    );
    await run.began();
    const other = b.run(key, [], { ttlMs, waitMs: 2 * ttlMs });
    expect(await other.ended()).toMatchObject({ ok: false, error: { code: 'LEASE_BUSY' } });
    expect(await run.ended()).toMatchObject({ ok: true, state: 'released' });
    const renewals = proxy.requests.filter(({ text }) => isRenew(text)).length;
    const thirds = (performance.now() - began) / (ttlMs / 3);
    expect(renewals).toBeGreaterThanOrEqual(5);
    expect(renewals).toBeLessThanOrEqual(thirds * 1.5);
  });

  it('field report 7: a renewal that comes late does not take the key back; B, and what B wrote, stay', async () => {
    const run = a.run(
      key,
      [
        { do: 'gate', name: 'before A' },
        { do: 'write', text: 'A' },
      ],
      { ttlMs: 800 },
    );
    await run.began();
    await run.at('before A');
    proxy.stall('requests');
    await publishByB();
    await run.aborted();
    proxy.resume();
    expect(proxy.requests.some(({ text }) => isRenew(text))).toBe(true);
    // Redis answers a connection in order: after this call the late renewals have been answered.
    expect(await a.run(`${key} after`).ended()).toMatchObject({ ok: true });
    expect(await redis.keys(`*:lease:${key}`)).toEqual([]);
    run.open('before A');
    expect(await run.ended()).toMatchObject({ error: { code: 'LEASE_LOST', acceptedWrites: 0 } });
    expect((await bench.journal(key)).map(({ text }) => text)).toEqual(['B']);
    expect(await redis.keys(`*:lease:${key}`)).toEqual([]);
  });

  it('field report 7, variant: a lease that vanished is lost at the next renewal; the next grant is higher', async () => {
    const run = a.run(key, [{ do: 'wait for the abort' }], { ttlMs: 3_000 });
    const { generation } = await run.began();
    await redis.del(await redis.keys(`*:lease:${key}`));
    expect(await run.ended()).toMatchObject({ error: { code: 'LEASE_LOST', reason: 'superseded' } });
    expect(await redis.keys(`*:lease:${key}`)).toEqual([]);
    expect(await publishByB()).toBeGreaterThan(generation);
  });

  it('I5: its late release does not free the lease of the next holder', async () => {
    const run = a.run(key, [{ do: 'gate', name: 'end' }], { ttlMs: TTL_MS });
    await run.began();
    await run.at('end');
    a.process.pause();
    const second = b.run(key, [{ do: 'gate', name: 'end' }], { ttlMs: 30_000, waitMs: 20_000 });
    const { owner } = await second.began();
    await second.at('end');
    run.open('end');
    a.process.resume();
    expect(await run.ended()).toMatchObject({ error: { code: 'LEASE_LOST' } });
    // A's next call on the key stands behind B: everything that A sent before has been done.
    expect(await a.run(key, [], { waitMs: 0 }).ended()).toMatchObject({ error: { code: 'LEASE_BUSY' } });
    expect(await redis.get((await redis.keys(`*:lease:${key}`))[0]!)).toContain(owner);
    second.open('end');
    expect(await second.ended()).toMatchObject({ ok: true });
  });

  it('I8: after kill -9 of its process the key is free within its ttl, and its transaction is gone', async () => {
    const doomed = await bench.worker();
    const run = doomed.run(
      key,
      [
        { do: 'write', text: 'A' },
        { do: 'gate', name: 'end' },
      ],
      { ttlMs: TTL_MS },
    );
    await run.began();
    await run.at('end');
    await doomed.process.kill();
    const left = await redis.pttl((await redis.keys(`*:lease:${key}`))[0]!);
    expect(left).toBeLessThanOrEqual(TTL_MS);
    await publishByB();
    expect((await bench.expectOrder(key)).map(({ text }) => text)).toEqual(['A', 'B']);
  });
});
