import { setMaxListeners } from 'node:events';
import type { AuditEntry } from '../core/audit.js';
import { currentFrame, runInFrame } from '../core/context.js';
import { conclude, type Diagnosis, examine } from '../core/diagnosis.js';
import { FencingConfigError } from '../core/errors.js';
import type { Fence, FenceSnapshot, Receipt, Revocation } from '../core/fence.js';
import type { WriteOptions } from '../core/fenced-writes.js';
import { checkBuiltKey, checkKey } from '../core/key.js';
import { containLateRefusal } from '../core/late-refusal.js';
import type { Lease } from '../core/lease.js';
import type { LeaseKeeper } from '../core/lease-keeper.js';
import type { LeaseSnapshot } from '../core/lease-store.js';
import {
  checkFunction,
  checkMs,
  checkNames,
  LEASE_CALL_OPTION_NAMES,
  type LeaseCallOptions,
  show,
} from '../core/options.js';
import { fingerprintOf } from '../core/operation.js';
import { containedLogger } from './contained-logger.js';
import { checkWriteOptions } from './fenced-write.decorator.js';
import type { FencingRuntime } from './fencing.runtime.js';
import { streamedResult } from './streamed-result.js';
import type { LeaseTimes } from './times.js';

/** A lease that its taker ends: `await using lease = await fencing.acquire(key)`. */
export interface AcquiredLease extends Lease, AsyncDisposable {
  /** Runs `work` as a leased method would: fenced writes inside it stand on this lease. */
  run<T>(work: () => T): T;
  /** Ends the lease. */
  release(): void;
}

/** What is known of a key. */
export interface KeyReport {
  /** Who holds it now. */
  readonly lease: LeaseSnapshot | undefined;
  /** The newest grant that the database has activated. */
  readonly fence: FenceSnapshot | undefined;
}

/** Who takes a key away, and why: kept in the audit. */
export interface RevokeOptions {
  /**
   * Who does it. At most 1000 characters, as is `reason`.
   * @default the role of the database session
   */
  readonly by?: string;
  /** Why, for those who read the audit. @default none is given */
  readonly reason?: string;
}

/** An operation of `FencingService.write`. */
export interface OperationOptions {
  /** Names the operation, e.g. `pay:42`: a second one under this id gets the first one's result. */
  readonly id: string;
  /**
   * Compared between calls with one id; any JSON.
   * @default nothing is compared
   */
  readonly payload?: unknown;
}

/**
 * Below this, a receipt may still be needed by the write that left it: the answer to its COMMIT may be a minute late, and what
 * became of it is then looked for.
 */
const YOUNGEST_TO_PRUNE_MS = 3_600_000;

/** How long a revocation waits for a write that is under way, ms. */
const REVOKE_WAIT_MS = 2_000;
const LONGEST_NOTE = 1_000;
/** How much of the audit one call answers. */
const MOST_ENTRIES = 1_000;

/**
 * What the decorators do, as functions; and a view of keys for operators.
 *
 * ```ts
 * await fencing.run('report:42', { waitMs: 0 }, () => fencing.write({}, (manager: EntityManager) => manager.save(report)));
 * ```
 */
export class FencingService {
  /** @internal */
  constructor(private readonly runtime: FencingRuntime) {}

