import type { Grant } from './lease-store.js';

/** The newest grant that was activated for a key. */
export interface FenceSnapshot {
  readonly generation: number;
  readonly owner: string;
  readonly activatedAt: Date;
}

export interface ActivationRequest extends Grant {
  /** How long to wait for transactions of the previous owner, ms. */
  readonly waitMs: number;
}

export type ActivationAnswer =
  | { readonly activated: true }
  /** The fence is ahead: `generation` is what it names. */
  | { readonly activated: false; readonly generation: number };

/** An effect that must happen at most once. */
export interface OperationRequest {
  /** The method, for messages. */
  readonly where: string;
  readonly id: string;
  /** Tells two payloads apart; the same id with another fingerprint is refused. */
  readonly fingerprint: string;
}

/** What the fence needs to know of the leases that a write stands on. */
export interface WriteAuthority {
  /** Sorted by key; at least one. */
  readonly grants: readonly Grant[];
  /** The smallest remaining validity of the leases, ms; 0 or less once one of them is past its deadline. */
  remainingMs(): number;
  /** The error to refuse with once one of the leases has ended, else `undefined`. Looks at the clock. */
  ended(): Error | undefined;
  /** Calls `listener` once, when one of the leases ends. Answers how to stop listening. */
  onEnd(listener: (reason: Error) => void): () => void;
  /** Calls `listener` whenever one of the leases was renewed. Answers how to stop listening. */
  onRenewed(listener: () => void): () => void;
}

export interface WriteRequest<Manager, T> {
  readonly authority: WriteAuthority;
  readonly isolation?: IsolationLevel;
  /** How often the body may be run again after a serialization failure or a deadlock. */
  readonly retries: number;
  readonly operation?: OperationRequest;
  readonly body: (manager: Manager) => Promise<T>;
}

export type IsolationLevel = 'READ COMMITTED' | 'REPEATABLE READ' | 'SERIALIZABLE';

export interface WriteOutcome<T> {
  readonly result: T;
  /** The operation had been accepted before: `result` is the stored one, and the body did not run. */
  readonly duplicate: boolean;
  /** The commit was confirmed. `false` where the write joined a transaction that its opener will commit. */
  readonly committed: boolean;
}

/**
 * The durable row `(key, generation, owner)` beside the protected data, and the transactions that are guarded by it.
 * The class is its own injection token.
 *
 * The contract, which `nestjs-fencing/testing` proves of an implementation:
 *
 * - `activate` is one atomic statement. It raises the fence to the grant if the fence is lower, is content where the fence is
 *   exactly this grant, and else answers the fence's generation as read *after* it was refused. It waits for open
 *   transactions of the previous owner. It never lowers the fence.
 * - `write` runs the body in a transaction whose first statement demands that the fence is exactly each grant and keeps it so
 *   until the commit. Otherwise `StaleGenerationError`, the body does not run and nothing remains.
 * - A write is accepted only when the database confirmed the commit. A commit whose answer was lost is `CommitUnknownError`.
 * - Once the authority has ended, no new transaction starts and an open one is ended without commit.
 */
export abstract class Fence<Manager = unknown> {
  /** Checks the database at boot: tables, functions, versions. Throws `FencingConfigError` or `StoreUnavailableError`. */
  abstract check(): Promise<void>;
  abstract activate(request: ActivationRequest): Promise<ActivationAnswer>;
  abstract write<T>(request: WriteRequest<Manager, T>): Promise<WriteOutcome<T>>;
  /** Whether this call is inside a transaction of the fenced database, as far as the fence can see. */
  abstract inTransaction(): boolean;
  abstract inspect(key: string): Promise<FenceSnapshot | undefined>;
  /** Takes back what was attached to objects of the application. */
  abstract close(): Promise<void>;
}
