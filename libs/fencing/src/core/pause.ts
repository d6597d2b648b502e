import type { Clock } from './clock.js';
import type { WakeHint } from './lease-store.js';
import { jitter } from './timing.js';

/** The pause of the head of a line between two tries, shortened or lengthened by hints. */
export class Pause {
  private wakeAt = Infinity;
  private woken = false;
  private rearm: (() => void) | undefined;

  constructor(
    private readonly clock: Clock,
    private readonly waiterId: string,
  ) {}

  /** A try begins: hints from now on count. */
  reset(): void {
    this.woken = false;
  }

  /** Ends the pause now. */
  readonly wake = (): void => {
    this.woken = true;
    this.rearm?.();
  };

  readonly hear = ({ waiterId, reservedMs }: WakeHint): void => {
    const mine = waiterId === undefined || waiterId === this.waiterId;
    this.woken ||= mine;
    // Kept for another process: look again when that is over, in case it does not come.
    if (!mine) this.wakeAt = this.clock.now() + jitter(reservedMs + 1);
    this.rearm?.();
  };

  /** Resolves after `ms`, after a hint, or when `signal` aborts. */
  wait(ms: number, signal?: AbortSignal): Promise<void> {
    if (this.woken) return Promise.resolve();
    const end = this.clock.now() + ms;
    this.wakeAt = end;
    return new Promise((resolve) => {
      let cancel: () => void = () => undefined;
      const done = (): void => {
        cancel();
        this.rearm = undefined;
        signal?.removeEventListener('abort', done);
        resolve();
      };
      const arm = (): void => {
        cancel();
        const now = this.clock.now();
        if (this.woken || now >= Math.min(this.wakeAt, end)) return done();
        cancel = this.clock.setTimer(Math.min(this.wakeAt, end) - now, arm);
      };
      this.rearm = arm;
      signal?.addEventListener('abort', done, { once: true });
      arm();
    });
  }
}
