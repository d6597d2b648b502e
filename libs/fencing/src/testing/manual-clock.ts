// Not the global one, which a test may have replaced by a fake.
import { setImmediate } from 'node:timers';
import type { CancelTimer, Clock } from '../core/clock.js';
import { checkMs } from '../core/options.js';

interface Timer {
  readonly at: number;
  readonly fire: () => void;
}

/** A clock that moves only when told to: `await clock.advance(30_000)`, ms. */
export class ManualClock implements Clock {
  private time = 0;
  private readonly timers = new Set<Timer>();

  now(): number {
    return this.time;
  }

  setTimer(afterMs: number, fire: () => void): CancelTimer {
    const timer = { at: this.time + Math.max(0, afterMs), fire };
    this.timers.add(timer);
    return () => this.timers.delete(timer);
  }

  /** Timers that are armed now. */
  get armed(): number {
    return this.timers.size;
  }

  /** Moves on by `ms`; every timer that falls due fires at its own time, and promises settle in between. @throws FencingConfigError */
  async advance(ms: number): Promise<void> {
    checkMs('ManualClock.advance', 'ms', ms, 0);
    const end = this.time + ms;
    await settle();
    for (;;) {
      const next = [...this.timers].filter(({ at }) => at <= end).sort((a, b) => a.at - b.at)[0];
      if (!next) break;
      this.timers.delete(next);
      this.time = Math.max(this.time, next.at);
      next.fire();
      await settle();
    }
    // Two that advance it at once do not turn it back.
    this.time = Math.max(this.time, end);
    await settle();
  }

  /** Jumps by `ms` as if the event loop had been blocked: no timer fires until `advance`. */
  block(ms: number): void {
    checkMs('ManualClock.block', 'ms', ms, 0);
    this.time += ms;
  }
}

/** Lets everything that is already settled run on. */
function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
