import type { Clock } from './clock.js';
import { failureCode } from './failure-code.js';
import { within } from './timing.js';

/** A question without an answer is asked again after this, ms: a reply that was lost for good must not hide a recovery. */
const ASK_AGAIN_MS = 10_000;

/** `undefined`: it answers. Otherwise why it does not. */
export type Trouble = string | undefined;

/**
 * Asks whether something answers, for health checks: within a deadline, and never more often at once than it takes. Checks that come
 * while a question is open wait for the answer to that one, so a dead server does not collect requests.
 */
export class Probe {
  private open: { readonly answer: Promise<unknown>; readonly since: number } | undefined;

  constructor(
    private readonly clock: Clock,
    private readonly ask: () => Promise<unknown>,
  ) {}

  async trouble(timeoutMs: number): Promise<Trouble> {
    try {
      await within(this.clock, timeoutMs, this.answer(), () => new Unanswered());
      return undefined;
    } catch (error) {
      return error instanceof Unanswered ? `no answer within ${timeoutMs} ms` : causeOf(error);
    }
  }

  private answer(): Promise<unknown> {
    const now = this.clock.now();
    if (this.open && now - this.open.since < ASK_AGAIN_MS) return this.open.answer;
    const open = { answer: this.ask(), since: now };
    this.open = open;
    const over = () => {
      if (this.open === open) this.open = undefined;
    };
    open.answer.then(over, over);
    return open.answer;
  }
}

class Unanswered extends Error {}

function causeOf(error: unknown): string {
  const { cause } = (error ?? {}) as { cause?: unknown };
  return failureCode(cause ?? error);
}
