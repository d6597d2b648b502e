import { beforeEach, describe, expect, it, jest } from '@jest/globals';
import { FaultyStore, leaseOptions } from '../../../../test/support/faulty-store.js';
import { Gate } from '../../../../test/support/gate.js';
import { ManualClock } from '../testing/manual-clock.js';
import { FencingEmitter } from './events.js';
import { HeldLease } from './lease.js';
import type { LeaseOptions } from './options.js';
import { Renewals } from './renewals.js';

const TTL_MS = 2_400;
/** A third, a sixth and the grid of leases that are due together: 1/24. */
const [THIRD, SIXTH, GRID] = [TTL_MS / 3, TTL_MS / 6, TTL_MS / 24];
const VALID_MS = TTL_MS * 0.99 - 2;

describe('renewals', () => {
  let clock: ManualClock;
  let store: FaultyStore;
  let renewals: Renewals;
  let keys = 0;
  const ended = jest.fn((lease: HeldLease) => renewals.remove(lease));

  beforeEach(() => {
    clock = new ManualClock();
    store = new FaultyStore({ clock });
    renewals = new Renewals(store, clock);
    ended.mockClear();
  });

  const hold = async (options: LeaseOptions = {}, key = `key-${keys++}`): Promise<HeldLease> => {
    const resolved = leaseOptions({ ttlMs: TTL_MS, ...options });
    const grantedAt = clock.now();
    const answer = await store.acquire({ key, owner: key, ttlMs: resolved.ttlMs, floor: 0 });
    if (!answer.granted) throw new Error('busy');
    const lease = new HeldLease(key, key, answer.generation, grantedAt, resolved, {
      clock,
      logger: { warn: () => undefined, error: () => undefined },
      events: new FencingEmitter(),
      leaseEnded: ended,
      confirm: async () => undefined,
      raise: async () => undefined,
    });
    renewals.add(lease);
    return lease;
  };

  it('renew a lease at a third of its ttl, again and again', async () => {
    const lease = await hold();
    await clock.advance(THIRD - GRID - 1);
    expect(store.count('renew')).toBe(0);
    await clock.advance(GRID + 1);
    expect(store.count('renew')).toBe(1);
    await clock.advance(10 * TTL_MS);
    expect(lease.state).toBe('held');
    expect(store.count('renew')).toBeGreaterThanOrEqual(30);
    expect(store.count('renew')).toBeLessThanOrEqual(36);
  });

  it('never send a renewal that creates a key: a lease that the store has forgotten is lost at once', async () => {
    const lease = await hold();
    store.expireNow(lease.key);
    await clock.advance(THIRD);
    expect(lease.ended()).toMatchObject({ code: 'LEASE_LOST', reason: 'superseded' });
    expect(await store.inspect(lease.key)).toBeUndefined();
  });

  it('take a refusal as final: nothing more is asked for that lease, and the others go on', async () => {
    const [lost, kept] = [await hold(), await hold()];
    store.steal(lost.key);
    await clock.advance(THIRD);
    store.sent.length = 0;
    await clock.advance(2 * TTL_MS);
    expect(lost.state).toBe('lost');
    expect(kept.state).toBe('held');
    expect(store.sent.flatMap(({ request }) => request.map(({ key }: { key: string }) => key))).not.toContain(
      lost.key,
    );
  });

  it('keep a thousand leases with one timer and one request per batch of 250, each in a turn of its own', async () => {
    for (let i = 0; i < 1_000; i++) await hold();
    store.sent.length = 0;
    expect(clock.armed).toBe(1);
    await clock.advance(THIRD);
    expect(clock.armed).toBe(1);
    expect(store.sent.map(({ method, request }) => [method, request.length])).toEqual(
      Array.from({ length: 4 }, () => ['renew', 250]),
    );
  });

  it('leave out what ended between two batches, for good', async () => {
    const leases: HeldLease[] = [];
    for (let i = 0; i < 251; i++) leases.push(await hold());
    store.sent.length = 0;
    await clock.advance(THIRD - 1);
    // Fires after the timer of the renewals, which was armed first, and before the second batch.
    clock.setTimer(1, () => leases.at(-1)!.finish());
    await clock.advance(1);
    expect(store.count('renew')).toBe(1);
    await clock.advance(TTL_MS);
    expect(store.sent.flatMap(({ request }) => request)).not.toContainEqual(
      expect.objectContaining({ owner: leases.at(-1)!.owner }),
    );
  });

  it('share a request between leases that are due at about the same time', async () => {
    await hold();
    await clock.advance(GRID - 2);
    await hold();
    await clock.advance(THIRD);
    expect(store.count('renew')).toBe(1);
    expect(store.sent.at(-1)!.request).toHaveLength(2);
  });

  it.each(['fail', 'hang'] as const)(
    'of different parts of the store go in requests of their own: those of one %s, and the others are confirmed',
    async (fault) => {
      store.partOf = (key) => Number(key.split(':')[1]);
      const [theirs, ours] = [await hold({}, 'a:1'), await hold({}, 'b:2')];
      store.next('renew', fault);
      await clock.advance(THIRD);
      expect(store.count('renew')).toBe(2);
      expect(theirs.awaitingRenewal).toBe(true);
      expect(ours.awaitingRenewal).toBe(false);
      expect(ours.state).toBe('held');
      expect(ours.validUntil).toBeGreaterThan(theirs.validUntil);
    },
  );

  it('of a thousand leases in two parts of the store are still few requests', async () => {
    store.partOf = (key) => Number(key.split(':')[1]);
    for (let i = 0; i < 1_000; i++) await hold({}, `${i}:${i % 2}`);
    await clock.advance(THIRD);
    expect(store.count('renew')).toBe(4);
  });

  it('are quiet when no lease is left', async () => {
    const lease = await hold();
    lease.finish();
    await clock.advance(TTL_MS);
    expect(store.count('renew')).toBe(0);
    expect(clock.armed).toBe(0);
  });

  it('go on after one failed, and after every failed one, until the deadline', async () => {
    const lease = await hold();
    store.break('fail', 'renew');
    await clock.advance(THIRD);
    expect(lease.state).toBe('uncertain');
    await clock.advance(2 * SIXTH);
    expect(store.count('renew')).toBe(3);
    store.heal();
    await clock.advance(SIXTH);
    expect(lease.state).toBe('held');
    await clock.advance(5 * TTL_MS);
    expect(lease.state).toBe('held');
  });

  it('that are never answered make a lease uncertain after a sixth, and lost at its deadline', async () => {
    const lease = await hold();
    store.freeze();
    await clock.advance(THIRD);
    expect(lease.state).toBe('held');
    await clock.advance(SIXTH);
    expect(lease.state).toBe('uncertain');
    await clock.advance(VALID_MS - clock.now() - 1);
    expect(ended).not.toHaveBeenCalled();
    await clock.advance(1);
    // Nobody asked the lease: the timer ended it.
    expect(ended).toHaveBeenCalledTimes(1);
    expect(lease.ended()).toMatchObject({ reason: 'expired' });
  });

  it('of other leases go on while those of one hang', async () => {
    const frozen = await hold();
    store.next('renew', 'hang');
    await clock.advance(THIRD);
    const other = await hold();
    await clock.advance(3 * TTL_MS);
    expect(other.state).toBe('held');
    expect(frozen.state).toBe('held');
  });

  it('count validity from before the request was sent', async () => {
    const lease = await hold();
    const gate = new Gate();
    store.next('renew', { slow: gate });
    store.next('renew', 'hang');
    await clock.advance(THIRD);
    const sentAt = Math.floor(THIRD / GRID) * GRID;
    await clock.advance(300);
    gate.open();
    await clock.advance(0);
    expect(lease.validUntil).toBe(sentAt + VALID_MS);
  });

  it('look at the deadline first when the event loop was blocked past it', async () => {
    const lease = await hold();
    clock.block(TTL_MS);
    await clock.advance(0);
    expect(store.count('renew')).toBe(0);
    expect(lease.ended()).toMatchObject({ reason: 'expired' });
  });

  it('do not revive a lease whose confirmation comes after its deadline', async () => {
    const lease = await hold();
    const gate = new Gate();
    store.break({ slow: gate }, 'renew');
    await clock.advance(THIRD);
    clock.block(VALID_MS - clock.now());
    gate.open();
    await clock.advance(0);
    expect(lease.state).toBe('lost');
  });

  it('renew an acquisition of the same key after a true loss', async () => {
    const lost = await hold({}, 'again');
    store.expireNow('again');
    await clock.advance(THIRD);
    expect(lost.state).toBe('lost');
    const second = await hold({}, 'again');
    await clock.advance(5 * TTL_MS);
    expect(second.state).toBe('held');
  });

  it('of a lease of 90 days make no storm', async () => {
    await hold({ ttlMs: 90 * 24 * 3_600_000 });
    await clock.advance(24 * 3_600_000);
    expect(store.count('renew')).toBe(0);
    await clock.advance(29 * 24 * 3_600_000);
    expect(store.count('renew')).toBe(1);
  });

  it('stop when closed', async () => {
    await hold();
    renewals.close();
    await clock.advance(TTL_MS);
    expect(store.count('renew')).toBe(0);
    expect(clock.armed).toBe(0);
  });
});
