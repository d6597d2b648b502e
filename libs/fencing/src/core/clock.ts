import { performance } from 'node:perf_hooks';

/** Stops a timer that has not fired yet. */
export type CancelTimer = () => void;

/** Where time comes from. Only differences count; it must never go back (wall clocks do). */
export interface Clock {
  /** Monotonic time, ms. */
  now(): number;
  /** Calls `fire` once, `afterMs` from now or later. Never keeps the process alive. */
  setTimer(afterMs: number, fire: () => void): CancelTimer;
}

/** Node's timers are 32-bit: a longer delay would fire at once. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

export const systemClock: Clock = {
  now: () => performance.now(),
  setTimer(afterMs, fire) {
    const timer = setTimeout(fire, Math.min(Math.max(0, Math.ceil(afterMs)), LONGEST_TIMER_MS));
    timer.unref();
    return () => clearTimeout(timer);
  },
};
