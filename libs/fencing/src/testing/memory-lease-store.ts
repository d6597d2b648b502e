import { bucketOf } from '../core/buckets.js';
import { type Clock, systemClock } from '../core/clock.js';
import { GenerationsExhaustedError } from '../core/errors.js';
import {
  type AcquireAnswer,
  type AcquireRequest,
  type LeaseSnapshot,
  LeaseStore,
  MAX_GENERATION,
  type ReleaseAnswer,
  type ReleaseRequest,
  type RenewRequest,
  type WakeHint,
  type Watch,
} from '../core/lease-store.js';
import { checkNames } from '../core/options.js';

interface Entry {
  owner: string;
  generation: number;
  expiresAt: number;
  /** Set instead of an owner while the key is kept for a waiter that was woken. */
  reservedFor?: string;
}

/** Options of `memoryLeases`. */
export interface MemoryLeasesOptions {
  /**
   * The clock that leases expire by, e.g. a `ManualClock`.
   * @default the monotonic clock of the process
   */
  clock?: Clock;
  /**
   * The store's clock for generations, µs since 1970.
   * @default the system's
   */
  wallClockUs?: () => number;
}

/** How long a released key is kept for the waiter that was woken, ms. */
const RESERVED_MS = 100;

/**
 * Leases in the memory of one process: real exclusion between the callers (and applications) that share it, nothing between
 * processes. For tests and for trying out, by `memoryLeases()`; it is the readable model of what every store must do.
 */
export class MemoryLeaseStore extends LeaseStore {
  readonly kind = 'memory';
  private readonly clock: Clock;
  private wallClockUs: () => number;
  private readonly entries = new Map<string, Entry>();
  private readonly lastIssued = new Map<number, number>();
  private readonly waiters = new Map<string, { id: string; until: number }[]>();
  private readonly listeners = new Map<string, Set<(hint: WakeHint) => void>>();

  constructor(options: MemoryLeasesOptions = {}) {
    super();
    checkNames('memoryLeases', options, ['clock', 'wallClockUs']);
    this.clock = options.clock ?? systemClock;
    this.wallClockUs = options.wallClockUs ?? systemClockUs;
  }

  async check() {
    return [];
  }

  async acquire({ key, owner, ttlMs, floor, waiter }: AcquireRequest): Promise<AcquireAnswer> {
    const entry = this.live(key);
    const own = this.own(key, owner);
    if (entry && !own && (entry.reservedFor === undefined || entry.reservedFor !== waiter?.id)) {
      if (waiter) this.register(key, waiter.id, waiter.forMs);
      return { granted: false, remainingMs: entry.expiresAt - this.clock.now() };
    }
    if (waiter) this.unregister(key, waiter.id);
    const retried = own && own.generation > floor;
    const generation = retried ? own.generation : this.issue(key, floor);
    this.entries.set(key, { owner, generation, expiresAt: this.clock.now() + ttlMs });
    return { granted: true, generation };
  }

  async renew(requests: readonly RenewRequest[]): Promise<boolean[]> {
    return requests.map(({ key, owner, ttlMs }) => {
      const entry = this.own(key, owner);
      if (!entry) return false;
      entry.expiresAt = this.clock.now() + ttlMs;
      return true;
    });
  }

  async release({ key, owner, holdMs, successor }: ReleaseRequest): Promise<ReleaseAnswer> {
    const entry = this.own(key, owner);
    if (!entry) return { held: false };
    if (holdMs) {
      entry.expiresAt = this.clock.now() + holdMs;
      this.hint(key, { waiterId: '', reservedMs: holdMs });
      return { held: true };
    }
    const next = successor?.mayOvertake ? undefined : this.nextWaiter(key, successor?.waiterId);
    if (next) {
      this.reserve(key, next);
      if (!successor) return { held: true };
      this.register(key, successor.waiterId, successor.forMs);
      return { held: true, successor: { waitMs: RESERVED_MS } };
    }
    if (successor) {
      const generation = this.issue(key, 0);
      this.entries.set(key, {
        owner: successor.owner,
        generation,
        expiresAt: this.clock.now() + successor.ttlMs,
      });
      return { held: true, successor: { generation } };
    }
    this.entries.delete(key);
    this.hint(key, { waiterId: undefined, reservedMs: 0 });
    return { held: true };
  }

  async withdraw(key: string, waiterId: string): Promise<void> {
    this.unregister(key, waiterId);
    if (this.live(key)?.reservedFor !== waiterId) return;
    this.entries.delete(key);
    const next = this.nextWaiter(key);
    if (next) this.reserve(key, next);
  }

  async inspect(key: string): Promise<LeaseSnapshot | undefined> {
    const entry = this.live(key);
    if (!entry || entry.reservedFor !== undefined) return undefined;
    return {
      owner: entry.owner,
      generation: entry.generation,
      remainingMs: entry.expiresAt - this.clock.now(),
    };
  }

