import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { eventually } from './contract-tools.js';
import { type StoreTest, waiter } from './lease-store-case.js';

const LAST = Number.MAX_SAFE_INTEGER;
/** The clock of a store in µs is above this, 2020-09-13, unless it is badly wrong. */
const SOME_PAST_US = 1_600_000_000_000_000;

/** Acquiring, and the generations. */
export function provesGranting(test: StoreTest): void {
  test('grants a free key under a positive safe integer, and knows who holds it', async (one) => {
    const generation = await one.granted('a');
    assert.ok(Number.isSafeInteger(generation) && generation > 0, `${generation} is a positive safe integer`);
    const { remainingMs } = await one.held('a', generation);
    assert.ok(remainingMs <= 20_000);
  });

  test('is busy for everybody else, and says how long at most', async (one) => {
    const generation = await one.granted('a');
    const other = await one.another();
    for (const store of [one.store, other]) {
      const remainingMs = await one.busy('b', {}, store);
      assert.ok(remainingMs > 0 && remainingMs <= 20_000, `${remainingMs} ms are left of 20 000`);
    }
    await one.held('a', generation);
  });

  test('grants a key once where many ask at the same time, over several connections', async (one) => {
    const stores = [one.store, await one.another(), await one.another()];
    for (let round = 0; round < 20; round++) {
      one.key = `key ${randomUUID()}`;
      const owners = Array.from({ length: 9 }, (_, i) => `owner ${i}`);
      const answers = await Promise.all(owners.map((owner, i) => one.acquire(owner, {}, stores[i % 3])));
      assert.equal(answers.filter(({ granted }) => granted).length, 1, 'exactly one of nine is granted');
    }
  });

  test('I1: issues strictly increasing generations, whoever asks', async (one) => {
    const stores = [one.store, await one.another()];
    const generations: number[] = [];
    for (let i = 0; i < 40; i++) {
      generations.push(await one.granted(`owner ${i}`, {}, stores[i % 2]));
      await one.release(`owner ${i}`, {}, stores[i % 2]);
    }
    assert.deepEqual(
      generations,
      [...new Set(generations)].sort((a, b) => a - b),
    );
  });

  test('I1: issues different generations where many ask for one key in turn without an order', async (one) => {
    const stores = [one.store, await one.another()];
    const generations = await Promise.all(
      Array.from({ length: 20 }, (_, i) =>
        eventually('its turn', async () => {
          const answer = await one.acquire(`owner ${i}`, {}, stores[i % 2]);
          if (answer.granted) await one.release(`owner ${i}`, {}, stores[i % 2]);
          return answer.granted && answer.generation;
        }),
      ),
    );
    assert.equal(new Set(generations).size, generations.length, 'no generation is issued twice');
  });

  test('I6: answers a repeated acquisition with the same generation, and gives it the whole ttl again', async (one) => {
    const first = await one.granted('a', { ttlMs: 5_000 });
    assert.equal(await one.granted('a', { ttlMs: 30_000 }), first);
    assert.ok((await one.held('a', first)).remainingMs > 5_000, 'the ttl runs anew');
    const twice = await Promise.all([one.granted('a'), one.granted('a', {}, await one.another())]);
    assert.deepEqual(twice, [first, first], 'also where the two cross');
  });

  test('issues above the floor for an owner that holds less, once: repeating it changes nothing', async (one) => {
    const first = await one.granted('a');
    const floor = first + 1_000_000_000;
    const second = await one.granted('a', { floor });
    assert.ok(second > floor, `${second} is above the floor ${floor}`);
    assert.equal(await one.granted('a', { floor }), second);
    // A late duplicate of the first request must not move a lease that is in use.
    assert.equal(await one.granted('a'), second);
    await one.release('a');
    const third = await one.granted('b');
    assert.ok(third > second, 'the store goes on from there');
  });

  test('does not let a floor take the key from its holder', async (one) => {
    const generation = await one.granted('a');
    await one.busy('b', { floor: 2 ** 52 });
    await one.held('a', generation);
  });

  test('reaches the largest safe integer and goes no further, with a typed error', async (one) => {
    const exhausted = { code: 'GENERATIONS_EXHAUSTED' };
    assert.equal(await one.granted('a', { floor: LAST - 1 }), LAST);
    await assert.rejects(one.acquire('a', { floor: LAST }), exhausted);
    assert.equal(await one.granted('a'), LAST);
    await one.release('a');
    await assert.rejects(one.acquire('b'), exhausted);
    await one.free();
  });

  test("issues its clock's microseconds while its counter is behind them", async (one) => {
    const generation = await one.granted('a');
    assert.ok(
      generation > SOME_PAST_US,
      `${generation} is a time in microseconds: what a store that lost all starts from`,
    );
  });

  test('I7: after it lost everything it issues above what it issued before, and the key is free', async (one) => {
    const first = await one.granted('a');
    await one.lose();
    const second = await eventually('a grant after the loss', () =>
      one.granted('b').catch((error: { code?: string }) => {
        // The connections to it may have been lost as well.
        if (error.code !== 'STORE_UNAVAILABLE') throw error;
        return undefined;
      }),
    );
    assert.ok(second! > first, `${second} is above ${first}`);
    assert.equal(await one.renew('a'), false, 'the former owner holds nothing');
    await one.held('b', second);
  });

  test('I7: a floor from the fence heals what the clock does not', async (one) => {
    const fence = (await one.granted('a')) + 10 ** 12;
    await one.release('a');
    const healed = await one.granted('b', { floor: fence });
    await one.release('b');
    assert.ok(healed > fence && (await one.granted('c')) > healed);
  });

  test('keeps different keys apart, also those that look alike', async (one) => {
    const suffix = randomUUID();
    const keys = ['a', 'A', 'a ', ' a', 'a:', 'a:b', 'a b', '\u00e9', 'e\u0301', 'a*', 'a%', 'a_'].map(
      (k) => `${k}${suffix}`,
    );
    keys.push(...['a', 'A', 'a:'].map((k) => `${suffix}${k}`));
    const first = await Promise.all(keys.map((key) => one.granted(`owner of ${key}`, { key })));
    assert.equal(first.length, keys.length);
    await one.release(`owner of ${keys[0]}`, { key: keys[0] });
    for (const key of keys.slice(1)) await one.busy('somebody', { key });
    await one.granted('somebody', { key: keys[0] });
  });

  test('a wall clock of one process that jumps frees no key early and holds none for longer', async (one) => {
    const trueNow = Date.now;
    try {
      const first = await one.granted('a', { ttlMs: 3_000 });
      Date.now = () => trueNow() + 3_600_000;
      await one.busy('b', {}, await one.another());
      await one.held('a', first);
      assert.equal(await one.renew('a', 3_000), true);
      Date.now = () => trueNow() - 3_600_000;
      await one.busy('b');
      assert.ok((await one.held('a', first)).remainingMs <= 3_000);
      await one.release('a');
      const second = await one.granted('c', { ttlMs: 100 });
      assert.ok(second > first, 'generations still rise');
      Date.now = trueNow;
      assert.ok((await one.comesFree('after the ttl of a process whose clock was behind')) > second);
    } finally {
      Date.now = trueNow;
    }
  });

  test('an unwanted wait leaves no trace: asking without a waiter registers nobody', async (one) => {
    await one.granted('a');
    await one.busy('b');
    await one.release('a');
    await one.granted('somebody', { waiter: waiter('w') });
  });
}
