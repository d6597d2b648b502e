import type { AuditEntry, AuditNote } from './audit.js';
import type { Grant, StoreFinding } from './lease-store.js';

/** The newest grant that was activated for a key. */
export interface FenceSnapshot {
  readonly generation: number;
  readonly owner: string;
  readonly activatedAt: Date;
}

/** Asks for the fence to be raised to a grant. */
export interface ActivationRequest extends Grant {
  /** How long to wait for transactions of the previous owner, ms. */
  readonly waitMs: number;
}

/** Whether the fence names the grant now. */
export type ActivationAnswer =
  | { readonly activated: true }
  /** The fence is ahead: `generation` is what it names. */
  | { readonly activated: false; readonly generation: number };

/** A key is taken away from whoever holds it. */
export interface RevocationRequest {
  readonly key: string;
  /** The grant that the lease store names now, if it names one: it is superseded also where it is not activated yet. */
  readonly held: { readonly generation: number; readonly owner: string } | undefined;
  /** Who does it, and why: kept in the audit. */
  readonly by?: string;
  readonly reason?: string;
  /** How long to wait for transactions of the holder, ms. */
  readonly waitMs: number;
}

/** What a revocation did. */
export interface Revocation {
  /** The newest generation that was superseded; `undefined` where the key was never used. */
  readonly supersededGeneration: number | undefined;
  /** What the fence names now. Nobody holds this generation. */
  readonly generation: number;
}

/** An effect that must happen at most once. */
export interface OperationRequest {
  /** The method, for messages. */
  readonly where: string;
  readonly id: string;
  /** Tells two payloads apart; the same id with another fingerprint is refused. */
  readonly fingerprint: string;
}

/** What is stored of an operation that was accepted. */
export interface Receipt {
  readonly id: string;
  /** The key, generation and owner of the lease that it was accepted under. */
  readonly key: string;
  readonly generation: number;
  readonly owner: string;
  /** Of the payload; the same id with another one is refused. */
  readonly fingerprint: string;
  /** What the write returned, and what every later sender gets. */
  readonly result: unknown;
  readonly acceptedAt: Date;
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

/** A body to run in a guarded transaction. */
export interface WriteRequest<Manager, T> {
  readonly authority: WriteAuthority;
  readonly isolation?: IsolationLevel;
  /** How often the body may be run again after a serialization failure or a deadlock. */
  readonly retries: number;
  readonly operation?: OperationRequest;
  readonly body: (manager: Manager) => Promise<T>;
}

/** Of a transaction in PostgreSQL. */
export type IsolationLevel = 'READ COMMITTED' | 'REPEATABLE READ' | 'SERIALIZABLE';

/** What became of a write that was not refused. */
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
 * - A write is accepted only when the database confirmed the commit. A commit whose answer was lost is `CommitUnknownError`,
 *   unless the write has an operation id: then `write` waits for the end of the lost transaction, for about as long as the lease
 *   is valid, and looks at the receipt. It was accepted: the outcome is as ever. It was not: `StoreUnavailableError`. In both
 *   cases nothing of it is under way any more. Only what could not be found out is `CommitUnknownError`.
 * - `revoke` waits for open transactions of the holder, as `activate` does.
 * - Once the authority has ended, no new transaction starts and an open one is ended without commit.
 */
export abstract class Fence<Manager = unknown> {
  /**
   * Checks the database at boot: tables, functions, versions. Throws `FencingConfigError` or `StoreUnavailableError`, or lists
   * what looks wrong.
   */
  abstract check(): Promise<readonly StoreFinding[] | void>;
  abstract activate(request: ActivationRequest): Promise<ActivationAnswer>;
  abstract write<T>(request: WriteRequest<Manager, T>): Promise<WriteOutcome<T>>;
  /** Whether this call is inside a transaction of the fenced database, as far as the fence can see. */
  abstract inTransaction(): boolean;
  abstract inspect(key: string): Promise<FenceSnapshot | undefined>;
  /** The receipt of an accepted operation. Inside a transaction of the fenced database it is read in that transaction. */
  abstract receipt(operationId: string): Promise<Receipt | undefined>;
  /** Deletes receipts that are older than `olderThanMs`, in short steps. Answers how many. */
  abstract pruneReceipts(olderThanMs: number): Promise<number>;
  /** Raises the fence above every grant so far, and keeps who and why, in one atomic step: an audit row and the raise, or neither. */
  abstract revoke(request: RevocationRequest): Promise<Revocation>;
  /**
   * Keeps writes that were refused, or whose outcome is unknown, in the audit, in a transaction of its own and within seconds. Throws
   * `StoreUnavailableError` where it may be tried again. A fence without an audit has neither this nor `audit`.
   */
  record?(notes: readonly AuditNote[]): Promise<void>;
  /** What the audit keeps of a key, newest first. */
  audit?(key: string, limit: number): Promise<AuditEntry[]>;
  /** Deletes rows of the audit that are older than `olderThanMs`. Answers how many. */
  abstract pruneAudit(olderThanMs: number): Promise<number>;
  /** Takes back what was attached to objects of the application. */
  abstract close(): Promise<void>;
}
