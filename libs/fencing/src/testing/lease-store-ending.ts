import assert from 'node:assert/strict';
import { eventually } from './contract-tools.js';
import type { LeaseStoreCase, StoreTest } from './lease-store-case.js';

/** Clocks of two machines and whole milliseconds: a lease may seem to end this much early, ms. */
const ROUNDING_MS = 10;
const SHORT_MS = 100;

/** Renewal, release and expiry. */
export function provesEnding(test: StoreTest): void {
  test('renews for the owner, from now on', async (one) => {
    const generation = await one.granted('a', { ttlMs: 5_000 });
    assert.equal(await one.renew('a', 30_000), true);
    assert.ok((await one.held('a', generation)).remainingMs > 5_000);
    assert.equal(await one.renew('a', 5_000), true);
    assert.ok((await one.held('a', generation)).remainingMs <= 5_000, 'a shorter ttl is taken as well');
  });

  test('I5: renewal by a non-owner changes nothing', async (one) => {
    const generation = await one.granted('a', { ttlMs: 5_000 });
    for (const other of ['b', '', 'a ', 'A']) assert.equal(await one.renew(other, 60_000), false);
    assert.ok((await one.held('a', generation)).remainingMs <= 5_000);
  });

  test('never creates a key by renewing', async (one) => {
    assert.equal(await one.renew('a'), false);
    await one.free();
    await one.granted('a');
    await one.release('a');
    assert.equal(await one.renew('a'), false, 'nor one that was released');
    await one.free();
  });

  test('answers each of several renewals, in order, for any mixture of keys, owners and ttls', async (one) => {
    const keys = Array.from({ length: 61 }, (_, i) => `${one.key} ${i}`);
    const held = keys.filter((_, i) => i % 3 !== 0);
    await Promise.all(held.map((key) => one.granted('a', { key })));
    const requests = keys.map((key, i) => ({
      key,
      owner: i % 3 === 1 ? 'a' : 'b',
      ttlMs: 10_000 + (i % 2) * 20_000,
    }));
    assert.deepEqual(
      await one.store.renew(requests),
      keys.map((_, i) => i % 3 === 1),
    );
    const longer = await one.store.inspect(keys[1]!);
    assert.ok(longer!.remainingMs > 20_000, 'each has its own ttl');
    assert.deepEqual(await one.store.renew([]), []);
    const twice = { key: keys[1]!, owner: 'a', ttlMs: 20_000 };
    assert.deepEqual(await one.store.renew([twice, { ...twice, owner: 'b' }, twice]), [true, false, true]);
  });

  test('frees the key when its ttl is over; the former owner is told that it is gone', async (one) => {
    const first = await one.granted('a', { ttlMs: SHORT_MS });
    await eventually('nobody holds it', async () => (await one.store.inspect(one.key)) === undefined);
    assert.equal(await one.renew('a'), false);
    assert.deepEqual(await one.release('a'), { held: false });
    assert.ok((await one.granted('b')) > first);
  });

  test('does not free the key before its ttl is over', async (one) => {
    const sentAt = performance.now();
    await one.granted('a', { ttlMs: 300 });
    await one.comesFree('after its ttl');
    assert.ok(performance.now() - sentAt > 300 - ROUNDING_MS, 'the next grant comes after the ttl');
  });

  const paths: Record<string, (one: LeaseStoreCase) => Promise<string>> = {
    'a first grant': async (one) => {
      await one.granted('a', { ttlMs: SHORT_MS });
      return 'a';
    },
    'a grant that was asked for twice': async (one) => {
      await one.granted('a');
      await one.granted('a', { ttlMs: SHORT_MS });
      return 'a';
    },
    'a grant above a floor': async (one) => {
      const first = await one.granted('a');
      await one.granted('a', { ttlMs: SHORT_MS, floor: first + 1_000 });
      return 'a';
    },
    'a renewal': async (one) => {
      await one.granted('a');
      await one.renew('a', SHORT_MS);
      return 'a';
    },
    'a hand-over': async (one) => {
      await one.granted('a');
      await one.release('a', { successor: { owner: 's', ttlMs: SHORT_MS, waiterId: 'w', forMs: 1_000 } });
      return 's';
    },
    'a release that keeps the key taken': async (one) => {
      await one.granted('a');
      await one.release('a', { holdMs: SHORT_MS });
      return 'a';
    },
  };
  for (const [path, take] of Object.entries(paths)) {
    test(`I8: ${path} expires`, async (one) => {
      const owner = await take(one);
      const seen = await one.store.inspect(one.key);
      if (seen) assert.ok(seen.remainingMs <= SHORT_MS, `${seen.remainingMs} ms are left of ${SHORT_MS}`);
      await one.comesFree(`after ${path}`);
      assert.equal(await one.renew(owner), false);
    });
  }

  test('releases for the owner', async (one) => {
    await one.granted('a');
    assert.deepEqual(await one.release('a'), { held: true });
    await one.free();
    await one.granted('b', {}, await one.another());
  });

  test('I5: release by a non-owner changes nothing', async (one) => {
    const generation = await one.granted('a');
    const successor = { owner: 'c', ttlMs: 10_000, waiterId: 'w', forMs: 10_000 };
    for (const more of [{}, { successor }, { holdMs: 1 }, { successor: { ...successor, mayOvertake: true } }])
      for (const other of ['b', '']) assert.deepEqual(await one.release(other, more), { held: false });
    await one.held('a', generation);
  });

  test('I6: a release that is sent again after somebody else took the key leaves that lease alone', async (one) => {
    await one.granted('a');
    await one.release('a');
    const generation = await one.granted('b');
    assert.deepEqual(await one.release('a'), { held: false });
    await one.held('b', generation);
  });

  test('keeps the order of one process: a key that it releases and asks for at once is free', async (one) => {
    for (let i = 0; i < 20; i++) {
      await one.granted(`owner ${i}`);
      const [released, next] = await Promise.all([one.release(`owner ${i}`), one.acquire(`owner ${i + 1}`)]);
      assert.deepEqual([released.held, next.granted], [true, true]);
      await one.release(`owner ${i + 1}`);
    }
  });

  test('keeps a released key taken for holdMs', async (one) => {
    await one.granted('a');
    const sentAt = performance.now();
    assert.deepEqual(await one.release('a', { holdMs: 300 }), { held: true });
    await one.comesFree('after holdMs');
    assert.ok(performance.now() - sentAt > 300 - ROUNDING_MS, 'the key was taken for holdMs');
  });
}
