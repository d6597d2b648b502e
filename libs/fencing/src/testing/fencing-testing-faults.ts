import { setTimeout } from 'node:timers';
import type { Clock } from '../core/clock.js';
import { FencingConfigError } from '../core/errors.js';
import type { ManualClock } from './manual-clock.js';
import type { MemoryFence } from './fencing-testing-fence.js';
import type { StallingLeaseStore } from './fencing-testing-store.js';

/** How long a newer owner waits for an open write, ms. */
const WAIT_MS = 5_000;
/** How often an application that stops, and waits for nothing of the clock, is looked at again. */
const MOST_IDLE = 1_000;

/** What can go wrong between a method and its lease, on demand, from `FencingTestingModule`: `await faults.steal('report:42')`. */
export class FencingFaults {
  /** @internal */
  constructor(
    private readonly store: StallingLeaseStore,
    private readonly fence: MemoryFence,
    private readonly clock: Clock,
  ) {}

  /**
   * A newer owner takes the key, whoever holds it, and begins: fenced writes of the former holder are refused as stale from
   * now on. It waits for a write that is open, as a real one does. The thief holds the key for `ttlMs`.
   * @returns the newer generation
   * @throws FencingConfigError inside a fenced write of the key, which it would wait for
   */
  async steal(key: string, ttlMs = 30_000): Promise<number> {
    if (this.fence.inTransaction()) {
      throw new FencingConfigError(
        'FencingFaults.steal inside a fenced write would wait for that write, as a newer owner does. ' +
          'Steal before the write, or use refuseNextWrite().',
      );
    }
    for (;;) {
      let generation = this.store.steal(key, ttlMs);
      const owner = `thief-${generation}`;
      for (let granted = true; granted;) {
        const answer = await this.fence.activate({ key, owner, generation, waitMs: WAIT_MS });
        if (answer.activated) return generation;
        // The store has lost its counter: as every owner does, the thief asks for a generation above what the fence has seen.
        const again = await this.store.acquire({ key, owner, ttlMs, floor: answer.generation });
        granted = again.granted;
        if (again.granted) generation = again.generation;
      }
    }
  }

  /** The lease of the key is gone from the store, as after a flush: its holder finds out at its next renewal. */
  expireNow(key: string): void {
    this.store.expireNow(key);
  }

  /** The lease store stops answering, until `thaw()`. What is sent meanwhile is carried out then. */
  freeze(): void {
    this.store.freeze();
  }

  /** The lease store answers again. */
  thaw(): void {
    this.store.thaw();
  }

  /** The lease store forgets every generation that it issued, as a restart without its data does. Running leases go on. */
  loseCounter(): void {
    this.store.loseCounter();
  }

  /** The next fenced write is refused as stale: a newer owner is activated just before its guard. */
  refuseNextWrite(): void {
    this.fence.refuseNextWrite();
  }

  /** The application stops: it is not to wait for a store that stands still, nor for a clock that nobody moves any more. @internal */
  end(): void {
    this.store.thaw();
    if ('advance' in this.clock) void this.runOut(this.clock as ManualClock);
  }

  private async runOut(clock: ManualClock): Promise<void> {
    // Other parts of the application may take their time to stop, or fail to: then this must end as well.
    for (let idle = 0; !this.store.isClosed && idle < MOST_IDLE; idle++) {
      if (clock.armed > 0) {
        idle = 0;
        await clock.advance(1_000);
      }
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }
}
