import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { eventually } from './support/gate.js';
import { FaultBench, type FencedWorker, isAcquire, isRelease, isRenew } from './support/fault-bench.js';
import { TcpProxy } from './support/proxy.js';

/** So long that nothing in these tests is free because its ttl was over. */
const LONG_MS = 120_000;

describe('I6: a reply that is lost changes nothing but time', () => {
  let bench: FaultBench;
  let redis: Redis;
  let b: FencedWorker;
  let key: string;

  beforeAll(async () => {
    bench = await FaultBench.start();
    redis = new Redis(process.env.REDIS_URL!);
    b = await bench.worker();
  });
  afterAll(async () => {
    await bench.close();
    redis.disconnect();
  });
  beforeEach(() => {
    key = `report:${randomUUID()}`;
  });

  /** The grant that the store holds; " w" behind it says that somebody waits. */
  const stored = async () => {
    const [name] = await redis.keys(`*:lease:${key}`);
    const held = name === undefined ? null : await redis.get(name);
    return held && held.replace(/ w$/, '');
  };

  describe.each([
    ['on', true],
    ['off', false],
  ])('field report 14, resend of ioredis %s', (_, autoResendUnfulfilledCommands) => {
    let proxy: TcpProxy;
    let a: FencedWorker;

    beforeAll(async () => {
      proxy = await TcpProxy.start(process.env.REDIS_URL!);
      a = await bench.worker({
        redisUrl: proxy.url,
        client: { autoResendUnfulfilledCommands },
        storeTimeoutMs: 500,
      });
    });
    afterAll(() => proxy.stop());
    beforeEach(() => proxy.forget());

    const waitingB = () =>
      b.run(
        key,
        [
          { do: 'write', text: 'B' },
          { do: 'gate', name: 'end' },
        ],
        { ttlMs: LONG_MS, waitMs: LONG_MS },
      );

    it('of an acquisition: the call owns what the store holds, under one generation, and B waits its turn', async () => {
      const lost = proxy.swallowReplyOnce(isAcquire);
      const run = a.run(
        key,
        [
          { do: 'write', text: 'A' },
          { do: 'gate', name: 'end' },
        ],
        { ttlMs: LONG_MS, waitMs: LONG_MS },
      );
      await lost;
      const second = waitingB();
      const { owner, generation } = await run.began();
      expect(await stored()).toBe(`${owner} ${generation}`);
      expect(await bench.fence(key)).toEqual({ owner, generation });
      run.open('end');
      expect(await run.ended()).toMatchObject({ ok: true });
      expect((await second.began()).generation).toBeGreaterThan(generation);
      second.open('end');
      expect(await second.ended()).toMatchObject({ ok: true });
      expect((await bench.expectOrder(key)).map(({ text }) => text)).toEqual(['A', 'B']);
    });

    it('of an acquisition whose caller does not wait any longer: no lease is left behind', async () => {
      const lost = proxy.swallowReplyOnce(isAcquire);
      const run = a.run(key, [], { ttlMs: LONG_MS, waitMs: 0 });
      await lost;
      const outcome = await run.ended();
      if (!outcome.ok) expect(outcome.error).toMatchObject({ code: 'STORE_UNAVAILABLE' });
      await eventually(async () => (await stored()) === null);
    });

    it('of a renewal: the lease is kept throughout, and the call ends well', async () => {
      const ttlMs = 3_000;
      const run = a.run(
        key,
        [
          { do: 'write', text: 'A' },
          { do: 'gate', name: 'end' },
        ],
        { ttlMs },
      );
      const { owner, generation } = await run.began();
      await run.at('end');
      await proxy.swallowReplyOnce(isRenew);
      const second = waitingB();
      const heldSince = performance.now();
      const seen = new Set<string | null>();
      await eventually(
        async () => {
          seen.add(await stored());
          return performance.now() - heldSince > 1.5 * ttlMs;
        },
        { everyMs: 50 },
      );
      expect([...seen]).toEqual([`${owner} ${generation}`]);
      run.open('end');
      expect(await run.ended()).toMatchObject({ ok: true, state: 'released', aborted: false });
      await second.began();
      second.open('end');
      await second.ended();
    });

    it('of a release: the key is free at once, and the repeated release leaves the next holder alone', async () => {
      const run = a.run(key, [{ do: 'gate', name: 'end' }], { ttlMs: LONG_MS });
      await run.began();
      await run.at('end');
      const second = waitingB();
      const lost = proxy.swallowReplyOnce(isRelease);
      run.open('end');
      expect(await run.ended()).toMatchObject({ ok: true });
      await lost;
      const { owner, generation } = await second.began();
      await eventually(() => proxy.requests.filter(({ text }) => isRelease(text)).length >= 2);
      // All that A sent before has been answered once this call has ended.
      expect(await a.run(`${key} after`, [], { waitMs: LONG_MS }).ended()).toMatchObject({ ok: true });
      expect(await stored()).toBe(`${owner} ${generation}`);
      second.open('end');
      expect(await second.ended()).toMatchObject({ ok: true });
    });

    it('a release that never arrived is sent again: B does not wait for the ttl', async () => {
      const run = a.run(key, [{ do: 'gate', name: 'end' }], { ttlMs: LONG_MS });
      const { generation } = await run.began();
      await run.at('end');
      const second = waitingB();
      proxy.stall('requests');
      run.open('end');
      expect(await run.ended()).toMatchObject({ ok: true });
      await eventually(() => proxy.requests.some(({ text }) => isRelease(text)));
      proxy.cutAll();
      proxy.resume();
      expect((await second.began()).generation).toBeGreaterThan(generation);
      second.open('end');
      await second.ended();
    });
  });

  it('of an activation: the call is unavailable and has freed its key; the fence knows the grant, the next is above', async () => {
    const proxy = await TcpProxy.start(bench.databaseUrl);
    const a = await bench.worker({ databaseUrl: proxy.url });
    const lost = proxy.swallowReplyOnce((request) => request.includes('fencing_activate'));
    const run = a.run(key, [{ do: 'write', text: 'never' }], { ttlMs: LONG_MS });
    await lost;
    expect(await run.ended()).toMatchObject({ ok: false, error: { code: 'STORE_UNAVAILABLE' } });
    const { generation } = (await bench.fence(key))!;
    const second = b.run(key, [{ do: 'write', text: 'B' }], { ttlMs: LONG_MS });
    expect((await second.began()).generation).toBeGreaterThan(generation);
    expect(await second.ended()).toMatchObject({ ok: true });
    expect(await a.run(key, [{ do: 'write', text: 'A' }], { ttlMs: LONG_MS }).ended()).toMatchObject({
      ok: true,
    });
    expect((await bench.expectOrder(key)).map(({ text }) => text)).toEqual(['B', 'A']);
    await a.process.kill();
    await proxy.stop();
  });
});
