import type { Fence } from './fence.js';

/** What a lease store hands out: right to work on `key`, until `ttlMs` after the request was sent. */
export interface Grant {
  readonly key: string;
  readonly owner: string;
  readonly generation: number;
}

/** One try to get a key. */
export interface AcquireRequest {
  readonly key: string;
  /** Random, new for each grant. Sending it again is a retry, never a second grant. */
  readonly owner: string;
  /** How long the grant is valid without a renewal, ms. */
  readonly ttlMs: number;
  /** The grant's generation must be above this (0: no floor). */
  readonly floor: number;
  /** Set where the caller will wait if the key is busy: who it is, and for how long, so that a release can wake it. */
  readonly waiter?: { readonly id: string; readonly forMs: number };
  /** The caller will activate the grant: a store that was joined to the fence may do so in the same request. */
  readonly activate?: boolean;
}

/** A grant, or how long the key may stay taken, ms. */
export type AcquireAnswer =
  /** `activated`: the fence is raised to the grant. Otherwise the caller sees to that. */
  | { readonly granted: true; readonly generation: number; readonly activated?: boolean }
  /** `remainingMs`: when the key is free at the latest, unless it is renewed. */
  | { readonly granted: false; readonly remainingMs: number };

/** More time for a grant. */
export interface RenewRequest {
  readonly key: string;
  readonly owner: string;
  /** From now on, ms. */
  readonly ttlMs: number;
}

/** The end of a grant, and who is next in this process. */
export interface ReleaseRequest {
  readonly key: string;
  readonly owner: string;
  /** Keeps the key taken for this long instead of freeing it, ms. */
  readonly holdMs?: number;
  /**
   * Who in this process is next. It is granted the key in the same step, unless another process waits and `mayOvertake` is
   * false: then that one is served, and `waiterId` is put behind it.
   */
  readonly successor?: {
    readonly owner: string;
    readonly ttlMs: number;
    readonly waiterId: string;
    readonly forMs: number;
    readonly mayOvertake?: boolean;
    /** As for an acquisition. */
    readonly activate?: boolean;
  };
}

/** Whether the key was this owner's, and what became of its successor. */
export type ReleaseAnswer =
  /** `held`: whether the key was this owner's until now. */
  | { readonly held: boolean; readonly successor?: undefined }
  /** The successor holds the key under a new generation. */
  | { readonly held: true; readonly successor: { readonly generation: number; readonly activated?: boolean } }
  /** Another process goes first; the successor waits behind it, and is woken or may try after `waitMs`. */
  | { readonly held: true; readonly successor: { readonly waitMs: number } };

/** What a lease store knows of a key now. */
export interface LeaseSnapshot {
  readonly owner: string;
  readonly generation: number;
  /** Validity left, ms. */
  readonly remainingMs: number;
}

/** A hint that a key may be free. Hints may be lost, late or doubled: they save time, they decide nothing. */
export interface WakeHint {
  /** The waiter that the key is kept for, where there is one. */
  readonly waiterId: string | undefined;
  /** How long it is kept for that waiter, ms. */
  readonly reservedMs: number;
}

/** A watch on the hints for one key. */
export interface Watch {
  /** Resolves once hints are heard; `undefined` where they already are. A key must be tried once after that. */
  readonly live: Promise<void> | undefined;
  stop(): void;
}

/** Something an operator should know about the store's configuration, found at boot. */
export interface StoreFinding {
  readonly problem: string;
  readonly consequence: string;
  readonly fix: string;
  /** `error`: calls fail, or a promise does not hold; `warning`: they will one day; `note`: good to know. @default 'warning' */
  readonly severity?: 'error' | 'warning' | 'note';
}

/**
 * The authority that hands out grants. It decides who may *start*; the fence decides whose write *counts*, so nothing here
 * has to be right for a stale writer to be refused. The class is its own injection token.
 *
 * The contract, which `nestjs-fencing/testing` proves of an implementation:
 *
 * - Each method is one atomic step, by the store's own clock. It may be sent again after its answer was lost (I6).
 * - `acquire` grants a key that is free, or held by this very owner. An owner that already holds a generation above `floor`
 *   gets that one again. Otherwise the generation is `max(last issued + 1, store clock in µs, floor + 1)`, where
 *   `last issued` is kept for one of a fixed number of buckets of keys: nothing grows with the number of keys. Past
 *   2^53 - 1 it throws `GenerationsExhaustedError`. Every grant expires.
 * - `renew` and `release` compare the owner, and change nothing for anybody else (I5). `renew` never creates a key.
 * - What one process asks of one key takes effect in the order in which it asked: a key that it releases and asks for at once is
 *   free.
 * - A key that is freed while processes wait for it is kept for the first of them, for at least 50 ms, and it is sent a hint.
 * - "Busy" and "not the owner" are answers. An exception is always a `StoreUnavailableError`: the store did not answer.
 */
export abstract class LeaseStore {
  /** For messages, e.g. `redis`. */
  abstract readonly kind: string;
  /** Checks the configuration at boot; throws `FencingConfigError` or `StoreUnavailableError`, or lists what looks wrong. */
  abstract check(): Promise<StoreFinding[]>;
  abstract acquire(request: AcquireRequest): Promise<AcquireAnswer>;
  /** One answer per request, in order: `true` where the owner still held the key and its ttl runs anew. */
  abstract renew(requests: readonly RenewRequest[]): Promise<boolean[]>;
  /**
   * Names the part of the store that answers for a key, where parts fail apart (the masters of a cluster). A renewal batch holds keys
   * of one part, so that a dead server makes no lease uncertain but its own. Left out: the store is one part.
   */
  partOf?(key: string): number;
  abstract release(request: ReleaseRequest): Promise<ReleaseAnswer>;
  /** A waiter gives up: whatever was kept for it goes to the next. */
  abstract withdraw(key: string, waiterId: string): Promise<void>;
  abstract inspect(key: string): Promise<LeaseSnapshot | undefined>;
  /**
   * Hears the hints for `key`, also those that came at `since` (`performance.now()`) or later: a hint may overtake the answer
   * "busy" that it belongs to. The listener must not throw.
   */
  abstract watch(key: string, listener: (hint: WakeHint) => void, since: number): Watch;
  /**
   * The fence that the grants of this store are activated in; told before the first acquisition. A store that keeps its leases in the
   * database of this very fence may then activate a grant in the request that grants it (`activate`, `activated`). It does so as
   * `Fence.activate` would, only without waiting for anybody: never a fence in another database, never durable in a weaker way,
   * and where the fence cannot be raised at once, or anything else is in the way, the grant is given without. Other stores do
   * without this method.
   */
  joinFence?(fence: Fence): void;
  /** Why a request may have no answer, in a few words for messages and logs, where the store knows: `connection refused`. */
  silentBecause?(): string | undefined;
  /** Frees what the store itself opened; a client that the application made stays open. */
  abstract close(): Promise<void>;
}

/** The largest generation: beyond it, numbers of JavaScript and of Redis scripts stop being exact. */
export const MAX_GENERATION = Number.MAX_SAFE_INTEGER;
