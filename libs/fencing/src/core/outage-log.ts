import type { CancelTimer, Clock } from './clock.js';
import type { FencingEmitter, FencingEvent } from './events.js';
import { StoreUnavailableError } from './errors.js';
import { failureCode } from './failure-code.js';
import type { FencingLogger } from './logger.js';

/** An outage is over when a request was answered and none failed for this long, ms: one that comes and goes is one outage. */
const QUIET_MS = 5_000;
const REMIND_MS = 60_000;

interface Outage {
  readonly since: number;
  failed: number;
  readonly unlisten: () => void;
  cancelReminder: CancelTimer;
  cancelEnd?: CancelTimer;
}

/** Tells of the outages of a store: when one begins, once a minute while it lasts, and when it is over. Not of each request. */
export class OutageLog {
  private outage: Outage | undefined;

  constructor(
    private readonly store: 'lease store' | 'database',
    private readonly events: FencingEmitter,
    private readonly clock: Clock,
    private readonly logger: FencingLogger,
  ) {}

  /** A request failed. */
  failed(cause: unknown): void {
    if (this.outage) {
      this.outage.failed += 1;
      this.outage.cancelEnd?.();
      this.outage.cancelEnd = undefined;
      return;
    }
    this.logger.error(
      `The ${this.store} is unavailable (${reasonOf(cause)}). What needs it fails until it answers; the next lines are a reminder a minute, and its end.`,
    );
    this.outage = {
      since: this.clock.now(),
      failed: 1,
      // What shows that it answers is heard only now: while all is well, nothing is computed for it.
      unlisten: this.events.listen(
        (event) => this.answered(event),
        ['lease.acquired', 'lease.renewed', 'write.accepted'],
      ),
      cancelReminder: this.remindLater(),
    };
  }

  close(): void {
    const { outage } = this;
    if (!outage) return;
    this.outage = undefined;
    outage.unlisten();
    outage.cancelReminder();
    outage.cancelEnd?.();
  }

  private answered(event: FencingEvent): void {
    const byDatabase =
      event.name === 'write.accepted' || (event.name === 'lease.acquired' && event.activated);
    const byStore = event.name !== 'write.accepted';
    if (!(this.store === 'database' ? byDatabase : byStore)) return;
    if (!this.outage || this.outage.cancelEnd) return;
    const answeredAt = this.clock.now();
    this.outage.cancelEnd = this.clock.setTimer(QUIET_MS, () => this.end(answeredAt));
  }

  private end(at: number): void {
    const { since, failed } = this.outage!;
    this.close();
    this.logger.warn(
      `The ${this.store} answers again, after ${seconds(at - since)} s; ${failed} requests had failed.`,
    );
  }

  private remindLater(): CancelTimer {
    return this.clock.setTimer(REMIND_MS, () => {
      const outage = this.outage!;
      this.logger.error(
        `The ${this.store} is unavailable since ${seconds(this.clock.now() - outage.since)} s; ${outage.failed} requests have failed.`,
      );
      outage.cancelReminder = this.remindLater();
    });
  }
}

function reasonOf(cause: unknown): string {
  return cause instanceof StoreUnavailableError ? 'no answer' : failureCode(cause);
}

function seconds(ms: number): number {
  return Math.round(ms / 1_000);
}
