import { keyLabel } from './key-label.js';

/** Every outcome a caller may want to tell apart, as a stable text. */
export type FencingErrorCode =
  | 'LEASE_BUSY'
  | 'STORE_UNAVAILABLE'
  | 'LEASE_UNCERTAIN'
  | 'LEASE_LOST'
  | 'STALE_GENERATION'
  | 'LEASE_RELEASED'
  | 'NO_LEASE'
  | 'WAIT_ABORTED'
  | 'COMMIT_UNKNOWN'
  | 'WRITE_ROLLED_BACK'
  | 'OPERATION_CONFLICT'
  | 'ROW_MISSING'
  | 'ROW_PROTECTED'
  | 'INVALID_FENCING_HEADERS'
  | 'FENCE_BYPASSED'
  | 'WRONG_ORDER'
  | 'INVALID_KEY'
  | 'INVALID_CONFIG'
  | 'GENERATIONS_EXHAUSTED';

const BRAND = Symbol.for('nestjs-fencing/error');

/**
 * Base of every error of this package. `instanceof` goes by `code`, so it also holds between the ESM and the CommonJS copy
 * of the package in one process.
 *
 * Messages never contain a key or a payload, so that they can be logged; the key is in the non-enumerable field `key`, and
 * the message names it by its label (a short hash, see `keyLabel`).
 */
export abstract class FencingError extends Error {
  /** Stable text of the outcome, the same in every release of a major version. */
  abstract readonly code: FencingErrorCode;
  /** The key concerned, where there is one. Not enumerable: a logger that prints the fields of an error does not print it. */
  declare readonly key: string | undefined;

  constructor(message: string, facts: { key?: string; cause?: unknown } = {}) {
    super(message, facts.cause === undefined ? undefined : { cause: facts.cause });
    Object.defineProperty(this, 'key', { value: facts.key, enumerable: false });
    Object.defineProperty(this, 'name', { value: new.target.name, enumerable: false, configurable: true });
    // An own property as well: loggers and transports copy no others.
    const { code } = new.target.prototype;
    Object.defineProperty(this, 'code', { value: code, enumerable: true, configurable: true });
    Object.defineProperty(this, BRAND, { value: true, enumerable: false });
  }

  static override [Symbol.hasInstance](value: unknown): boolean {
    if (typeof value !== 'object' || value === null || !(BRAND in value)) return false;
    if (this === FencingError) return true;
    if (!Object.hasOwn(this.prototype, 'code'))
      return Function.prototype[Symbol.hasInstance].call(this, value);
    return (value as { code?: unknown }).code === this.prototype.code;
  }
}

/** *busy*: someone else holds the key, and still did when the wait was over. */
export class LeaseBusyError extends FencingError {
  override get code() {
    return 'LEASE_BUSY' as const;
  }
  constructor(
    key: string,
    /** How long the caller waited, ms. */
    readonly waitedMs: number,
    /** When the key may be free at the latest as far as the store knew, ms from now. */
    readonly retryAfterMs: number,
  ) {
    super(
      `Lease ${keyLabel(key)} is held by someone else (waited ${Math.round(waitedMs)} ms). ` +
        `Try again in ${Math.max(0, Math.round(retryAfterMs))} ms, raise waitMs, or use onBusy: 'skip'.`,
      { key },
    );
  }
}

/** *unavailable*: the lease store or the database did not answer, or answered with a failure of its own. */
export class StoreUnavailableError extends FencingError {
  override get code() {
    return 'STORE_UNAVAILABLE' as const;
  }
  constructor(
    /** Which of the two: the authority that hands out leases, or the fenced database. */
    readonly store: 'lease store' | 'database',
    message: string,
    readonly facts: { key?: string; cause?: unknown; retryable?: boolean } = {},
  ) {
    super(`The ${store} is unavailable: ${message}`, facts);
    Object.defineProperty(this, 'facts', { enumerable: false });
  }
  /** Whether trying the same thing again soon can help. */
  get retryable(): boolean {
    return this.facts.retryable ?? true;
  }
}

/** *uncertain*: a renewal is unconfirmed, some validity is left, and the method's policy says not to go on. */
export class LeaseUncertainError extends FencingError {
  override get code() {
    return 'LEASE_UNCERTAIN' as const;
  }
  constructor(
    key: string,
    readonly generation: number,
    cause?: unknown,
  ) {
    super(
      `Lease ${keyLabel(key)} (generation ${generation}) could not be confirmed at the lease store; ` +
        `its onUncertain policy does not allow to go on.`,
      { key, cause },
    );
  }
}

