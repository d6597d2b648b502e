import type { CancelTimer, Clock } from './clock.js';

/** Lines of a kind that are said in full before the summaries begin. */
const FIRST_LINES = 5;
const PERIOD_MS = 60_000;

/**
 * Keeps one kind of line from flooding a log: the first ones are said, the others counted and summed up once a minute, until a
 * minute was quiet.
 */
export class LineBudget {
  private spent = 0;
  private unsaid = 0;
  private since = 0;
  private cancel: CancelTimer | undefined;

  constructor(
    private readonly clock: Clock,
    private readonly sumUp: (count: number, seconds: number) => void,
    private readonly firstLines = FIRST_LINES,
  ) {}

  /** Whether this line is to be said. */
  spend(): boolean {
    if (!this.cancel) this.begin();
    if (this.spent < this.firstLines) {
      this.spent += 1;
      return true;
    }
    this.unsaid += 1;
    return false;
  }

  /** Sums up what was not said. */
  close(): void {
    this.cancel?.();
    this.cancel = undefined;
    this.summary();
  }

  private begin(): void {
    this.since = this.clock.now();
    this.cancel = this.clock.setTimer(PERIOD_MS, () => {
      this.cancel = undefined;
      if (this.unsaid === 0) {
        this.spent = 0;
        return;
      }
      this.summary();
      this.begin();
    });
  }

  private summary(): void {
    if (this.unsaid > 0) this.sumUp(this.unsaid, Math.round((this.clock.now() - this.since) / 1_000));
    this.unsaid = 0;
  }
}
