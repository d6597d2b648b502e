import { createHash } from 'node:crypto';
import type { Clock } from './clock.js';
import {
  type FencingError,
  LeaseLostError,
  LeaseReleasedError,
  LeaseUncertainError,
  StaleGenerationError,
} from './errors.js';
import type { Grant } from './lease-store.js';
import type { FencingEmitter, LossReason } from './events.js';
import { keyLabel } from './key-label.js';
import type { FencingLogger } from './logger.js';
import type { ResolvedLeaseOptions } from './options.js';
import { containedController } from './signal.js';

/**
 * `held` → `uncertain` (a renewal is unconfirmed, validity is left) → `held` again or `lost`; `released` when its call ended.
 */
export type LeaseState = 'held' | 'uncertain' | 'lost' | 'released';

/** The right to work on a key, as user code sees it: `@CurrentLease() lease?: Lease`, `fencing.run(key, {}, (lease) => …)`. */
export abstract class Lease {
  /** The protected resource. */
  abstract readonly key: string;
  /** Random, new for each grant. */
  abstract readonly owner: string;
  /** The fencing token: strictly increasing per key. Send it along to systems that can compare it. */
  abstract readonly generation: number;
  /** Right now, by the monotonic clock; also straight after the event loop was blocked. */
  abstract readonly state: LeaseState;
  /** Aborted when the lease is lost (or uncertain, with `onUncertain: 'stop'`); its `reason` is the typed error. */
  abstract readonly signal: AbortSignal;
  /** Validity left as far as this process can be sure, ms; 0 once it is over. */
  abstract remainingMs(): number;
  /**
   * For loops: stops the method once going on is pointless.
   * @throws LeaseLostError, LeaseReleasedError, StaleGenerationError or (with `onUncertain: 'stop'`) LeaseUncertainError
   */
  abstract assertHeld(): void;
  /**
   * A key for services that remember idempotency keys: the same for every owner and retry of `name` under this lease's key.
   * @param name the effect, e.g. `charge-2026-11`
   */
  abstract idempotencyKey(name: string): string;
}

/** Who keeps a lease. */
export interface LeaseHost {
  readonly clock: Clock;
  readonly logger: FencingLogger;
  readonly events: FencingEmitter;
  /** Called once, when the lease has ended, whatever ended it. */
  leaseEnded(lease: HeldLease): void;
  /** Asks the store whether the lease is still held. Rejects with `LeaseUncertainError` where that stays unknown. */
  confirm(lease: HeldLease): Promise<void>;
  /** The database is ahead of a lease: the store's counter is raised above it, so that the next grant is not stale. */
  raise(lease: HeldLease, generation: number): Promise<void>;
}

/** A lease of this process, with what keeps it. Only the keeper and the renewals change it. */
export class HeldLease extends Lease implements Grant {
  /** When renewals look at it next; kept by the renewals. */
  slot: Set<HeldLease> | undefined;
  /** Set when a renewal was sent and neither confirmed nor refused yet. */
  awaitingRenewal = false;
  /** Whether the fence has been raised to this grant. */
  activated = false;
  /** Whether it is out of the hands of the one who took it: its place in the line goes on when it ends. */
  started = false;
  /** Whether the method it was taken for has begun. */
  begun = false;
  acceptedWrites = 0;
  /** Whether the call that took it is over, whatever became of the lease. Late work of the call does not stand on it. */
  isOver = false;

  private deadline = -Infinity;
  private uncertainSince: number | undefined;
  private phase: LeaseState = 'held';
  private hasEnded = false;
  private endReason: FencingError | undefined;
  private controller: AbortController | undefined;
  private endListeners: Set<(reason: FencingError) => void> | undefined;
  private changeListeners: Set<() => void> | undefined;

  constructor(
    readonly key: string,
    readonly owner: string,
    public generation: number,
    /** When the request that was granted was sent, by `clock`. */
    readonly grantedAt: number,
    readonly options: ResolvedLeaseOptions,
    readonly host: LeaseHost,
  ) {
    super();
    this.extend(grantedAt);
  }

  get state(): LeaseState {
    this.lookAtClock();
    return this.phase;
  }

  get signal(): AbortSignal {
    this.lookAtClock();
    if (!this.controller) {
      this.controller = containedController((error) =>
        this.host.logger.error(
          `A listener on the signal of lease ${keyLabel(this.key)} threw; it was contained.`,
          error,
        ),
      );
      // A released lease did not fail: its signal stays as it was.
      if (this.hasEnded && this.phase !== 'released') this.controller.abort(this.reason);
    }
    return this.controller.signal;
  }