  /**
   * Runs `body` under a lease of `key` (or of each of several, in the order given). The twin of `@Leased`.
   * With `onBusy: 'skip'` it resolves to `undefined` where the key stayed busy. A stream that `body` returns keeps the lease to its end.
   */
  run<T, Ttl extends number = number, Wait extends number = number, Hold extends number = number>(
    key: string | readonly string[],
    options: LeaseCallOptions & LeaseTimes<Ttl, Wait, Hold>,
    body: (...leases: Lease[]) => T | PromiseLike<T>,
  ): Promise<T | undefined> {
    try {
      const where = 'FencingService.run';
      const { signal, resolved } = this.readOptions(where, options);
      const keys = (Array.isArray(key) ? (key as string[]) : [key]).map((one) => checkBuiltKey(where, one));
      if (keys.length === 0) throw new FencingConfigError(`${where}: the array of keys is empty.`);
      checkFunction(where, 'the body', body);
      const runOn = ({ keeper }: { readonly keeper: LeaseKeeper }) =>
        keeper.run(keys, resolved, (leases) => body(...leases), { signal, stream: streamedResult });
      // Not `async`: each layer of promises is paid for by every call.
      const { running } = this.runtime;
      return running ? runOn(running) : this.runtime.start().then(runOn);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /**
   * Runs `body` in a transaction that is guarded by the leases of the current call. The twin of `@FencedWrite`.
   * @param body gets the transaction's EntityManager
   */
  write<T, Manager = unknown>(
    options: WriteOptions & { operation?: OperationOptions },
    body: (manager: Manager) => Promise<T> | T,
  ): Promise<T> {
    return containLateRefusal(this.writeNow(options, body), 'FencingService.write');
  }

  /**
   * Takes a lease that the caller ends, by `await using` or `release()`. It is renewed until then. It joins none: a key that this call
   * holds already is busy.
   */
  async acquire<Ttl extends number = number, Wait extends number = number, Hold extends number = number>(
    key: string,
    options: LeaseCallOptions & LeaseTimes<Ttl, Wait, Hold> = {},
  ): Promise<AcquiredLease> {
    const where = 'FencingService.acquire';
    const { signal, resolved } = this.readOptions(where, options);
    checkBuiltKey(where, key);
    const { keeper } = await this.runtime.start();
    const lease = await keeper.take(key, resolved, signal);
    const release = () => lease.finish();
    return Object.assign(lease, {
      release,
      run: <T>(work: () => T): T => {
        const frame = currentFrame();
        return runInFrame(
          { ...frame, leases: [...frame.leases.filter(({ isOver }) => !isOver), lease] },
          work,
        );
      },
      [Symbol.asyncDispose]: async () => release(),
    });
  }

  /** The innermost lease of the current call, if it has one. */
  current(): Lease | undefined {
    return currentFrame().leases.at(-1);
  }

  /** Who holds a key, and what the database has activated for it. */
  async inspect(key: string): Promise<KeyReport> {
    checkKey('FencingService.inspect', key);
    const { store, fence } = await this.runtime.start();
    const [lease, activated] = await Promise.all([store.inspect(key), fence?.inspect(key)]);
    return { lease, fence: activated };
  }

  /**
   * What is stored of an operation that was accepted, or `undefined` where none was accepted under this id (yet: one may be
   * under way). Inside a fenced write it is read in the same transaction, which also sees operations of its own.
   * @throws FencingConfigError where there is no fence, LeaseKeyError where `operationId` is no id, StoreUnavailableError
   */
  async receipt(operationId: string): Promise<Receipt | undefined> {
    const where = 'FencingService.receipt';
    checkBuiltKey(where, operationId, 'an operation id');
    return (await this.fence(where)).receipt(operationId);
  }

  /**
   * Deletes the receipts of operations that were accepted longer than `olderThanMs` ago, in short statements. An operation whose
   * receipt is gone is done **again** when it is sent again: this is safe only past the longest time after which any sender may
   * repeat one (retries, redelivery of a queue, dead letters that are replayed by hand). It may be interrupted and called again.
   * @param options `olderThanMs`: whole number, an hour to 365 days
   * @returns how many were deleted
   * @throws FencingConfigError where the option is wrong, inside a transaction, or without DELETE on the table of receipts;
   * StoreUnavailableError
   */
  async pruneReceipts(options: { olderThanMs: number }): Promise<number> {
    const where = 'FencingService.pruneReceipts';
    checkNames(where, options, ['olderThanMs']);
    checkMs(where, 'olderThanMs', options.olderThanMs, YOUNGEST_TO_PRUNE_MS);
    return (await this.fence(where)).pruneReceipts(options.olderThanMs);
  }

  /**
   * Takes a key away from whoever holds it. From the moment that this resolves the database refuses its writes (one that is under way
   * is waited for, up to two seconds); its method is aborted (`lease.signal`, `LeaseLostError`) at its next renewal, at a third of the
   * ttl at the latest; the key is free. Who and why are kept in the table `fencing_audit`, in the transaction that raises the fence. It is no
   * ban: whoever waits for the key gets it next.
   * @param options `by`: who does it (default: the role of the database session); `reason`: why; texts of up to 1000 characters
   * @returns which generation was superseded; `undefined` without a fence
   * @throws LeaseKeyError, FencingConfigError where an option is wrong, or is given without a fence to keep it; StoreUnavailableError
   * where a write of the holder did not end (it names the backend), or one of the two does not answer: call it again. Where that is
   * the lease store, the fence has been raised and only the key is not free yet
   */
  async revoke(key: string, options: RevokeOptions = {}): Promise<Revocation | undefined> {
    const where = 'FencingService.revoke';
    checkKey(where, key);
    checkNames(where, options, ['by', 'reason']);
    const { by, reason } = options;
    for (const [name, text] of Object.entries({ by, reason })) checkNote(where, name, text);
    const { store, fence } = await this.runtime.start();
    if (!fence && (by !== undefined || reason !== undefined)) await this.fence(where);
    const [asked] = await Promise.allSettled([store.inspect(key)]);
    const held = asked.status === 'fulfilled' ? asked.value : undefined;
    // The fence first, and also where the lease store is silent: it is what refuses the holder's writes.
    const revocation = await fence?.revoke({ key, held, by, reason, waitMs: REVOKE_WAIT_MS });
    if (asked.status === 'rejected') throw asked.reason;
    if (held) await store.release({ key, owner: held.owner });
    containedLogger.warn(
      `Lease ${this.runtime.nameOf(key)} was revoked` +
        (revocation ? ` (generation ${revocation.supersededGeneration ?? 'none'}); see fencing_audit.` : '.'),
    );
    return revocation;
  }

  /**
   * Why was a write of this key refused? What the audit keeps of the key, newest first: writes that were refused, with who superseded
   * them and since when; writes whose outcome is unknown; revocations. A row is there some ms after what it tells, and may be missing
   * after a storm or an outage (`audit.dropped`).
   * @param options `limit`: how many at most, 1 to 1 000 (default 20)
   * @throws LeaseKeyError, FencingConfigError where the option is wrong, without a fence, or without SELECT on the table;
   * StoreUnavailableError
   */
  async audit(key: string, options: { limit?: number } = {}): Promise<AuditEntry[]> {
    const where = 'FencingService.audit';
    checkKey(where, key);
    checkNames(where, options, ['limit']);
    const { limit = 20 } = options;
    if (!Number.isInteger(limit) || limit < 1 || limit > MOST_ENTRIES)
      throw new FencingConfigError(
        `${where}: limit must be a whole number from 1 to ${MOST_ENTRIES}, got ${show(limit)}.`,
      );
    return (await (await this.fence(where)).audit?.(key, limit)) ?? [];
  }

  /**
   * Deletes rows of `fencing_audit` (revoked keys, refused and unknown writes, writes past the triggers) that are older than `olderThanMs`.
   * @param options `olderThanMs`: whole number, up to 365 days
   * @returns how many were deleted
   * @throws FencingConfigError where the option is wrong, without a fence, or without DELETE on the table; StoreUnavailableError
   */
  async pruneAudit(options: { olderThanMs: number }): Promise<number> {
    const where = 'FencingService.pruneAudit';
    checkNames(where, options, ['olderThanMs']);
    checkMs(where, 'olderThanMs', options.olderThanMs, 0);
    return (await this.fence(where)).pruneAudit(options.olderThanMs);
  }

  /**
   * What an operator should know of the servers behind leases and fence, as they are set up now: settings, tables and triggers,
   * replicas, persistence, pool and connections, and how far the clocks are apart. Reads only; takes some ten small requests. What
   * cannot be asked is a finding too: it does not reject, unless the module itself cannot start.
   */
  async diagnose(): Promise<Diagnosis> {
    const { store, fence } = await this.runtime.start();
    const [leases, database] = await Promise.all([
      examine('lease store', store),
      fence && examine('database', fence),
    ]);
    return conclude({ 'the lease store': leases, ...(database && { 'the database': database }) });
  }

  private async fence(where: string): Promise<Fence> {
    const { fence } = await this.runtime.start();
    if (fence) return fence;
    throw new FencingConfigError(
      `${where}: no fence is configured. Give FencingModule a fence, e.g. fence: typeOrmFence().`,
    );
  }

  private async writeNow<T, Manager>(
    options: WriteOptions & { operation?: OperationOptions },
    body: (manager: Manager) => Promise<T> | T,
  ): Promise<T> {
    const where = 'FencingService.write';
    checkWriteOptions(where, options, ['operation']);
    checkFunction(where, 'the body', body);
    const { operation, ...writeOptions } = options;
    if (operation !== undefined) checkNames(`${where} operation`, operation, ['id', 'payload']);
    const request = operation && {
      where,
      id: checkBuiltKey(where, operation.id, 'an operation id'),
      fingerprint: fingerprintOf(where, [operation.payload]),
    };
    const { writes } = this.runtime.running ?? (await this.runtime.start());
    return writes.write(where, { ...writeOptions, operation: request }, (manager) =>
      body(manager as Manager),
    );
  }

  private readOptions(where: string, options: LeaseCallOptions) {
    // Left out by JavaScript: it would count as the module's own default further down.
    if (options === undefined) checkNames(where, options, LEASE_CALL_OPTION_NAMES);
    const resolved = this.runtime.resolveOptions(where, options, LEASE_CALL_OPTION_NAMES);
    const { signal } = options;
    if (
      signal !== undefined &&
      typeof (signal as Partial<AbortSignal> | null)?.addEventListener !== 'function'
    )
      throw new FencingConfigError(`${where}: signal must be an AbortSignal, got ${show(signal)}.`);
    if (signal) allowManyListeners(signal);
    return { signal, resolved };
  }
}

/** Each caller that waits listens to it, and one signal may serve them all. */
function allowManyListeners(signal: AbortSignal): void {
  try {
    setMaxListeners(Infinity, signal);
  } catch {
    // One that is not Node's own (jsdom's, a polyfill's) warns of nothing.
  }
}

/** @throws FencingConfigError unless it is missing, or a text that the audit can keep */
function checkNote(where: string, name: string, value: unknown): void {
  if (value === undefined) return;
  if (
    typeof value === 'string' &&
    value.trim() !== '' &&
    value.length <= LONGEST_NOTE &&
    !value.includes('\0')
  )
    return;
  const got = typeof value === 'string' ? `one of ${value.length} characters` : show(value);
  throw new FencingConfigError(
    `${where}: ${name} must be a text of 1 to ${LONGEST_NOTE} characters (none of them U+0000), got ${got}.`,
  );
}
