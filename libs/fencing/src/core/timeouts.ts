import type { CancelTimer, Clock } from './clock.js';

interface Open {
  readonly due: number;
  readonly failed: (error: Error) => void;
}

/**
 * One bound for many pieces of work. They time out in the order they began, so one timer serves all of them, and work that
 * is done in time costs none.
 */
export class Timeouts {
  private readonly open = new Set<Open>();
  private cancelTimer: CancelTimer | undefined;

  constructor(
    private readonly clock: Clock,
    private readonly ms: number,
    private readonly tooLate: (ms: number) => Error,
  ) {}

  /** Calls one of the two when `work` settles, or `failed` once the bound has passed. The work itself goes on. */
  bound<T>(work: Promise<T>, done: (value: T) => void, failed: (error: Error) => void): void {
    const entry: Open = { due: this.clock.now() + this.ms, failed };
    this.open.add(entry);
    if (!this.cancelTimer) this.arm(this.ms);
    work.then(
      (value) => {
        if (this.open.delete(entry)) done(value);
      },
      (error: Error) => {
        if (this.open.delete(entry)) failed(error);
      },
    );
  }

  private arm(ms: number): void {
    this.cancelTimer = this.clock.setTimer(ms, this.onTimer);
  }

  private readonly onTimer = (): void => {
    this.cancelTimer = undefined;
    const now = this.clock.now();
    for (const entry of this.open) {
      if (entry.due > now) return this.arm(entry.due - now);
      this.open.delete(entry);
      entry.failed(this.tooLate(this.ms));
    }
  };
}
