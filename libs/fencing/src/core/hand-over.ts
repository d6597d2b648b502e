import type { Acquirer } from './acquirer.js';
import type { Clock } from './clock.js';
import type { HeldLease } from './lease.js';
import type { ReleaseAnswer } from './lease-store.js';
import type { StoreClient } from './store-client.js';
import type { Turn, Waiter, WaitLines } from './wait-lines.js';

/** The end of a turn: the lease is released, to the next caller in the line of this process where there is one. */
export class HandOver {
  constructor(
    private readonly client: StoreClient,
    private readonly clock: Clock,
    private readonly lines: WaitLines,
    private readonly acquirer: Acquirer,
  ) {}

  /** Releases a lease that its call has left. */
  leave(lease: HeldLease): void {
    const { key, owner, options } = lease;
    const now = this.clock.now();
    const holdMs =
      lease.state === 'released' ? Math.ceil(options.holdAtLeastMs - (now - lease.grantedAt)) : 0;
    const next = this.lines.next(key);
    const successor =
      next && holdMs <= 0
        ? {
            owner: next.owner,
            ttlMs: next.ttlMs,
            waiterId: this.acquirer.waiterId,
            forMs: Math.max(0, next.until - now),
            mayOvertake: this.lines.mayKeep(key),
            activate: next.activate,
          }
        : undefined;
    this.client.release(
      { key, owner, holdMs: holdMs > 0 ? holdMs : undefined, successor },
      Math.max(options.ttlMs, holdMs),
      next && ((answer) => this.giveTurn(next, now, answer)),
    );
  }

  /** The head of a line gives up without a grant. */
  passOn(key: string, turn: Turn = { sentAt: this.clock.now() }): void {
    for (let next; (next = this.lines.next(key));) if (next.give(turn)) return;
    // Nobody is left to use the place that the store keeps for this process.
    if (turn.waitMs !== undefined) this.client.withdraw(key, this.acquirer.waiterId);
  }

  /** `answer` is undefined where the release had none. */
  private giveTurn(waiter: Waiter, sentAt: number, answer: ReleaseAnswer | undefined): void {
    const successor = answer?.successor;
    const grant = successor && 'generation' in successor ? successor : undefined;
    const waitMs = successor && 'waitMs' in successor ? successor.waitMs : undefined;
    if (waiter.give({ sentAt, grant, waitMs })) return;
    // It gave up meanwhile: what was granted to it, or may have been, goes back, and the next has its turn.
    if (grant || !answer) this.client.release({ key: waiter.key, owner: waiter.owner }, waiter.ttlMs);
    this.passOn(waiter.key, { sentAt, waitMs });
  }
}
