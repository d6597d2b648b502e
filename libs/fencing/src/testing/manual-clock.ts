import type { CancelTimer, Clock } from '../core/clock.js';

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

  /** Moves on by `ms`; every timer that falls due fires at its own time, and promises settle in between. */
  async advance(ms: number): Promise<void> {
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
    this.time += ms;
  }
}

/** Lets everything that is already settled run on. */
function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
