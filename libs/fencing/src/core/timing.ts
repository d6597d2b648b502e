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
      (error: unknown) => {
        cancel();
        reject(error as Error);
      },
    );
  });
}

/** Waits `ms`, or until `signal` aborts. */
export function sleep(clock: Clock, ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
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
