import { beforeEach, describe, expect, it, jest } from '@jest/globals';
import { leaseOptions } from '../../../../test/support/faulty-store.js';
import { ManualClock } from '../testing/manual-clock.js';
import { LeaseLostError, LeaseReleasedError, LeaseUncertainError, StaleGenerationError } from './errors.js';
import { FencingEmitter } from './events.js';
import { HeldLease } from './lease.js';
import type { LeaseOptions } from './options.js';

const TTL_MS = 3_000;
/** 1 % for clocks that run at different rates, 2 ms for the resolution of the store's expiry. */
const VALID_MS = TTL_MS * 0.99 - 2;

describe('a held lease', () => {
  let clock: ManualClock;
  const ended = jest.fn();
  const report = jest.fn();

  beforeEach(() => {
    clock = new ManualClock();
    ended.mockClear();
    report.mockClear();
  });

  const grant = (options: LeaseOptions = {}) =>
    new HeldLease('report:42', 'owner', 7, clock.now(), leaseOptions({ ttlMs: TTL_MS, ...options }), {
      clock,
      logger: { warn: report, error: report },
      events: new FencingEmitter(),
      leaseEnded: ended,
      confirm: async () => undefined,
      raise: async () => undefined,
    });

  it('is valid for its ttl from before its request was sent, less a drift margin', () => {
    const lease = grant();
    expect(lease.remainingMs()).toBe(VALID_MS);
    clock.block(VALID_MS - 1);
    expect(lease.remainingMs()).toBe(1);
    expect(lease.state).toBe('held');
  });

  it('is lost the moment its deadline has passed, also straight after a blocked event loop', () => {
    const lease = grant();
    const { signal } = lease;
    clock.block(VALID_MS);
    expect(lease.state).toBe('lost');
    expect(lease.remainingMs()).toBe(0);
    expect(() => lease.assertHeld()).toThrow(LeaseLostError);
    expect(signal.reason).toMatchObject({ code: 'LEASE_LOST', reason: 'expired', generation: 7 });
    expect(ended).toHaveBeenCalledTimes(1);
  });

  it.each<[string, (lease: HeldLease) => unknown]>([
    ['its remaining time', (lease) => lease.remainingMs()],
    ['its state', (lease) => lease.state],
    ['its signal', (lease) => lease.signal],
    ['its end', (lease) => lease.ended()],
  ])('looks at its deadline when asked for %s', (_, ask) => {
    const lease = grant();
    clock.block(VALID_MS);
    ask(lease);
    expect(ended).toHaveBeenCalledTimes(1);
  });

  it('is not revived by a confirmation that comes after its deadline', () => {
    const lease = grant();
    clock.block(VALID_MS);
    lease.confirm(clock.now());
    expect(lease.state).toBe('lost');
  });

  it('is not shortened by a confirmation of an older request', () => {
    const lease = grant();
    clock.block(1_000);
    lease.confirm(1_000);
    lease.confirm(500);
    expect(lease.remainingMs()).toBe(VALID_MS);
  });

  it.each(['reconcile', 'withhold'] as const)(
    "with onUncertain '%s' goes held, uncertain, held without an abort",
    (onUncertain) => {
      const lease = grant({ onUncertain });
      lease.doubt();
      expect(lease.state).toBe('uncertain');
      expect(lease.signal.aborted).toBe(false);
      expect(() => lease.assertHeld()).not.toThrow();
      lease.confirm(clock.now());
      expect(lease.state).toBe('held');
      expect(ended).not.toHaveBeenCalled();
    },
  );

  it("with onUncertain 'stop' ends at the first doubt, and stays ended", () => {
    const lease = grant({ onUncertain: 'stop' });
    const { signal } = lease;
    const cause = new Error('cut');
    lease.doubt(cause);
    expect(signal.reason).toBeInstanceOf(LeaseUncertainError);
    expect((signal.reason as Error).cause).toBe(cause);
    lease.confirm(clock.now());
    expect(lease.state).toBe('uncertain');
    expect(() => lease.assertHeld()).toThrow(LeaseUncertainError);
    expect(ended).toHaveBeenCalledTimes(1);
  });

  it('an uncertain lease is lost at its deadline', () => {
    const lease = grant();
    lease.doubt();
    clock.block(VALID_MS);
    expect(lease.state).toBe('lost');
  });

  it('a released lease refuses late work, and its signal is not aborted', () => {
    const lease = grant();
    const { signal } = lease;
    lease.finish();
    expect(lease.state).toBe('released');
    expect(() => lease.assertHeld()).toThrow(LeaseReleasedError);
    expect(signal.aborted).toBe(false);
    clock.block(VALID_MS);
    expect(lease.state).toBe('released');
    expect(signal.aborted).toBe(false);
  });

  it('what ended it first is what counts', () => {
    const lease = grant();
    lease.lose('superseded');
    lease.finish();
    lease.lose('drained');
    expect(lease.state).toBe('lost');
    expect(lease.ended()).toMatchObject({ reason: 'superseded' });
    expect(ended).toHaveBeenCalledTimes(1);
  });

  it('is lost with the refusal itself when the database has seen a newer owner', () => {
    const lease = grant();
    const stale = new StaleGenerationError('report:42', 7, 8);
    lease.lose(stale);
    expect(lease.signal.reason).toBe(stale);
  });

  it('gives an aborted signal to those who ask after the loss', () => {
    const lease = grant();
    lease.lose('superseded');
    expect(lease.signal.aborted).toBe(true);
    expect(lease.signal.reason).toBeInstanceOf(LeaseLostError);
  });

  it('contains a listener on its signal that throws, and reports it without the key', () => {
    const lease = grant();
    lease.signal.addEventListener('abort', () => {
      throw new Error('of the listener');
    });
    lease.lose('superseded');
    expect(ended).toHaveBeenCalledTimes(1);
    expect(report).toHaveBeenCalledTimes(1);
    expect(String(report.mock.calls[0]![0])).not.toContain('report:42');
  });

  it('tells its end once to each listener, and its renewals until then', () => {
    const lease = grant();
    const [end, stopped, renewed] = [jest.fn(), jest.fn(), jest.fn()];
    lease.onEnd(end);
    lease.onEnd(stopped)();
    lease.onRenewed(renewed);
    lease.confirm(clock.now());
    lease.lose('superseded');
    lease.confirm(clock.now());
    lease.finish();
    expect(end).toHaveBeenCalledTimes(1);
    expect(stopped).not.toHaveBeenCalled();
    expect(renewed).toHaveBeenCalledTimes(1);
  });

  it('has one idempotency key per effect, whoever holds it', () => {
    const [first, second] = [grant(), grant()];
    expect(first.idempotencyKey('charge')).toBe(second.idempotencyKey('charge'));
    expect(first.idempotencyKey('charge')).not.toBe(first.idempotencyKey('refund'));
  });
});
