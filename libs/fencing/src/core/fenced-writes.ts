import { currentFrame } from './context.js';
import {
  CommitUnknownError,
  FencingConfigError,
  FencingError,
  NoLeaseError,
  StaleGenerationError,
} from './errors.js';
import { tellUnavailable } from './events.js';
import type { Fence, IsolationLevel, OperationRequest, WriteAuthority, WriteOutcome } from './fence.js';
import type { HeldLease } from './lease.js';
import type { LeaseKeeper } from './lease-keeper.js';
import { settleLease } from './settle-lease.js';
import { tracing } from './tracing.js';

/** How the transaction of a fenced write runs. */
export interface WriteOptions {
  /**
   * `'READ COMMITTED'`, `'REPEATABLE READ'` or `'SERIALIZABLE'`: stale writes are refused under each of them.
   * @default the database's own, READ COMMITTED
   */
  isolation?: IsolationLevel;
  /**
   * How often the body may be run again after a serialization failure (40001) or a deadlock (40P01). Whole number, 0 to 100.
   * @default 0
   */
  retries?: number;
}

/** Errors that refuse a write before the database is asked. */
const REFUSALS = new Set(['LEASE_LOST', 'LEASE_RELEASED', 'LEASE_UNCERTAIN']);

/**
 * Runs writes under the leases of the current call: refuses at once where they have ended, settles what is uncertain, and
 * leaves the rest to the fence's guarded transaction.
 * @internal
 */
export class FencedWrites {
  constructor(
    private readonly keeper: LeaseKeeper,
    private readonly fence: Fence | undefined,
  ) {}

  write<T>(
    where: string,
    options: WriteOptions & { operation?: OperationRequest },
    body: (manager: unknown) => T | PromiseLike<T>,
  ): Promise<T> {
    const { tracer } = tracing;
    if (!tracer) return this.writeNow(where, options, body);
    return tracer.write(this.keeper.events.instance, where, this.currentLeases(), (onOutcome) =>
      this.writeNow(where, options, body, onOutcome),
    );
  }

  private async writeNow<T>(
    where: string,
    options: WriteOptions & { operation?: OperationRequest },
    body: (manager: unknown) => T | PromiseLike<T>,
    onOutcome?: (outcome: WriteOutcome<unknown>) => void,
  ): Promise<T> {
    if (!this.fence)
      throw new FencingConfigError(
        `${where}: no fence is configured. Give FencingModule a fence, e.g. fence: typeOrmFence().`,
      );
    const leases = this.currentLeases();
    if (leases.length === 0) throw new NoLeaseError(where);

    const { isolation, retries = 0, operation } = options;
    const startedAt = this.keeper.clock.now();
    let bodyBegan = false;
    try {
      for (const lease of leases) {
        const pending = this.settle(lease);
        if (pending) await pending;
      }
      const outcome = await this.fence.write({
        authority: new LeasesAuthority(leases),
        isolation,
        retries,
        operation,
        body: async (manager) => {
          bodyBegan = true;
          return assertDone(where, await body(manager));
        },
      });
      if (outcome.committed) for (const lease of leases) lease.acceptedWrites += 1;
      this.tellOutcome(leases, outcome, startedAt, operation);
      onOutcome?.(outcome);
      return outcome.result;
    } catch (error) {
      if (error instanceof StaleGenerationError) await this.supersede(leases, error, bodyBegan);
      // The lost backend may still commit, and its share lock does not keep out its own owner: only the activation of a new
      // grant waits for it. What this call would write next could overwrite a commit that it has not seen. (A write with an
      // operation id comes here only where the fence could not find out; one that it did find out about is over.)
      if (error instanceof CommitUnknownError && leases.some(({ key }) => key === error.key))
        for (const lease of leases) lease.lose('unsettled');
      this.tellRefusal(where, leases, error, startedAt);
      throw error;
    }
  }

  /** The database has seen a newer owner: no renewal can bring the lease back. */
  private async supersede(
    leases: readonly HeldLease[],
    error: StaleGenerationError,
    bodyBegan: boolean,
  ): Promise<void> {
    const lease = leases.find(({ key }) => key === error.key);
    const { currentGeneration = 0 } = error;
    // The body began, so the fence names this very grant: what is ahead is a row, and the next grant must be above it.
    if (lease && bodyBegan && currentGeneration > lease.generation)
      await this.keeper.raise(lease, currentGeneration);
    lease?.lose(error);
  }