/** *lost*: the validity is over, or another owner was seen. */
export class LeaseLostError extends FencingError {
  override get code() {
    return 'LEASE_LOST' as const;
  }
  /** What the method returned, where it ended normally although its lease was lost. */
  declare readonly result: unknown;
  /** What the method threw after its lease was lost (also the `cause`). */
  declare readonly bodyError: unknown;

  constructor(
    key: string,
    readonly generation: number,
    /**
     * Why: the local deadline passed; the store or the database named another owner; the application stopped; or the outcome of
     * one of its writes is unknown.
     */
    readonly reason: 'expired' | 'superseded' | 'drained' | 'unsettled',
    /** Fenced writes of this lease that the database had accepted before. They stand. */
    readonly acceptedWrites = 0,
    outcome: { result?: unknown; bodyError?: unknown } = {},
  ) {
    super(
      `Lease ${keyLabel(key)} (generation ${generation}) is lost: ${REASONS[reason]}. ` +
        `${acceptedWrites} fenced write${acceptedWrites === 1 ? ' was' : 's were'} accepted before and stand${acceptedWrites === 1 ? 's' : ''}.`,
      { key, cause: outcome.bodyError },
    );
    Object.defineProperty(this, 'result', { value: outcome.result, enumerable: false });
    Object.defineProperty(this, 'bodyError', { value: outcome.bodyError, enumerable: false });
  }
}

const REASONS = {
  expired: 'it was not renewed in time (the process or the lease store was paused, cut off or too slow)',
  superseded: 'the lease store no longer knows this owner',
  drained: 'the application stopped before the method ended',
  unsettled: 'the outcome of one of its commits is unknown, and a later write could overwrite it',
} as const;

/** *stale*: the database refused the write, because its fence no longer names this grant. Nothing of the write remains. */
export class StaleGenerationError extends FencingError {
  override get code() {
    return 'STALE_GENERATION' as const;
  }
  constructor(
    key: string,
    readonly generation: number,
    /** The generation that the fence names, or the row carries; `undefined` where the fence names none. */
    readonly currentGeneration: number | undefined,
    cause?: unknown,
  ) {
    super(
      `A write under generation ${generation} of lease ${keyLabel(key)} was refused: the database ` +
        (currentGeneration === undefined
          ? 'has no fence for the key (was its table restored or emptied?).'
          : `has activated generation ${currentGeneration}. A newer owner is at work; nothing of this write remains.`),
      { key, cause },
    );
  }
}

/** *released*: late work of a call that has ended (something was not awaited). */
export class LeaseReleasedError extends FencingError {
  override get code() {
    return 'LEASE_RELEASED' as const;
  }
  constructor(
    key: string,
    readonly generation: number,
  ) {
    super(
      `Lease ${keyLabel(key)} (generation ${generation}) has ended with the call that took it. ` +
        `Await the work inside the leased method, or let it take a lease of its own.`,
      { key },
    );
  }
}

/** *no lease*: a fenced write outside any lease. */
export class NoLeaseError extends FencingError {
  override get code() {
    return 'NO_LEASE' as const;
  }
  constructor(what: string) {
    super(`${what} needs a lease: call it from a @Leased method or inside FencingService.run(key, …).`);
  }
}

/** The caller's own AbortSignal ended the wait for a lease. */
export class WaitAbortedError extends FencingError {
  override get code() {
    return 'WAIT_ABORTED' as const;
  }
  constructor(key: string, cause: unknown) {
    super(`The wait for lease ${keyLabel(key)} was aborted by the caller's signal.`, { key, cause });
  }
}

/**
 * The connection died after COMMIT was sent and before its answer: the write may or may not have been accepted. A write with an
 * operation id finds out, and throws this only where the database could not tell in time.
 */
export class CommitUnknownError extends FencingError {
  override get code() {
    return 'COMMIT_UNKNOWN' as const;
  }
  constructor(
    key: string,
    cause: unknown,
    /** Of a write with an operation id: why it could not be found out. */
    readonly search?: unknown,
  ) {
    super(
      `The answer to COMMIT of a fenced write of lease ${keyLabel(key)} was lost: it may or may not have been accepted` +
        (search === undefined
          ? '. Give the write an operation id (@FencedWrite({ operation })): then it finds out by itself.'
          : ', and the database did not tell in time. Send the operation again: its effect is committed at most once.'),
      { key, cause },
    );
    Object.defineProperty(this, 'search', { enumerable: false });
  }
}

