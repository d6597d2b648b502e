import type { CancelTimer, Clock } from './clock.js';
import { tellUnavailable } from './events.js';
import type { HeldLease } from './lease.js';
import type { LeaseStore } from './lease-store.js';

/** Leases in one renewal request, and in one turn: bounded, so that neither the store nor the event loop is held for long. */
const LARGEST_BATCH = 250;
/** The grid that leases of one ttl are due on: 1/24 of the ttl, so that those due at about the same time share a request. */
const SLOTS_PER_TTL = 24;

/**
 * Renews all leases of the process: one timer, one request per batch of leases that are due together (and that one part of the store
 * answers for). A lease is renewed at a third of its ttl; unanswered, again after every sixth, until its deadline, which ends it
 * whatever the store does. A renewal that is refused is final.
 */
export class Renewals {
  private readonly slots = new Map<number, Set<HeldLease>>();
  private cancelTimer: CancelTimer | undefined;
  private armedFor = Infinity;

  constructor(
    private readonly store: LeaseStore,
    private readonly clock: Clock,
  ) {}

  add(lease: HeldLease): void {
    this.schedule(lease, lease.grantedAt + lease.options.ttlMs / 3);
  }

  /** Its slot stays, perhaps empty, until it is due: the timer need not be set anew for every short call. */
  remove(lease: HeldLease): void {
    lease.slot?.delete(lease);
    lease.slot = undefined;
  }

  /** Asks the store for this lease now. Resolves when it answered, or failed to. */
  async confirmNow(lease: HeldLease): Promise<void> {
    await this.renew([lease]);
  }

  close(): void {
    this.slots.clear();
    this.disarm();
  }

  private schedule(lease: HeldLease, at: number): void {
    lease.slot?.delete(lease);
    // The grid rounds down, so a renewal is never late; the deadline itself is exact.
    const grid = Math.max(1, Math.floor(lease.options.ttlMs / SLOTS_PER_TTL));
    const due = at >= lease.validUntil ? Math.ceil(lease.validUntil) : Math.floor(at / grid) * grid;
    let slot = this.slots.get(due);
    if (!slot) this.slots.set(due, (slot = new Set()));
    slot.add(lease);
    lease.slot = slot;
    if (due < this.armedFor) this.arm(due);
  }

  private arm(due: number): void {
    this.cancelTimer?.();
    this.armedFor = due;
    this.cancelTimer = this.clock.setTimer(due - this.clock.now(), this.onTimer);
  }

  private disarm(): void {
    this.cancelTimer?.();
    this.cancelTimer = undefined;
    this.armedFor = Infinity;
  }

  private readonly onTimer = (): void => {
    this.disarm();
    const now = this.clock.now();
    const batch: HeldLease[] = [];
    for (const [due, slot] of this.slots) {
      if (due > now) continue;
      this.slots.delete(due);
      for (const lease of slot) {
        lease.slot = undefined;
        // The event loop may have been blocked: the deadline is looked at before anything else.
        if (lease.ended()) continue;
        if (lease.awaitingRenewal) lease.doubt();
        // With `onUncertain: 'stop'` the doubt has ended it.
        if (!lease.ended()) batch.push(lease);
      }
    }
    this.renewFrom(this.byPart(batch).flat(), 0);
    const next = Math.min(...this.slots.keys());
    if (next < this.armedFor) this.arm(next);
  };

  /** Leases whose renewals fail together. */
  private byPart(leases: readonly HeldLease[]): HeldLease[][] {
    const parts = new Map<number, HeldLease[]>();
    for (const lease of leases) {
      const name = this.store.partOf?.(lease.key) ?? 0;
      const part = parts.get(name);
      if (part) part.push(lease);
      else parts.set(name, [lease]);
    }
    return [...parts.values()];
  }

  /** So many in this turn of the event loop, the next ones in a turn of their own. */
  private renewFrom(due: readonly HeldLease[], from: number): void {
    // Those that ended meanwhile must not be scheduled again.
    const batch = due.slice(from, from + LARGEST_BATCH).filter((lease) => !lease.ended());
    for (const part of this.byPart(batch)) void this.renew(part);
    const next = from + LARGEST_BATCH;
    if (next < due.length) this.clock.setTimer(0, () => this.renewFrom(due, next));
  }

  private async renew(leases: HeldLease[]): Promise<void> {
    const sentAt = this.clock.now();
    for (const lease of leases) {
      lease.awaitingRenewal = true;
      this.schedule(lease, sentAt + lease.options.ttlMs / 6);
    }
    try {
      const answers = await this.store.renew(
        leases.map(({ key, owner, options }) => ({ key, owner, ttlMs: options.ttlMs })),
      );
      leases.forEach((lease, i) => {
        if (lease.ended()) return;
        if (answers[i]) {
          lease.confirm(sentAt);
          this.schedule(lease, sentAt + lease.options.ttlMs / 3);
        } else {
          lease.lose('superseded');
        }
      });
    } catch (error) {
      tellUnavailable(leases[0]?.host.events, error);
      for (const lease of leases) lease.doubt(error);
    }
  }
}
