import { randomUUID } from 'node:crypto';
import { afterEach, beforeEach, expect, it } from '@jest/globals';
import type { LeaseStore, WakeHint } from 'nestjs-fencing';
import { eventually } from './gate.js';

const LAST = Number.MAX_SAFE_INTEGER;

/** Keys that would break a store that builds names or patterns of them without care. */
export const HOSTILE_KEYS = [
  ' spaces  inside ',
  'line\nbreak\r\n',
  '{braces}',
  '}{',
  '{a}{b}',
  '*',
  '> waiter',
  'trailing:',
  'quote\' " \\ $1 $$',
  'é\u0065\u0301',
  '😀',
  'a'.repeat(1_024),
];

/** The contract on `LeaseStore`. `make` gives a store that has issued nothing yet. */
export function itKeepsTheContract(make: () => LeaseStore | Promise<LeaseStore>): void {
  let store: LeaseStore;
  let key: string;
  beforeEach(async () => {
    store = await make();
    await store.check();
    key = `key ${randomUUID()}`;
  });
  afterEach(() => store.close());

  const acquire = (
    owner: string,
    more: { ttlMs?: number; floor?: number; waiter?: { id: string; forMs: number } } = {},
  ) => store.acquire({ key, owner, ttlMs: 10_000, floor: 0, ...more });
  const granted = async (owner: string, more: Parameters<typeof acquire>[1] = {}) => {
    const answer = await acquire(owner, more);
    if (!answer.granted) throw new Error('busy');
    return answer.generation;
  };
  const renew = async (owner: string, ttlMs = 10_000) => (await store.renew([{ key, owner, ttlMs }]))[0];
  const busy = { granted: false, remainingMs: expect.any(Number) };
  const waiter = (id: string) => ({ id, forMs: 60_000 });

  it('grants a free key under a positive safe integer, and knows who holds it', async () => {
    const generation = await granted('a');
    expect(Number.isSafeInteger(generation) && generation > 0).toBe(true);
    const seen = await store.inspect(key);
    expect(seen).toMatchObject({ owner: 'a', generation });
    expect(seen!.remainingMs).toBeGreaterThan(0);
    expect(seen!.remainingMs).toBeLessThanOrEqual(10_000);
  });

  it('is busy for everybody else, and says how long at most', async () => {
    const generation = await granted('a');
    const answer = await acquire('b');
    expect(answer).toMatchObject({ granted: false });
    if (answer.granted) return;
    expect(answer.remainingMs).toBeGreaterThan(0);
    expect(answer.remainingMs).toBeLessThanOrEqual(10_000);
    expect(await store.inspect(key)).toMatchObject({ owner: 'a', generation });
  });

  it('issues strictly increasing generations', async () => {
    const generations: number[] = [];
    for (let i = 0; i < 100; i++) {
      generations.push(await granted(`owner ${i}`));
      await store.release({ key, owner: `owner ${i}` });
    }
    expect(generations).toEqual([...new Set(generations)].sort((a, b) => a - b));
  });

  it('I6: answers a repeated acquisition with the same generation, and gives it the whole ttl again', async () => {
    const first = await granted('a', { ttlMs: 5_000 });
    expect(await granted('a', { ttlMs: 30_000 })).toBe(first);
    expect((await store.inspect(key))!.remainingMs).toBeGreaterThan(5_000);
  });

  it('issues above the floor for an owner that holds less, once: repeating it changes nothing', async () => {
    const first = await granted('a');
    const floor = first + 1_000_000_000;
    const second = await granted('a', { floor });
    expect(second).toBeGreaterThan(floor);
    expect(await granted('a', { floor })).toBe(second);
    // A late duplicate of the first request must not move a lease that is in use.
    expect(await granted('a')).toBe(second);
    await store.release({ key, owner: 'a' });
    expect(await granted('b')).toBeGreaterThan(second);
  });

  it('does not let a floor take the key from its holder', async () => {
    await granted('a');
    expect((await acquire('b', { floor: 2 ** 52 })).granted).toBe(false);
  });

  it('reaches the largest safe integer and goes no further, with a typed error', async () => {
    expect(await granted('a', { floor: LAST - 1 })).toBe(LAST);
    await expect(acquire('a', { floor: LAST })).rejects.toMatchObject({ code: 'GENERATIONS_EXHAUSTED' });
    expect(await granted('a')).toBe(LAST);
    await store.release({ key, owner: 'a' });
    await expect(acquire('b')).rejects.toMatchObject({ code: 'GENERATIONS_EXHAUSTED' });
    expect(await store.inspect(key)).toBeUndefined();
  });

  it('renews for the owner, from now on', async () => {
    await granted('a', { ttlMs: 5_000 });
    expect(await renew('a', 30_000)).toBe(true);
    expect((await store.inspect(key))!.remainingMs).toBeGreaterThan(5_000);
  });

  it('I5: renewal by a non-owner changes nothing', async () => {
    await granted('a', { ttlMs: 5_000 });
    expect(await renew('b', 60_000)).toBe(false);
    expect(await renew('', 60_000)).toBe(false);
    expect((await store.inspect(key))!.remainingMs).toBeLessThanOrEqual(5_000);
  });

  it('never creates a key by renewing', async () => {
    expect(await renew('a')).toBe(false);
    expect(await store.inspect(key)).toBeUndefined();
  });

  it('answers each of several renewals, in order', async () => {
    await granted('a');
    const other = `${key} 2`;
    await store.acquire({ key: other, owner: 'b', ttlMs: 10_000, floor: 0 });
    const requests = [
      { key, owner: 'b', ttlMs: 10_000 },
      { key: other, owner: 'b', ttlMs: 10_000 },
      { key: `${key} 3`, owner: 'c', ttlMs: 10_000 },
      { key, owner: 'a', ttlMs: 10_000 },
    ];
    expect(await store.renew(requests)).toEqual([false, true, false, true]);
  });

  it('frees the key when its ttl is over, and not before its owner was told that it is gone', async () => {
    await granted('a', { ttlMs: 100 });
    await eventually(async () => (await store.inspect(key)) === undefined);
    expect(await renew('a')).toBe(false);
    expect((await acquire('b')).granted).toBe(true);
  });

  it('releases for the owner', async () => {
    await granted('a');
    expect(await store.release({ key, owner: 'a' })).toEqual({ held: true });
    expect(await store.inspect(key)).toBeUndefined();
  });

  it('I5: release by a non-owner changes nothing', async () => {
    const generation = await granted('a');
    expect(await store.release({ key, owner: 'b' })).toEqual({ held: false });
    expect(await store.release({ key, owner: '' })).toEqual({ held: false });
    const successor = { owner: 'c', ttlMs: 10_000, waiterId: 'w', forMs: 10_000 };
    expect(await store.release({ key, owner: 'b', successor })).toEqual({ held: false });
    expect(await store.release({ key, owner: 'b', holdMs: 1 })).toEqual({ held: false });
    expect(await store.inspect(key)).toMatchObject({ owner: 'a', generation });
  });

  it('I6: a release that is sent again after somebody else took the key leaves that lease alone', async () => {
    await granted('a');
    await store.release({ key, owner: 'a' });
    const generation = await granted('b');
    expect(await store.release({ key, owner: 'a' })).toEqual({ held: false });
    expect(await store.inspect(key)).toMatchObject({ owner: 'b', generation });
  });

  it('keeps a released key taken for holdMs', async () => {
    await granted('a');
    const [released, second] = await Promise.all([
      store.release({ key, owner: 'a', holdMs: 150 }),
      acquire('b'),
    ]);
    expect(released).toEqual({ held: true });
    expect(second.granted).toBe(false);
    await eventually(async () => (await acquire('b')).granted);
  });

  it('hands the key over to a named successor in the same step, under a higher generation', async () => {
    const first = await granted('a');
    const answer = await store.release({
      key,
      owner: 'a',
      successor: { owner: 'b', ttlMs: 10_000, waiterId: 'w', forMs: 10_000 },
    });
    const { generation } = answer.successor as { generation: number };
    expect(generation).toBeGreaterThan(first);
    expect(await store.inspect(key)).toMatchObject({ owner: 'b', generation });
    // The successor's own request, sent because the answer was lost, is a retry.
    expect(await granted('b')).toBe(generation);
  });

  // What is kept for a waiter is kept for 100 ms, so the steps of these tests are sent together; stores keep their order.

  it('refuses the hand-over in favour of another process that waits, and puts the successor behind it', async () => {
    await granted('a');
    await acquire('their head', { waiter: waiter('theirs') });
    const successor = { owner: 'b', ttlMs: 10_000, waiterId: 'mine', forMs: 60_000 };
    const [answer, mine, somebody, theirs] = await Promise.all([
      store.release({ key, owner: 'a', successor }),
      acquire('b', { waiter: waiter('mine') }),
      acquire('somebody'),
      acquire('their head', { waiter: waiter('theirs') }),
    ]);
    expect((answer.successor as { waitMs: number }).waitMs).toBeGreaterThan(0);
    expect([mine, somebody, theirs].map((one) => one.granted)).toEqual([false, false, true]);
    const [, again] = await Promise.all([
      store.release({ key, owner: 'their head' }),
      acquire('b', { waiter: waiter('mine') }),
    ]);
    expect(again.granted).toBe(true);
  });

  it('serves waiting processes first come, first served', async () => {
    await granted('first');
    for (const id of ['1', '2', '3']) await acquire(`head ${id}`, { waiter: waiter(id) });
    await acquire('head 1', { waiter: waiter('1') });
    let holder = 'first';
    for (const id of ['1', '2', '3']) {
      const others = ['1', '2', '3'].filter((one) => one > id);
      const answers = await Promise.all([
        store.release({ key, owner: holder }),
        ...[...others, id].map((one) => acquire(`head ${one}`, { waiter: waiter(one) })),
      ]);
      expect(answers.slice(1)).toEqual([
        ...others.map(() => busy),
        { granted: true, generation: expect.any(Number) },
      ]);
      holder = `head ${id}`;
    }
  });

  it('tells the waiting process whose turn it is', async () => {
    await granted('a');
    const hints: WakeHint[] = [];
    const since = performance.now();
    const watch = store.watch(key, (hint) => hints.push(hint), since);
    await watch.live;
    await acquire('head', { waiter: waiter('w') });
    await store.release({ key, owner: 'a' });
    await eventually(() => hints.some(({ waiterId }) => waiterId === 'w'));
    watch.stop();
    hints.length = 0;
    await eventually(async () => (await acquire('head', { waiter: waiter('w') })).granted);
    await acquire('other', { waiter: waiter('x') });
    await store.release({ key, owner: 'head' });
    const second = store.watch(key, () => undefined, performance.now());
    await second.live;
    second.stop();
    expect(hints).toEqual([]);
  });

  it('frees a key that is kept for a waiter that does not come, soon', async () => {
    await granted('a');
    await acquire('head', { waiter: waiter('gone') });
    await store.release({ key, owner: 'a' });
    expect(await store.inspect(key)).toBeUndefined();
    await eventually(async () => (await acquire('b')).granted);
  });

  it('passes what was kept for a waiter on to the next when it withdraws, and frees it after the last', async () => {
    await granted('a');
    for (const id of ['1', '2']) await acquire(`head ${id}`, { waiter: waiter(id) });
    const [, , second, , third] = await Promise.all([
      store.release({ key, owner: 'a' }),
      store.withdraw(key, '1'),
      acquire('somebody'),
      store.withdraw(key, '2'),
      acquire('somebody'),
    ]);
    expect([second, third]).toEqual([busy, { granted: true, generation: expect.any(Number) }]);
  });

  it('forgets a waiter that withdraws while the key is held', async () => {
    await granted('a');
    await acquire('head', { waiter: waiter('w') });
    await store.withdraw(key, 'w');
    await store.release({ key, owner: 'a' });
    expect((await acquire('somebody')).granted).toBe(true);
    await store.withdraw(key, 'w');
    expect(await store.inspect(key)).toMatchObject({ owner: 'somebody' });
  });

  it.each(HOSTILE_KEYS)('treats the key %j like any other', async (hostile) => {
    key = hostile;
    const first = await granted('a');
    expect((await acquire('b', { waiter: waiter('w') })).granted).toBe(false);
    expect(await renew('a')).toBe(true);
    expect(await store.inspect(key)).toMatchObject({ owner: 'a', generation: first });
    const hints: WakeHint[] = [];
    const watch = store.watch(key, (hint) => hints.push(hint), performance.now());
    await watch.live;
    expect(await store.release({ key, owner: 'a' })).toEqual({ held: true });
    await eventually(() => hints.some(({ waiterId }) => waiterId === 'w'));
    watch.stop();
    await eventually(async () => (await acquire('b', { waiter: waiter('w') })).granted);
  });
}
