import { performance } from 'node:perf_hooks';

/** A gap this long between two looks at the clock means that the process stood still, ms. */
const STOOD_STILL_MS = 300;
const LOOK_EVERY_MS = 20;

/**
 * Lets the monotonic clock of this process stand still while the process does, as that of Linux does while the machine is
 * suspended: after waking up, nothing in the process can tell that time has passed.
 */
export function standStillWhenStopped(): void {
  const now = performance.now.bind(performance);
  let seen = now();
  let lost = 0;
  const look = () => {
    const at = now();
    if (at - seen > STOOD_STILL_MS) lost += at - seen;
    seen = at;
    return at - lost;
  };
  Object.defineProperty(performance, 'now', { value: look });
  setInterval(look, LOOK_EVERY_MS).unref();
}
