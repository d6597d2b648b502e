/** One step of the lease store's contract, as the SQL function reads it. */
export interface LeaseStep {
  readonly do: 'acquire' | 'release' | 'withdraw';
  readonly bucket: number;
  readonly key: string;
  readonly [parameter: string]: unknown;
}

interface Waiting {
  readonly step: LeaseStep;
  readonly answered: (answer: unknown) => void;
  readonly failed: (error: unknown) => void;
}

/** Steps in one request: bounded, so that no request holds its buckets for long. */
const LARGEST_BATCH = 128;

/**
 * Sends steps to PostgreSQL, one request at a time: so the steps of a process keep their order, and an acquisition never
 * overtakes the release that was asked for before it. What is asked for together, or while a request is under way, shares
 * the next one; so a slow server gets fewer and larger requests.
 */
export class PostgresStepSender {
  private waiting: Waiting[] = [];
  private underWay = false;

  /** @param send sends one request, and answers one answer for each step */
  constructor(private readonly send: (steps: readonly LeaseStep[]) => Promise<unknown[]>) {}

  ask<T>(step: LeaseStep): Promise<T> {
    return new Promise((resolve, reject) => {
      this.waiting.push({ step, answered: resolve as (answer: unknown) => void, failed: reject });
      if (this.underWay) return;
      this.underWay = true;
      queueMicrotask(() => void this.sendAll());
    });
  }

  private async sendAll(): Promise<void> {
    while (this.waiting.length > 0) {
      const batch = this.waiting.splice(0, LARGEST_BATCH);
      try {
        const answers = await this.send(batch.map(({ step }) => step));
        batch.forEach(({ answered }, i) => answered(answers[i]));
      } catch (error) {
        for (const { failed } of batch) failed(error);
      }
    }
    this.underWay = false;
  }
}
