import { LeaseReleasedError } from '../core/errors.js';

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
      if (error instanceof LeaseReleasedError) given.catch(() => report(error));
      reject(error);
    });
  });
  return given;
}
