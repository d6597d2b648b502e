import { systemClock } from '../core/clock.js';
import { currentFrame, runInFrame } from '../core/context.js';
import type { FencingError } from '../core/errors.js';
import type { HeldLease } from '../core/lease.js';

type Cut = (reason: FencingError) => void;

/** The time between the return of a method and the end of the stream that it returned: its leases are kept until then. */
export class Afterlife {
  /** Resolves when the stream is over, however it ended. */
  readonly ended: Promise<void>;
  private readonly frame = currentFrame();
  /** Those who read now, by what ends them. An Observable may have several subscribers, an iterable several iterators. */
  private readonly readers = new Map<Cut, (() => void)[]>();
  private readonly stopWaiting: () => void;
  private resolve!: () => void;

  constructor(
    private readonly leases: readonly HeldLease[],
    isRead: () => boolean = () => false,
  ) {
    this.ended = new Promise((resolve) => (this.resolve = resolve));
    // Nobody may ever read it: then the leases end as if they had not been renewed.
    const ttlMs = Math.min(...leases.map(({ options }) => options.ttlMs));
    this.stopWaiting = systemClock.setTimer(ttlMs, () => (isRead() ? undefined : this.finish()));
  }

  /**
   * Somebody reads now. A lease that ends from here on, or has ended before, ends the reading by `cut`.
   * @returns whether it may be read
   */
  begin(cut: Cut): boolean {
    const reason = this.leases.map((lease) => lease.ended()).find((one) => one !== undefined);
    if (reason) {
      cut(reason);
      return false;
    }
    this.stopWaiting();
    this.readers.set(
      cut,
      this.leases.map((lease) => lease.onEnd(cut)),
    );
    return true;
  }

  /** Runs a part of the stream's work as the method itself ran. */
  run<T>(work: () => T): T {
    return runInFrame(this.frame, work);
  }

  /** The stream is over, or one who read it has ended: the leases are kept to the end of the last one. */
  finish(reader?: Cut): void {
    if (reader) {
      this.readers.get(reader)?.forEach((stop) => stop());
      this.readers.delete(reader);
    }
    if (this.readers.size > 0) return;
    this.stopWaiting();
    this.resolve();
  }
}
