import { Logger } from '@nestjs/common';
import { systemClock } from '../core/clock.js';
import { LeaseReleasedError } from '../core/errors.js';
import { LineBudget } from '../core/line-budget.js';

/** One call may leave several things behind, each of them worth a line. */
const FIRST_LINES = 20;
/** Of the process: forgotten work often comes in loops. */
const budget = new LineBudget(
  systemClock,
  (count, seconds) =>
    new Logger('Fencing').error(
      `Late work of calls that had ended was refused ${count} more times in the last ${seconds} s.`,
    ),
  FIRST_LINES,
);

/**
 * Work that outlives its leased call has often nobody who awaits it, and an unhandled rejection ends the process. A refusal
 * for that reason is reported instead; whoever does await the promise still gets it.
 */
export function containLateRefusal<T>(
  outcome: Promise<T>,
  report: (error: LeaseReleasedError) => void,
): Promise<T> {
  const given = new Promise<T>((resolve, reject) => {
    outcome.then(resolve, (error: Error) => {
      if (error instanceof LeaseReleasedError) given.catch(() => budget.spend() && report(error));
      reject(error);
    });
  });
  return given;
}