  remainingMs(): number {
    return this.ended() ? 0 : Math.max(0, this.deadline - this.host.clock.now());
  }

  assertHeld(): void {
    const reason = this.ended();
    if (reason) throw reason;
  }

  idempotencyKey(name: string): string {
    return createHash('sha256')
      .update(JSON.stringify([this.key, name]))
      .digest('hex')
      .slice(0, 32);
  }

  /** Why nothing more may be done under this lease, or `undefined` while it is held or uncertain. Looks at the clock first. */
  ended(): FencingError | undefined {
    this.lookAtClock();
    return this.hasEnded ? this.reason : undefined;
  }

  /** What events tell of it. */
  get facts(): Grant {
    return { key: this.key, owner: this.owner, generation: this.generation };
  }

  /** Why it ended before its call did; `undefined` where it did not. */
  get loss(): LossReason | undefined {
    if (!this.hasEnded || this.phase === 'released') return undefined;
    const { reason } = this;
    if (reason instanceof LeaseLostError) return reason.reason;
    return reason instanceof StaleGenerationError ? 'stale' : 'uncertain';
  }

  /** How long it has been in doubt, or had been when it ended, ms. */
  get uncertainMs(): number {
    return this.uncertainSince === undefined ? 0 : this.host.clock.now() - this.uncertainSince;
  }

  /** The monotonic time at which the validity ends. */
  get validUntil(): number {
    return this.deadline;
  }

  /** The store issued a higher generation for the same owner; only before the method has begun. */
  regrant(generation: number, sentAt: number): void {
    this.generation = generation;
    this.extend(sentAt);
  }

  /** A renewal that was sent at `sentAt` was confirmed. */
  confirm(sentAt: number): void {
    if (this.ended()) return;
    const { events, clock } = this.host;
    if (events.hears('lease.renewed')) {
      const now = clock.now();
      events.emit('lease.renewed', {
        ...this.facts,
        marginMs: this.deadline - now,
        uncertainMs: this.uncertainMs,
      });
    }
    this.extend(sentAt);
    this.awaitingRenewal = false;
    this.phase = 'held';
    this.uncertainSince = undefined;
    this.changeListeners?.forEach((listener) => listener());
  }

  /** A renewal failed, or has had no answer for too long. */
  doubt(cause?: unknown): void {
    if (this.ended() || this.phase === 'uncertain') return;
    this.phase = 'uncertain';
    const { events, clock } = this.host;
    this.uncertainSince = clock.now();
    if (events.hears('lease.uncertain'))
      events.emit('lease.uncertain', { ...this.facts, remainingMs: this.deadline - this.uncertainSince });
    if (this.options.onUncertain === 'stop') {
      this.end('uncertain', new LeaseUncertainError(this.key, this.generation, cause));
    }
  }

  lose(reason: LeaseLostError['reason'] | StaleGenerationError): void {
    this.end(
      'lost',
      reason instanceof StaleGenerationError
        ? reason
        : new LeaseLostError(this.key, this.generation, reason, this.acceptedWrites),
    );
  }

  /** The call that took it is over. */
  finish(): void {
    this.isOver = true;
    this.end('released');
  }

  /** Calls `listener` once when the lease ends. */
  onEnd(listener: (reason: FencingError) => void): () => void {
    (this.endListeners ??= new Set()).add(listener);
    return () => this.endListeners?.delete(listener);
  }

  /** Calls `listener` at each confirmed renewal. */
  onRenewed(listener: () => void): () => void {
    (this.changeListeners ??= new Set()).add(listener);
    return () => this.changeListeners?.delete(listener);
  }

  /**
   * Validity counts from before the request was sent; the margin covers clocks that run at different rates (1 %) and the
   * resolution of the store's expiry (2 ms), as in Redlock.
   */
  private extend(sentAt: number): void {
    this.deadline = Math.max(this.deadline, sentAt + this.options.ttlMs * 0.99 - 2);
  }

  private lookAtClock(): void {
    if (!this.hasEnded && this.host.clock.now() >= this.deadline) this.lose('expired');
  }

  /** Most leases are released, and nobody asks why: that error is made when somebody does. */
  private get reason(): FencingError {
    return (this.endReason ??= new LeaseReleasedError(this.key, this.generation));
  }

  private end(phase: LeaseState, reason?: FencingError): void {
    if (this.hasEnded) return;
    this.hasEnded = true;
    this.phase = phase;
    this.endReason = reason;
    if (phase !== 'released') this.controller?.abort(reason);
    const listeners = this.endListeners;
    this.endListeners = this.changeListeners = undefined;
    this.host.leaseEnded(this);
    listeners?.forEach((listener) => listener(this.reason));
  }
}
