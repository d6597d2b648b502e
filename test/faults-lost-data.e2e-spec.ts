import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { bucketOf } from '../libs/fencing/src/core/buckets.js';
import { eventually } from './support/gate.js';
import { FaultBench, type FencedWorker } from './support/fault-bench.js';
import { RedisServer } from './support/redis-server.js';

const TTL_MS = 60_000;

describe('I7: a Redis that loses its data', () => {
  let bench: FaultBench;
  let redis: RedisServer;
  let a: FencedWorker;
  let b: FencedWorker;
  let key: string;

  beforeAll(async () => {
    [bench, redis] = await Promise.all([FaultBench.start(), RedisServer.start()]);
    [a, b] = await Promise.all([
      bench.worker({ redisUrl: redis.url }),
      bench.worker({ redisUrl: redis.url }),
    ]);
  });
  afterAll(async () => {
    await bench.close();
    await redis.stop();
  });
  beforeEach(() => {
    key = `report:${randomUUID()}`;
  });

  /** The counter of the key's bucket runs an hour ahead of the clock, so that after a loss the clock alone is no help. */
  const setCounterAhead = async () => {
    const ahead = (Date.now() + 3_600_000) * 1_000;
    await redis.command('SET', `fencing:{${bucketOf(key)}}:generation`, ahead);
  };
  const leaseOf = async () => (await redis.command('KEYS', `*:lease:${key}`)) as string[];

  it.each([
    [
      'after kill -9 it comes back empty',
      async () => (await redis.kill(), await redis.restart({ empty: true })),
    ],
    ['FLUSHALL', async () => void (await redis.command('FLUSHALL'))],
    ['an old dump is restored', async (dump: Buffer) => (await redis.kill(), await redis.restart({ dump }))],
  ])(
    'field report 16: %s: the next holder is above and writes at once; the former holder is refused',
    async (_, lose) => {
      await setCounterAhead();
      const dump = await redis.saveDump();
      for (let i = 0; i < 3; i++)
        expect(await a.run(key, [{ do: 'write', text: `${i}` }]).ended()).toMatchObject({ ok: true });
      const former = a.run(
        key,
        [
          { do: 'gate', name: 'before the late write' },
          { do: 'write', text: 'late' },
        ],
        { ttlMs: TTL_MS },
      );
      const { generation } = await former.began();
      await former.at('before the late write');

      await lose(dump);
      const next = b.run(key, [{ do: 'write', text: 'B' }], { ttlMs: TTL_MS, waitMs: 20_000 });
      expect((await next.began()).generation).toBeGreaterThan(generation);
      // Its first write is accepted: it is never refused for being behind what the store has forgotten.
      expect(await next.wrote()).toEqual({ accepted: true });
      expect(await next.ended()).toMatchObject({ ok: true });

      former.open('before the late write');
      expect(await former.wrote()).toEqual({ accepted: false, code: 'STALE_GENERATION' });
      expect(await former.ended()).toMatchObject({
        ok: false,
        aborted: true,
        error: { code: 'STALE_GENERATION' },
      });
      expect((await bench.expectOrder(key)).map(({ text }) => text)).toEqual(['0', '1', '2', 'B']);
    },
  );

  it('field report 16: a lease that an old dump brings back runs out like any other, and hinders nobody for longer', async () => {
    const old = a.run(key, [{ do: 'gate', name: 'end' }], { ttlMs: 2_000 });
    await old.began();
    await old.at('end');
    const dump = await redis.saveDump();
    old.open('end');
    expect(await old.ended()).toMatchObject({ ok: true });
    await redis.kill();
    await redis.restart({ dump });
    const next = b.run(key, [{ do: 'write', text: 'B' }], { ttlMs: TTL_MS, waitMs: 30_000 });
    expect(await next.ended()).toMatchObject({ ok: true });
  });

  it('I1 to I3: two holders that both believe in their lease: only the activated one writes, in no order of losses', async () => {
    await setCounterAhead();
    const first = a.run(
      key,
      [
        { do: 'gate', name: 'write' },
        { do: 'write', text: 'first' },
      ],
      { ttlMs: TTL_MS },
    );
    await first.began();
    await first.at('write');
    await redis.command('FLUSHALL');
    const second = b.run(
      key,
      [
        { do: 'gate', name: 'write' },
        { do: 'write', text: 'second' },
      ],
      { ttlMs: TTL_MS },
    );
    await second.began();
    await second.at('write');
    await redis.command('FLUSHALL');
    // Between the activation of the second and its commit, nobody else's write is accepted.
    first.open('write');
    expect(await first.wrote()).toEqual({ accepted: false, code: 'STALE_GENERATION' });
    second.open('write');
    expect(await second.wrote()).toEqual({ accepted: true });
    await first.ended();
    await second.ended();
    expect((await bench.expectOrder(key)).map(({ text }) => text)).toEqual(['second']);
  });

  it.each(['allkeys-lru', 'volatile-ttl'])(
    'field report 17: evicts under %s: the holder is lost, the next one is above, the late write refused',
    async (policy) => {
      await redis.command('CONFIG', 'SET', 'maxmemory-policy', policy);
      const former = a.run(key, [{ do: 'wait for the abort' }, { do: 'write', text: 'late', caught: true }], {
        ttlMs: 6_000,
      });
      const { generation } = await former.began();
      await redis.command('CONFIG', 'SET', 'maxmemory', '3mb');
      let filled = 0;
      await eventually(
        async () => {
          const script = `for i = 1, 500 do redis.pcall('SET', 'filler:' .. (ARGV[1] + i), string.rep('x', 1024)) end`;
          await redis.command('EVAL', script, 0, filled).catch(() => undefined);
          filled += 500;
          return (await leaseOf()).length === 0;
        },
        { everyMs: 1, timeoutMs: 30_000 },
      );
      expect(await former.ended()).toMatchObject({
        error: { code: 'LEASE_LOST', reason: 'superseded' },
        aborted: true,
      });
      await redis.command('CONFIG', 'SET', 'maxmemory', '0');
      await redis.command('FLUSHALL');
      const next = b.run(key, [{ do: 'write', text: 'B' }], { ttlMs: TTL_MS, waitMs: 20_000 });
      expect((await next.began()).generation).toBeGreaterThan(generation);
      expect(await next.ended()).toMatchObject({ ok: true });
      expect((await bench.expectOrder(key)).map(({ text }) => text)).toEqual(['B']);
    },
  );
});
