import { randomUUID } from 'node:crypto';
import { currentFrame, runInFrame } from '../core/context.js';
import { FencingConfigError, StoreUnavailableError } from '../core/errors.js';
import type { FenceSnapshot } from '../core/fence.js';
import type { WriteOptions } from '../core/fenced-writes.js';
import { checkKey } from '../core/key.js';
import type { Lease } from '../core/lease.js';
import type { LeaseSnapshot } from '../core/lease-store.js';
import type { LeaseCallOptions } from '../core/options.js';
import { fingerprintOf } from '../core/operation.js';
import { checkWriteOptions } from './fenced-write.decorator.js';
import type { FencingRuntime } from './fencing.runtime.js';

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
  constructor(private readonly runtime: FencingRuntime) {}

  /**
   * Runs `body` under a lease of `key` (or of each of several, in the order given). The twin of `@Leased`.
   * With `onBusy: 'skip'` it resolves to `undefined` where the key stayed busy.
   */
  async run<T>(key: string | readonly string[], options: LeaseCallOptions, body: (...leases: Lease[]) => T | PromiseLike<T>): Promise<T | undefined> {
    const { signal, ...leaseOptions } = options;
    const resolved = this.runtime.resolveOptions('FencingService.run', leaseOptions);
    const keys = (typeof key === 'string' ? [key] : key).map((one) => checkKey('FencingService.run', one));
    if (keys.length === 0) throw new FencingConfigError('FencingService.run: the array of keys is empty.');
    const { keeper } = await this.runtime.start();
    return keeper.run(keys, resolved, (leases) => body(...leases), { signal });
  }

  /**
   * Runs `body` in a transaction that is guarded by the leases of the current call. The twin of `@FencedWrite`.
   * @param body gets the transaction's EntityManager
   */
  async write<T, Manager = unknown>(options: WriteOptions & { operation?: OperationOptions }, body: (manager: Manager) => Promise<T> | T): Promise<T> {
    const where = 'FencingService.write';
    checkWriteOptions(where, options, ['operation']);
    const { operation, ...writeOptions } = options;
    const { writes } = await this.runtime.start();
    const request = operation && {
      where,
      id: checkKey(where, operation.id, 'an operation id'),
      fingerprint: fingerprintOf(where, [operation.payload]),
    };
    return writes.write(where, { ...writeOptions, operation: request }, async (manager) => body(manager as Manager));
  }

  /** Takes a lease that the caller ends, by `await using` or `release()`. It is renewed until then. */
  async acquire(key: string, options: LeaseCallOptions = {}): Promise<AcquiredLease> {
    const { signal, ...leaseOptions } = options;
    const resolved = this.runtime.resolveOptions('FencingService.acquire', leaseOptions);
    const { keeper } = await this.runtime.start();
    const lease = await keeper.take(checkKey('FencingService.acquire', key), resolved, undefined, signal);
    const release = () => lease.finish();
    return Object.assign(lease, {
      release,
      run: <T>(work: () => T): T => {
        const frame = currentFrame();
        return runInFrame({ ...frame, leases: [...frame.leases.filter(({ state }) => state !== 'released'), lease] }, work);
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
    const { store, fence } = await this.runtime.start();
    checkKey('FencingService.inspect', key);
    const [lease, activated] = await Promise.all([store.inspect(key), fence?.inspect(key)]);
    return { lease, fence: activated };
  }

  /**
   * Takes a key away from whoever holds it: the database refuses its writes from now on, the key is free, and its method is
   * aborted at its next renewal.
   */
  async revoke(key: string): Promise<void> {
    const { store, fence } = await this.runtime.start();
    checkKey('FencingService.revoke', key);
    const lease = await store.inspect(key);
    if (fence) {
      let floor = Math.max(lease?.generation ?? 0, (await fence.inspect(key))?.generation ?? 0);
      for (let attempt = 0; ; attempt++) {
        const answer = await fence.activate({ key, owner: `revoked-${randomUUID()}`, generation: floor + 1, waitMs: 2_000 });
        if (answer.activated) break;
        if (attempt === 10) throw new StoreUnavailableError('database', 'newer owners kept activating while the key was revoked.', { key });
        floor = answer.generation;
      }
    }
    if (lease) await store.release({ key, owner: lease.owner });
  }
}