  watch(key: string, listener: (hint: WakeHint) => void): Watch {
    let listeners = this.listeners.get(key);
    if (!listeners) this.listeners.set(key, (listeners = new Set()));
    listeners.add(listener);
    // A hint that came since the answer "busy", before this watch, would not be heard otherwise.
    const entry = this.live(key);
    if (!entry) listener({ waiterId: undefined, reservedMs: 0 });
    else if (entry.reservedFor !== undefined)
      listener({ waiterId: entry.reservedFor, reservedMs: entry.expiresAt - this.clock.now() });
    return {
      live: undefined,
      stop: () => {
        listeners.delete(listener);
        if (listeners.size === 0 && this.listeners.get(key) === listeners) this.listeners.delete(key);
      },
    };
  }

  async close(): Promise<void> {
    this.entries.clear();
    this.waiters.clear();
    this.listeners.clear();
  }

  // ------------------------------------------------------------------------------------------------ faults, for tests

  /** The lease of `key` is gone, as after its ttl, a flush or an eviction. */
  expireNow(key: string): void {
    this.entries.delete(key);
    this.hint(key, { waiterId: undefined, reservedMs: 0 });
  }

  /** Somebody else takes `key`, whoever holds it. Answers its generation. */
  steal(key: string, ttlMs = 30_000): number {
    const generation = this.issue(key, 0);
    this.entries.set(key, { owner: `thief-${generation}`, generation, expiresAt: this.clock.now() + ttlMs });
    return generation;
  }

  /** Everything is gone, as after a restart without data; the store's clock goes on. */
  forget(): void {
    this.entries.clear();
    this.waiters.clear();
    this.lastIssued.clear();
  }

  /** The store forgets what it issued, and its clock is set to `us`: the next generations may be below earlier ones. */
  loseCounter(us = 0): void {
    this.lastIssued.clear();
    this.wallClockUs = () => us;
  }

  // ----------------------------------------------------------------------------------------------------------- parts

  private live(key: string): Entry | undefined {
    const entry = this.entries.get(key);
    if (entry && entry.expiresAt > this.clock.now()) return entry;
    if (entry) this.entries.delete(key);
    return undefined;
  }

  /** The lease of `key` where it is this owner's. A key that is kept for a waiter has no owner. */
  private own(key: string, owner: string): Entry | undefined {
    const entry = this.live(key);
    return entry && entry.reservedFor === undefined && entry.owner === owner ? entry : undefined;
  }

  private issue(key: string, floor: number): number {
    const bucket = bucketOf(key);
    const generation = Math.max((this.lastIssued.get(bucket) ?? 0) + 1, this.wallClockUs(), floor + 1);
    if (generation > MAX_GENERATION) throw new GenerationsExhaustedError(key);
    this.lastIssued.set(bucket, generation);
    return generation;
  }

  private register(key: string, id: string, forMs: number): void {
    const line = this.waiters.get(key)?.filter((waiter) => waiter.until > this.clock.now()) ?? [];
    const known = line.find((waiter) => waiter.id === id);
    if (known) known.until = this.clock.now() + forMs;
    else line.push({ id, until: this.clock.now() + forMs });
    this.waiters.set(key, line);
  }

  private unregister(key: string, id: string): void {
    const left = this.waiters.get(key)?.filter((waiter) => waiter.id !== id) ?? [];
    if (left.length > 0) this.waiters.set(key, left);
    else this.waiters.delete(key);
  }

  /** Takes the first waiter that still waits and is not `except` out of the line. */
  private nextWaiter(key: string, except?: string): string | undefined {
    const next = this.waiters
      .get(key)
      ?.find((waiter) => waiter.id !== except && waiter.until > this.clock.now());
    if (next) this.unregister(key, next.id);
    return next?.id;
  }

  private reserve(key: string, waiterId: string): void {
    this.entries.set(key, {
      owner: '',
      generation: 0,
      expiresAt: this.clock.now() + RESERVED_MS,
      reservedFor: waiterId,
    });
    this.hint(key, { waiterId, reservedMs: RESERVED_MS });
  }

  private hint(key: string, hint: WakeHint): void {
    for (const listener of [...(this.listeners.get(key) ?? [])]) listener(hint);
  }
}

/** Finer than `Date.now`: a generation after a loss should be above one that was issued in the same millisecond. */
function systemClockUs(): number {
  return Math.floor((performance.timeOrigin + performance.now()) * 1_000);
}

/** Leases in the memory of this process, for tests and for trying out: `FencingModule.forRoot({ leases: memoryLeases() })`. */
export function memoryLeases(options?: MemoryLeasesOptions): MemoryLeaseStore {
  return new MemoryLeaseStore(options);
}