  private currentLeases(): HeldLease[] {
    return currentFrame().leases.filter((lease) => lease.host === this.keeper);
  }

  private tellOutcome(
    leases: readonly HeldLease[],
    { committed, duplicate }: WriteOutcome<unknown>,
    startedAt: number,
    operation: OperationRequest | undefined,
  ): void {
    const { events, clock } = this.keeper;
    const [first] = leases;
    if (duplicate && operation && events.hears('operation.duplicate'))
      events.emit('operation.duplicate', { ...first!.facts, operation: operation.id });
    if (committed && !duplicate && events.hears('write.accepted'))
      events.emit('write.accepted', {
        ...first!.facts,
        keys: leases.length,
        tookMs: clock.now() - startedAt,
      });
  }

  private tellRefusal(where: string, leases: readonly HeldLease[], error: unknown, startedAt: number): void {
    const { events, clock } = this.keeper;
    tellUnavailable(events, error);
    if (!(error instanceof FencingError)) return;
    const lease = leases.find(({ key }) => key === error.key);
    if (!lease) return;
    if (error instanceof StaleGenerationError) {
      if (events.hears('write.stale'))
        events.emit('write.stale', { ...lease.facts, current: error.currentGeneration, where });
    } else if (error instanceof CommitUnknownError) {
      if (events.hears('write.unknown'))
        events.emit('write.unknown', { ...lease.facts, tookMs: clock.now() - startedAt, where });
    } else if (REFUSALS.has(error.code) && events.hears('write.refused')) {
      events.emit('write.refused', { ...lease.facts, code: error.code, where });
    }
  }

  /** Makes sure that the lease may write now, or throws. No connection is taken for a lease that has ended. */
  private settle(lease: HeldLease): Promise<void> | undefined {
    const settled = settleLease(lease);
    // Most leases may write, and there is nothing to wait for.
    return settled || !lease.activated ? this.activate(lease, settled) : undefined;
  }

  private async activate(lease: HeldLease, settled: Promise<void> | undefined): Promise<void> {
    await settled;
    if (lease.activated) return;
    const ahead = await this.keeper.activateForWrite(lease);
    lease.assertHeld();
    if (ahead !== undefined) {
      const stale = new StaleGenerationError(lease.key, lease.generation, ahead);
      lease.lose(stale);
      throw stale;
    }
  }
}

/** What a stream does when it is read would come after the commit, past the guard. */
function assertDone<T>(where: string, result: T): T {
  if (isStream(result))
    throw new FencingConfigError(
      `${where} returned a stream, which would be read after its transaction. Read it inside, and return what it gave.`,
    );
  return result;
}

function isStream(result: unknown): boolean {
  try {
    const {
      subscribe,
      pipe,
      [Symbol.asyncIterator]: iterate,
    } = (result ?? {}) as Record<PropertyKey, unknown>;
    return Boolean(iterate || (subscribe && pipe));
  } catch {
    return false; // What cannot be looked at, such as a proxy that throws.
  }
}

/** What a write stands on: all of its leases, sorted by key. */
class LeasesAuthority implements WriteAuthority {
  readonly grants: readonly HeldLease[];

  constructor(leases: readonly HeldLease[]) {
    this.grants = leases.length === 1 ? leases : [...leases].sort((a, b) => (a.key < b.key ? -1 : 1));
  }

  remainingMs(): number {
    let least = Infinity;
    for (const lease of this.grants) least = Math.min(least, lease.remainingMs());
    return least;
  }

  ended(): FencingError | undefined {
    let reason: FencingError | undefined;
    for (const lease of this.grants) reason ??= lease.ended();
    return reason;
  }

  onEnd(listener: (reason: Error) => void): () => void {
    return this.onEach((lease) => lease.onEnd(listener));
  }

  onRenewed(listener: () => void): () => void {
    return this.onEach((lease) => lease.onRenewed(listener));
  }

  private onEach(attach: (lease: HeldLease) => () => void): () => void {
    if (this.grants.length === 1) return attach(this.grants[0]!);
    const stops = this.grants.map(attach);
    return () => stops.forEach((stop) => stop());
  }
}
