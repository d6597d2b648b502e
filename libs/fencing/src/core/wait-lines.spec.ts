import { beforeEach, describe, expect, it } from '@jest/globals';
import { getEventListeners } from 'node:events';
import { ManualClock } from '../testing/manual-clock.js';
import { LeaseBusyError, StoreUnavailableError, WaitAbortedError } from './errors.js';
import { WaitLines, type WaitRequest } from './wait-lines.js';

describe('the line of callers that want one key', () => {
  let clock: ManualClock;
  let lines: WaitLines;
  beforeEach(() => {
    clock = new ManualClock();
    lines = new WaitLines(clock);
  });

  const turn = { sentAt: 0 };
  function wait(owner: string, request: Partial<WaitRequest> = {}) {
    const startedAt = clock.now();
    const promise = lines.wait(
      { key: 'k', owner, ttlMs: 1_000, until: startedAt + 5_000, draining: false, ...request },
      () => new LeaseBusyError('k', clock.now() - startedAt, lines.freeInMs('k')),
    );
    promise.catch(() => undefined); // looked at later
    return promise;
  }

  it('has one head; the next is let in when it leaves, and the line is gone with the last', () => {
    expect(lines.enter('k')).toBe(true);
    expect(lines.enter('k')).toBe(false);
    expect(lines.enter('other')).toBe(true);
    expect(lines.size).toBe(2);
    expect(lines.next('k')).toBeUndefined();
    expect(lines.size).toBe(1);
    expect(lines.enter('k')).toBe(true);
  });

  it('is served in the order of arrival', async () => {
    lines.enter('k');
    const order: string[] = [];
    for (const owner of ['a', 'b', 'c']) void wait(owner).then(() => order.push(owner));
    expect(lines.waiting('k')).toBe(3);
    for (const owner of ['a', 'b', 'c']) {
      const next = lines.next('k')!;
      expect(next.owner).toBe(owner);
      expect(next.give(turn)).toBe(true);
    }
    await clock.advance(0);
    expect(order).toEqual(['a', 'b', 'c']);
    expect(lines.next('k')).toBeUndefined();
    expect(lines.size).toBe(0);
  });

  it('gives a turn on to the waiter as it is', async () => {
    lines.enter('k');
    const waiting = wait('a');
    lines.next('k')!.give({ sentAt: 7, grant: { generation: 9 } });
    await expect(waiting).resolves.toEqual({ sentAt: 7, grant: { generation: 9 } });
  });

  it('a waiter leaves it when its time is over, with what is known of the key', async () => {
    lines.enter('k');
    const first = wait('a', { until: 300 });
    const second = wait('b');
    lines.expectFreeAt('k', 1_000);
    await clock.advance(299);
    expect(lines.waiting('k')).toBe(2);
    await clock.advance(1);
    await expect(first).rejects.toMatchObject({ code: 'LEASE_BUSY', waitedMs: 300, retryAfterMs: 700 });
    await expect(first).rejects.toThrow(LeaseBusyError);
    expect(lines.waiting('k')).toBe(1);
    expect(lines.next('k')!.owner).toBe('b');
    expect(clock.armed).toBe(1); // the second one's own
    void second;
  });

  it('a waiter leaves it when its signal aborts, and nothing listens on', async () => {
    lines.enter('k');
    const { signal, abort } = ((controller) => ({
      signal: controller.signal,
      abort: (r: unknown) => controller.abort(r),
    }))(new AbortController());
    const waiting = wait('a', { signal });
    expect(getEventListeners(signal, 'abort')).toHaveLength(1);
    const reason = new Error('not needed any more');
    abort(reason);
    await expect(waiting).rejects.toThrow(WaitAbortedError);
    await expect(waiting).rejects.toMatchObject({ cause: reason });
    expect(lines.waiting('k')).toBe(0);
    expect(clock.armed).toBe(0);
    expect(getEventListeners(signal, 'abort')).toHaveLength(0);
  });

  it('nothing is left of a waiter that was served: no timer, no listener', async () => {
    lines.enter('k');
    const { signal } = new AbortController();
    const waiting = wait('a', { signal });
    lines.next('k')!.give(turn);
    await waiting;
    expect(clock.armed).toBe(0);
    expect(getEventListeners(signal, 'abort')).toHaveLength(0);
  });

  it('a turn that comes too late is not taken, so that it can be given to the next', async () => {
    lines.enter('k');
    const waiting = wait('a', { until: 100 });
    const next = lines.next('k')!;
    await clock.advance(100);
    await expect(waiting).rejects.toThrow(LeaseBusyError);
    expect(next.give(turn)).toBe(false);
  });

  it('all of it can be sent away, or those for whom there is a reason', async () => {
    lines.enter('k');
    lines.enter('l');
    const ordinary = [wait('a'), wait('b', { key: 'l' })];
    const draining = wait('c', { draining: true });
    const reason = new StoreUnavailableError('lease store', 'shutting down', { retryable: false });
    lines.rejectAll((waiter) => (waiter.draining ? undefined : reason));
    for (const one of ordinary) await expect(one).rejects.toBe(reason);
    expect(lines.waiting('k')).toBe(1);
    lines.next('k')!.give(turn);
    await expect(draining).resolves.toBe(turn);
  });

  it('knows when its key should be free, and nothing of keys that nobody wants', () => {
    lines.expectFreeAt('k', 500);
    expect(lines.freeInMs('k')).toBe(0);
    lines.enter('k');
    lines.expectFreeAt('k', 500);
    expect(lines.freeInMs('k')).toBe(500);
    clock.block(600);
    expect(lines.freeInMs('k')).toBe(0);
    expect(lines.waiting('unknown')).toBe(0);
  });
});
