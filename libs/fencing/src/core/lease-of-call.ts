import { currentFrame } from './context.js';
import { FencingConfigError, NoLeaseError } from './errors.js';
import type { HeldLease, Lease } from './lease.js';

/**
 * The lease that the current call stands on. Where it stands on several, generations of different keys cannot be compared, so
 * none is picked: the caller must say which.
 * @param what needs the lease, for messages
 * @param howToSay which one, e.g. `under(lease)`
 * @throws NoLeaseError, FencingConfigError, or why the lease has ended
 */
export function leaseOfCall(what: string, howToSay: string): HeldLease {
  const { leases } = currentFrame();
  const live = leases.filter(({ isOver }) => !isOver);
  if (live.length > 1) {
    throw new FencingConfigError(
      `${what} goes by one lease, and this call stands on ${live.length}. Say which: ${howToSay}.`,
    );
  }
  const lease = live[0] ?? leases.at(-1);
  if (!lease) throw new NoLeaseError(what);
  lease.assertHeld();
  return lease;
}

/** A lease that user code was given. @throws FencingConfigError where it is none, or why it has ended */
export function heldLease(what: string, lease: Lease): HeldLease {
  const held = lease as Partial<HeldLease> | null | undefined;
  if (typeof held?.assertHeld !== 'function' || typeof held.host?.raise !== 'function')
    throw new FencingConfigError(`${what} needs a lease, as @CurrentLease() and FencingService give it.`);
  held.assertHeld();
  return held as HeldLease;
}
