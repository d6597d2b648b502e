import { randomUUID } from 'node:crypto';
import { Logger } from '@nestjs/common';
import { currentFrame, runInFrame } from '../core/context.js';
import { FencingConfigError, StoreUnavailableError } from '../core/errors.js';
import type { FenceSnapshot } from '../core/fence.js';
import type { WriteOptions } from '../core/fenced-writes.js';
import { checkBuiltKey, checkKey } from '../core/key.js';
import type { Lease } from '../core/lease.js';
import type { LeaseSnapshot } from '../core/lease-store.js';
import {
  checkFunction,
  checkNames,
  LEASE_CALL_OPTION_NAMES,
  type LeaseCallOptions,
  show,
} from '../core/options.js';
import { fingerprintOf } from '../core/operation.js';
import { checkWriteOptions } from './fenced-write.decorator.js';
import type { FencingRuntime } from './fencing.runtime.js';
import { containLateRefusal } from './late-refusal.js';

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

/** An operation of `FencingService.write`. */
export interface OperationOptions {
  readonly id: string;
  /** Compared between calls with one id; any JSON. */
  readonly payload?: unknown;
}

/** What the decorators do, as functions; and a view of keys for operators. */
export class FencingService {
  private readonly logger = new Logger('Fencing');

  constructor(private readonly runtime: FencingRuntime) {}

  /**
   * Runs `body` under a lease of `key` (or of each of several, in the order given). The twin of `@Leased`.
   * With `onBusy: 'skip'` it resolves to `undefined` where the key stayed busy.
   */
  async run<T>(
    key: string | readonly string[],
    options: LeaseCallOptions,
    body: (...leases: Lease[]) => T | PromiseLike<T>,
  ): Promise<T | undefined> {
    const where = 'FencingService.run';
    const { signal, resolved } = this.readOptions(where, options);
    const keys = (Array.isArray(key) ? (key as string[]) : [key]).map((one) => checkBuiltKey(where, one));
    if (keys.length === 0) throw new FencingConfigError(`${where}: the array of keys is empty.`);
    checkFunction(where, 'the body', body);
    const { keeper } = this.runtime.running ?? (await this.runtime.start());
    // Waited for here: to hand on the promise itself costs three turns of the microtask queue.
    const result = await keeper.run(keys, resolved, (leases) => body(...leases), { signal });
    return result;
  }

  /**
   * Runs `body` in a transaction that is guarded by the leases of the current call. The twin of `@FencedWrite`.
   * @param body gets the transaction's EntityManager
   */
  write<T, Manager = unknown>(
    options: WriteOptions & { operation?: OperationOptions },
    body: (manager: Manager) => Promise<T> | T,
  ): Promise<T> {
    return containLateRefusal(this.writeNow(options, body), ({ message }) =>
      this.logger.error(`FencingService.write was refused: ${message}`),
    );
  }

  /** Takes a lease that the caller ends, by `await using` or `release()`. It is renewed until then. */
  async acquire(key: string, options: LeaseCallOptions = {}): Promise<AcquiredLease> {
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
   * Takes a key away from whoever holds it: the database refuses its writes from now on, the key is free, and its method is
   * aborted at its next renewal.
   */
  async revoke(key: string): Promise<void> {
    checkKey('FencingService.revoke', key);
    const { store, fence } = await this.runtime.start();
    const lease = await store.inspect(key);
    if (fence) {
      let floor = Math.max(lease?.generation ?? 0, (await fence.inspect(key))?.generation ?? 0);
      for (let attempt = 0; ; attempt++) {
        const answer = await fence.activate({
          key,
          owner: `revoked-${randomUUID()}`,
          generation: floor + 1,
          waitMs: 2_000,
        });
        if (answer.activated) break;
        if (attempt === 10)
          throw new StoreUnavailableError(
            'database',
            'newer owners kept activating while the key was revoked.',
            { key },
          );
        floor = answer.generation;
      }
    }
    if (lease) await store.release({ key, owner: lease.owner });
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
    const { writes } = await this.runtime.start();
    return writes.write(where, { ...writeOptions, operation: request }, async (manager) =>
      body(manager as Manager),
    );
  }

  private readOptions(where: string, options: LeaseCallOptions) {
    const resolved = this.runtime.resolveOptions(where, options, LEASE_CALL_OPTION_NAMES);
    const { signal } = options;
    if (
      signal !== undefined &&
      typeof (signal as Partial<AbortSignal> | null)?.addEventListener !== 'function'
    )
      throw new FencingConfigError(`${where}: signal must be an AbortSignal, got ${show(signal)}.`);
    return { signal, resolved };
  }
}
