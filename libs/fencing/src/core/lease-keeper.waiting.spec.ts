import { beforeEach, describe, expect, it } from '@jest/globals';
import {
  type Bench,
  keeperBench,
  leaseOptions,
  observe,
  STORE_TIMEOUT_MS,
} from '../../../../test/support/faulty-store.js';
import { Gate } from '../../../../test/support/gate.js';
import { WaitAbortedError } from './errors.js';
import type { LeaseKeeper } from './lease-keeper.js';

const KEY = 'report:42';

describe('callers that wait for a key', () => {
  let bench: Bench;
  let order: string[];
  beforeEach(() => {
    bench = keeperBench();
    order = [];
  });

  /** A leased call that notes when it begins, and ends when the gate opens. */
  const call = (
    name: string,
    gate?: Gate,
    keeper: LeaseKeeper = bench.keeper,
    signal?: AbortSignal,
    waitMs = 10_000,
  ) =>
    observe(
      keeper.run(
        [KEY],
        leaseOptions({ waitMs }),
        async ([lease]) => {
          order.push(name);
          await gate?.wait();
          return lease!.generation;
        },
        { signal },
      ),
    );

  it('have their turn in the order they came, each under a higher generation', async () => {
    const gate = new Gate();
    const calls = [call('first', gate), call('second'), call('third'), call('fourth')];
    await bench.settle();
    expect(order).toEqual(['first']);
    gate.open();
    await bench.settle();
    expect(order).toEqual(['first', 'second', 'third', 'fourth']);
    const generations = calls.map(({ value }) => value!);
    expect(generations).toEqual([...new Set(generations)].sort((a, b) => a - b));
  });

  it('never overlap, whoever ends first', async () => {
    let running = 0;
    const body = async () => {
      expect(++running).toBe(1);
      await new Promise(setImmediate);
      running -= 1;
    };
    await Promise.all(Array.from({ length: 50 }, () => bench.keeper.run([KEY], leaseOptions(), body)));
  });

  it('cost one request each: the key is handed over in the release of the one before', async () => {
    const gate = new Gate();
    const calls = [call('first', gate), ...Array.from({ length: 49 }, (_, i) => call(`next ${i}`))];
    await bench.settle();
    gate.open();
    await bench.settle();
    expect(calls.every(({ state }) => state === 'resolved')).toBe(true);
    expect(bench.store.sent.filter(({ method }) => method !== 'renew')).toHaveLength(51);
  });

  it('give up after waitMs as busy, and leave the line', async () => {
    const gate = new Gate();
    call('first', gate);
    const impatient = call('impatient', undefined, bench.keeper, undefined, 1_000);
    const patient = call('patient');
    await bench.clock.advance(1_000);
    expect(impatient.error).toMatchObject({ code: 'LEASE_BUSY', waitedMs: 1_000 });
    expect(impatient.error!.retryAfterMs).toBeGreaterThan(0);
    gate.open();
    await bench.settle();
    expect(order).toEqual(['first', 'patient']);
    expect(patient.state).toBe('resolved');
  });

  it('give up when their signal aborts, and leave the line', async () => {
    const gate = new Gate();
    const stop = new AbortController();
    call('first', gate);
    const aborted = call('aborted', undefined, bench.keeper, stop.signal);
    const patient = call('patient');
    await bench.settle();
    stop.abort('changed my mind');
    await bench.settle();
    expect(aborted.error).toBeInstanceOf(WaitAbortedError);
    expect(aborted.error!.cause).toBe('changed my mind');
    gate.open();
    await bench.settle();
    expect(order).toEqual(['first', 'patient']);
    expect(patient.state).toBe('resolved');
  });

  it('do not even ask with a signal that has aborted before', async () => {
    const late = call('late', undefined, bench.keeper, AbortSignal.abort());
    await bench.settle();
    expect(late.error).toBeInstanceOf(WaitAbortedError);
    expect(bench.store.sent).toEqual([]);
  });

  it('at the head of the line stop waiting for another holder when their signal aborts', async () => {
    const stop = new AbortController();
    bench.store.steal(KEY);
    const head = call('head', undefined, bench.keeper, stop.signal);
    const next = call('next');
    await bench.clock.advance(100);
    stop.abort();
    await bench.settle();
    expect(head.error).toBeInstanceOf(WaitAbortedError);
    bench.store.expireNow(KEY);
    await bench.settle();
    expect(order).toEqual(['next']);
    expect(next.state).toBe('resolved');
  });

  it('that abort while the store is asked give the grant back when it comes', async () => {
    const stop = new AbortController();
    const answer = new Gate();
    bench.store.next('acquire', { slow: answer });
    const aborted = call('aborted', undefined, bench.keeper, stop.signal);
    await bench.settle();
    stop.abort();
    answer.open();
    await bench.settle();
    expect(aborted.error).toBeInstanceOf(WaitAbortedError);
    expect(order).toEqual([]);
    expect(await bench.store.inspect(KEY)).toBeUndefined();
  });

  it('that abort while the store is silent do not wait for it', async () => {
    const stop = new AbortController();
    bench.store.freeze();
    const aborted = call('aborted', undefined, bench.keeper, stop.signal);
    await bench.settle();
    stop.abort();
    await bench.settle();
    expect(aborted.error).toBeInstanceOf(WaitAbortedError);
  });

  it('are skipped by the hand-over when they gave up while it was under way, and the next is served', async () => {
    const answer = new Gate();
    const first = new Gate();
    call('first', first);
    const impatient = call('impatient', undefined, bench.keeper, undefined, 300);
    const patient = call('patient');
    await bench.settle();
    bench.store.next('release', { slow: answer });
    first.open();
    await bench.clock.advance(400);
    expect(impatient.error).toMatchObject({ code: 'LEASE_BUSY' });
    answer.open();
    await bench.settle();
    expect(order).toEqual(['first', 'patient']);
    expect(patient.state).toBe('resolved');
    expect(await bench.store.inspect(KEY)).toBeUndefined();
  });

  it('are not left out when the answer to a hand-over is lost: the grant is theirs all the same', async () => {
    const first = new Gate();
    call('first', first);
    const second = call('second');
    await bench.settle();
    bench.store.next('release', 'lose');
    first.open();
    await bench.clock.advance(STORE_TIMEOUT_MS + 100);
    expect(second.state).toBe('resolved');
    expect(await bench.store.inspect(KEY)).toBeUndefined();
  });

  it('that gave up during a hand-over whose answer was lost leave nothing behind', async () => {
    const first = new Gate();
    call('first', first);
    const impatient = call('impatient', undefined, bench.keeper, undefined, 300);
    await bench.settle();
    bench.store.next('release', 'lose');
    first.open();
    await bench.clock.advance(STORE_TIMEOUT_MS + 100);
    expect(impatient.error).toMatchObject({ code: 'LEASE_BUSY' });
    expect(await bench.store.inspect(KEY)).toBeUndefined();
  });

  it('of another application go first when a key is handed over: none starves another', async () => {
    const gate = new Gate();
    const other = bench.another();
    call('mine 1', gate);
    await bench.settle();
    call('theirs 1', undefined, other);
    await bench.settle();
    call('mine 2');
    call('mine 3');
    call('theirs 2', undefined, other);
    // Longer than one application may keep a key that others wait for.
    await bench.clock.advance(20);
    gate.open();
    await bench.clock.advance(200);
    expect(order).toEqual(['mine 1', 'theirs 1', 'theirs 2', 'mine 2', 'mine 3']);
  });

  it('of another application go first after a bounded number of quick hand-overs', async () => {
    const gate = new Gate();
    const other = bench.another();
    call('mine', gate);
    await bench.settle();
    call('theirs', undefined, other);
    await bench.settle();
    for (let n = 0; n < 30; n++) call('mine');
    await bench.settle();
    gate.open();
    await bench.clock.advance(200);
    expect(order).toHaveLength(32);
    expect(order.indexOf('theirs')).toBe(20);
  });

  it('that gave up their place at the store leave no place behind', async () => {
    const gate = new Gate();
    const answer = new Gate();
    const other = bench.another();
    call('mine', gate);
    await bench.settle();
    call('theirs', undefined, other);
    const impatient = call('impatient', undefined, bench.keeper, undefined, 300);
    await bench.clock.advance(20);
    bench.store.next('release', { slow: answer });
    gate.open();
    await bench.clock.advance(400);
    answer.open();
    await bench.settle();
    expect(impatient.error).toMatchObject({ code: 'LEASE_BUSY' });
    expect(bench.store.sent.at(-1)).toMatchObject({ method: 'withdraw' });
  });

  it('are not held up for long by a woken application that does not come', async () => {
    const gate = new Gate();
    const other = bench.another();
    call('mine', gate);
    await bench.settle();
    const theirs = call('theirs', undefined, other);
    await bench.settle();
    // The other application is gone: no request of it arrives any more, and nobody hears its hints.
    const [waiter] = bench.store.sent.filter(({ request }) => request.waiter).slice(-1);
    expect(waiter).toBeDefined();
    await bench.store.withdraw(KEY, waiter!.request.waiter!.id);
    await bench.store.acquire({ ...waiter!.request, waiter: { id: 'dead', forMs: 60_000 } });
    const next = call('next');
    await bench.settle();
    gate.open();
    await bench.clock.advance(500);
    expect([next.state, theirs.state]).toEqual(['resolved', 'resolved']);
  });

  it('that the store made wait are tried again at the latest when the holder should be gone', async () => {
    bench.store.steal(KEY, 1_500);
    const head = call('head');
    await bench.clock.advance(2_500);
    expect(head.state).toBe('resolved');
  });

  it('get the key without any hint, soon after it is free: when the holder should be gone', async () => {
    bench.store.isDeaf = true;
    bench.store.steal(KEY, 1_500);
    const head = call('head');
    await bench.clock.advance(2_000);
    expect(head.state).toBe('resolved');
  });

  it('try again every two seconds or so where no hint comes', async () => {
    bench.store.isDeaf = true;
    bench.store.steal(KEY, 60_000);
    call('head', undefined, bench.keeper, undefined, 20_000);
    await bench.clock.advance(10_000);
    expect(bench.store.count('acquire')).toBeGreaterThanOrEqual(4);
    expect(bench.store.count('acquire')).toBeLessThanOrEqual(7);
  });

  it('withdraw from the store when they give up', async () => {
    bench.store.steal(KEY, 60_000);
    call('head', undefined, bench.keeper, undefined, 1_000);
    await bench.clock.advance(1_000);
    expect(bench.store.count('withdraw')).toBe(1);
  });

  it('withdraw also where it is not known whether the store has noted them', async () => {
    bench.store.steal(KEY, 60_000);
    bench.store.next('acquire', 'lose');
    call('head', undefined, bench.keeper, undefined, 300);
    await bench.clock.advance(2_000);
    expect(bench.store.count('acquire')).toBe(1);
    expect(bench.store.count('withdraw')).toBe(1);
  });

  it('leave no timer behind', async () => {
    const gate = new Gate();
    call('first', gate);
    call('second');
    const stop = new AbortController();
    call('third', undefined, bench.keeper, stop.signal);
    await bench.settle();
    stop.abort();
    gate.open();
    // The schedule of renewals goes quiet by itself.
    await bench.clock.advance(3_000);
    expect(bench.clock.armed).toBe(0);
  });
});
