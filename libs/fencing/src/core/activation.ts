import type { Call } from './acquirer.js';
import type { Clock } from './clock.js';
import { LeaseOrderError, StoreUnavailableError, WaitAbortedError } from './errors.js';
import { type FencingEmitter, tellUnavailable } from './events.js';
import type { ActivationAnswer, Fence } from './fence.js';
import type { HeldLease } from './lease.js';
import type { ResolvedLeaseOptions } from './options.js';
import type { StoreClient } from './store-client.js';
import { unlessAborted, within } from './timing.js';

/** How often an activation is tried against a fence that is ahead. The model needs 1 + expiries + losses of the store. */
const MOST_ACTIVATIONS = 10;

/**
 * Tells the fence of grants, so that it refuses older ones from then on; and the store of a fence that is ahead of it, so that
 * what it grants next is above.
 */
export class Activation {
  constructor(
    private readonly fence: Fence | undefined,
    private readonly client: StoreClient,
    private readonly clock: Clock,
    private readonly events: FencingEmitter,
    private readonly storeTimeoutMs: number,
  ) {
    if (fence) client.store.joinFence?.(fence);
  }

  /** @throws LeaseOrderError inside a transaction of the fenced database: an activation would need a second connection */
  assertOutsideTransaction(key: string): void {
    if (this.fence?.inTransaction()) throw new LeaseOrderError(key);
  }

  /** Whether a grant must be activated before its method begins. */
  isDueAtStart(options: ResolvedLeaseOptions): boolean {
    return this.fence !== undefined && options.activate === 'start';
  }

  /** `false`: the grant went to somebody else meanwhile. */
  async activate(lease: HeldLease, call: Call): Promise<boolean> {
    for (let tries = 0; tries < MOST_ACTIVATIONS; tries++) {
      const waitMs = Math.max(call.until - this.clock.now(), this.storeTimeoutMs);
      const answer = await unlessAborted(
        this.ask(lease, waitMs),
        call.signal,
        () => new WaitAbortedError(call.key, call.signal?.reason),
      );
      if (answer.activated) return true;
      // The store lost its counter, or was replaced: it starts again above what the database has seen.
      const sentAt = this.clock.now();
      const again = await this.acquireAbove(lease, answer.generation);
      if (!again.granted) return false;
      const behind = answer.generation - lease.generation;
      lease.regrant(again.generation, sentAt);
      if (this.events.hears('store.healed')) this.events.emit('store.healed', { ...lease.facts, behind });
    }
    throw new StoreUnavailableError(
      'lease store',
      `the fence was ahead of ${MOST_ACTIVATIONS} generations in a row.`,
      { key: call.key },
    );
  }

  /**
   * Activates a lease whose method left that to its first write. A fence that is ahead makes the write stale, since what the
   * method read is old; the store's counter is raised above it, so that the next grant is not.
   * @returns the fence's generation where it is ahead
   */
  async activateForWrite(lease: HeldLease): Promise<number | undefined> {
    const answer = await this.ask(lease, this.storeTimeoutMs);
    if (answer.activated) return undefined;
    await lease.host.raise(lease, answer.generation);
    return answer.generation;
  }

  /** Raises the store's counter above `generation`; as well as can be, since the next activation would find out. */
  async raise(lease: HeldLease, generation: number): Promise<void> {
    await this.acquireAbove(lease, generation).catch(() => undefined);
  }

  /** Asks the fence to accept a grant, and to wait up to `waitMs` for writes of an older one. */
  async ask(lease: HeldLease, waitMs: number): Promise<ActivationAnswer> {
    const { key, owner, generation } = lease;
    try {
      const answer = await within(
        this.clock,
        waitMs + this.storeTimeoutMs,
        this.fence!.activate({ key, owner, generation, waitMs }),
        () =>
          new StoreUnavailableError(
            'database',
            'no answer to the activation of a grant (is the connection pool exhausted?).',
            { key },
          ),
      );
      if (answer.activated) lease.activated = true;
      return answer;
    } catch (error) {
      tellUnavailable(this.events, error);
      throw error;
    }
  }

  /** The same owner again, under a generation above `floor`. */
  private acquireAbove({ key, owner, options }: HeldLease, floor: number) {
    return this.client.ask(this.client.store.acquire({ key, owner, ttlMs: options.ttlMs, floor }));
  }
}
