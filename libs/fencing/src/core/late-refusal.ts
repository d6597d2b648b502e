import { systemClock } from './clock.js';
import { currentFrame } from './context.js';
import type { FencingError } from './errors.js';
import type { HeldLease } from './lease.js';
import { LineBudget } from './line-budget.js';
import { type FencingLogger, silentLogger } from './logger.js';

/** One call may leave several things behind, each of them worth a line. */
const FIRST_LINES = 20;
/** Of the application whose work was refused last. */
let logger: FencingLogger = silentLogger;
/** Of the process: forgotten work often comes in loops. */
const budget = new LineBudget(
  systemClock,
  (count, seconds) =>
    logger.error(
      `Late work of calls that had ended was refused ${count} more times in the last ${seconds} s.`,
    ),
  FIRST_LINES,
);

/**
 * Work that outlives its leased call has often nobody who awaits it, and an unhandled rejection ends the process. A refusal
 * because the lease of that call has ended, also where it was lost before, is reported instead; whoever does await the promise
 * still gets it.
 */
export function containLateRefusal<T>(outcome: Promise<T>, what: string): Promise<T> {
  // `then` alone: every call pays for it, and a promise made by hand would be three.
  const given = outcome.then(undefined, (error: Error): never => {
    const lease = leaseThatRefused(error);
    if (lease)
      given.catch(() => {
        logger = lease.host.logger;
        if (budget.spend()) logger.error(`${what} was refused: ${error.message}`);
      });
    throw error;
  });
  return given;
}

/** The lease that has ended, and refused its call with `error`. */
function leaseThatRefused(error: unknown): HeldLease | undefined {
  try {
    const { code, key } = (error ?? {}) as Partial<FencingError>;
    return currentFrame().leases.find((one) => one.isOver && one.key === key && one.ended()?.code === code);
  } catch {
    return undefined; // What cannot be looked at, such as a proxy that throws, is no refusal.
  }
}
