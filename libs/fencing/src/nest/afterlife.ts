import { systemClock } from '../core/clock.js';
import { currentFrame, runInFrame } from '../core/context.js';
import type { FencingError } from '../core/errors.js';
import type { HeldLease } from '../core/lease.js';

/** The time between the return of a method and the end of the stream that it returned: its leases are kept until then. */
export class Afterlife {
  /** Resolves when the stream is over, however it ended. */
  readonly ended: Promise<void>;
  private readonly frame = currentFrame();
  private readonly stops: (() => void)[] = [];
  private resolve!: () => void;

  constructor(
    private readonly leases: readonly HeldLease[],
    isRead: () => boolean = () => false,
  ) {
    this.ended = new Promise((resolve) => (this.resolve = resolve));
    // Nobody may ever read it: then the leases end as if they had not been renewed.
    const ttlMs = Math.min(...leases.map(({ options }) => options.ttlMs));
    this.stops.push(systemClock.setTimer(ttlMs, () => (isRead() ? undefined : this.finish())));
  }

  /**
   * Somebody reads now. A lease that ends from here on, or has ended before, ends the stream by `cut`.
   * @returns whether it may be read
   */
  begin(cut: (reason: FencingError) => void): boolean {
    this.stop();
    this.stops.push(...this.leases.map((lease) => lease.onEnd(cut)));
    const reason = this.leases.map((lease) => lease.ended()).find((one) => one !== undefined);
    if (reason) cut(reason);
    return reason === undefined;
  }

  /** Runs a part of the stream's work as the method itself ran. */
  run<T>(work: () => T): T {
    return runInFrame(this.frame, work);
  }

  readonly finish = (): void => {
    this.stop();
    this.resolve();
  };

  private stop(): void {
    for (const stop of this.stops.splice(0)) stop();
  }
}
