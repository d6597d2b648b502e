import type { Clock } from './clock.js';

/**
 * Settles like `work`, or rejects with `tooLate()` once `ms` have passed. The work itself goes on: whoever started it must be
 * able to live with its effect.
 */
export function within<T>(clock: Clock, ms: number, work: Promise<T>, tooLate: () => Error): Promise<T> {
  return new Promise((resolve, reject) => {
    const cancel = clock.setTimer(ms, () => reject(tooLate()));
    work.then(
      (value) => {
        cancel();
        resolve(value);
      },
      (error: Error) => {
        cancel();
        reject(error);
      },
    );
  });
}

/** Settles like `work`, or rejects with `aborted()` once `signal` aborts. The work itself goes on. */
export function unlessAborted<T>(
  work: Promise<T>,
  signal: AbortSignal | undefined,
  aborted: () => Error,
): Promise<T> {
  if (!signal) return work;
  return new Promise((resolve, reject) => {
    const onAbort = (): void => reject(aborted());
    if (signal.aborted) onAbort();
    signal.addEventListener('abort', onAbort, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', onAbort));
  });
}

/** Waits `ms`, or until `signal` aborts. */
export function sleep(clock: Clock, ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const done = () => {
      cancel();
      signal?.removeEventListener('abort', done);
      resolve();
    };
    const cancel = clock.setTimer(ms, done);
    signal?.addEventListener('abort', done, { once: true });
  });
}

/** Up to a quarter more, so that those who wait for the same thing do not come back in step. */
export function jitter(ms: number): number {
  return ms * (1 + Math.random() / 4);
}

/** The pause before try number `attempt` (from 0): 25 ms, doubling, up to a second, with jitter. */
export function backoff(attempt: number): number {
  return jitter(Math.min(1_000, 25 * 2 ** Math.min(attempt, 6)));
}