/** PostgreSQL answered COMMIT with ROLLBACK: a statement had failed and the method went on as if it had not. */
export class WriteRolledBackError extends FencingError {
  override get code() {
    return 'WRITE_ROLLED_BACK' as const;
  }
  constructor(key: string, cause?: unknown) {
    super(
      `A fenced write of lease ${keyLabel(key)} was rolled back: one of its statements failed and the error was swallowed. ` +
        `Let the error through, or wrap the statement that may fail in dataSource.transaction() (a savepoint).`,
      { key, cause },
    );
  }
}

/** An operation id was sent again with another payload. Nothing was written. */
export class OperationConflictError extends FencingError {
  override get code() {
    return 'OPERATION_CONFLICT' as const;
  }
  constructor(readonly operationId: string) {
    super(
      'This operation id was accepted before with a different payload. Use a new id for a new operation; ' +
        'send the same arguments to get the stored result.',
    );
    Object.defineProperty(this, 'operationId', { enumerable: false });
  }
}

/** The row that a guarded update or delete names does not exist. Nothing was written. */
export class RowMissingError extends FencingError {
  override get code() {
    return 'ROW_MISSING' as const;
  }
  constructor(
    key: string,
    /** The name of the entity. */
    readonly entity: string,
  ) {
    super(
      `The row of ${entity} that a write under lease ${keyLabel(key)} names does not exist: it was never there, or was deleted.`,
      { key },
    );
  }
}

/** A fenced write wrote a row of a protected table that belongs to another lease. Nothing was written. */
export class RowProtectedError extends FencingError {
  override get code() {
    return 'ROW_PROTECTED' as const;
  }
  constructor(
    key: string,
    /** The table, as `protectTable` knows it. */
    readonly table: string,
    cause?: unknown,
  ) {
    super(
      `A fenced write of lease ${keyLabel(key)} wrote to the protected table ${table} what does not belong to its lease; nothing of it ` +
        `remains. Take the lease of the row (the cause's hint names it), or correct the key that protectTable was given.`,
      { key, cause },
    );
  }
}

/** A request to an `@AcceptFencing` handler brought no grant, or one that cannot be read or is not trusted. Nothing was run. */
export class FencingHeadersError extends FencingError {
  override get code() {
    return 'INVALID_FENCING_HEADERS' as const;
  }
  constructor(
    readonly reason: 'missing' | 'malformed' | 'untrusted',
    problem: string,
  ) {
    super(problem);
  }
}

/** A statement tried to leave the guarded transaction. It was not sent. */
export class FenceBypassError extends FencingError {
  override get code() {
    return 'FENCE_BYPASSED' as const;
  }
  constructor(what: string, fix: string) {
    super(`${what} would run outside the guarded transaction of this fenced write and was not sent. ${fix}`);
  }
}

/** Lease and transaction were nested the wrong way round. */
export class LeaseOrderError extends FencingError {
  override get code() {
    return 'WRONG_ORDER' as const;
  }
  constructor(key: string) {
    super(
      `Lease ${keyLabel(key)} was asked for inside a transaction of the fenced database. ` +
        `Take the lease first and open the transaction inside it: @Leased outside, @FencedWrite (or a transaction) inside.`,
      { key },
    );
  }
}

/** A lease key, or a part of one, is missing, empty or not text. Nothing was acquired. */
export class LeaseKeyError extends FencingError {
  override get code() {
    return 'INVALID_KEY' as const;
  }
  constructor(
    /** The method or call that built the key. */
    readonly where: string,
    problem: string,
    cause?: unknown,
  ) {
    super(`${where}: ${problem}`, { cause });
  }
}

/** An option, a decorator or the set-up is wrong. Thrown at boot where it can be known there. */
export class FencingConfigError extends FencingError {
  override get code() {
    return 'INVALID_CONFIG' as const;
  }
  constructor(message: string, cause?: unknown) {
    super(message, { cause });
  }
}

/** The next generation would pass the largest safe integer (2^53 - 1). The grant was refused; nothing wraps. */
export class GenerationsExhaustedError extends FencingError {
  override get code() {
    return 'GENERATIONS_EXHAUSTED' as const;
  }
  constructor(key: string) {
    super(
      `No generation is left for lease ${keyLabel(key)}: the next one would pass 2^53 - 1. ` +
        `The lease store's counter or the fence row was set to a wrong value; set it back and see docs/operations.md.`,
      { key },
    );
  }
}
