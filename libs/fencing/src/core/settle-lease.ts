import type { HeldLease } from './lease.js';

/**
 * Makes sure that a lease may write now, as its `onUncertain` policy says, or throws. Answers what to wait for where that is not
 * known yet. Nothing is asked of the database for a lease that has ended.
 */
export function settleLease(lease: HeldLease): Promise<void> | undefined {
  lease.assertHeld();
  if (lease.state !== 'uncertain') return undefined;
  return lease.options.onUncertain === 'withhold' ? confirmed(lease) : lease.host.confirm(lease);
}

/** Resolves when a renewal confirms the lease; rejects when it ends first. Its deadline bounds the wait. */
function confirmed(lease: HeldLease): Promise<void> {
  return new Promise((resolve, reject) => {
    const stops = [
      lease.onRenewed(() => settle(resolve)),
      lease.onEnd((reason) => settle(() => reject(reason))),
    ];
    const settle = (act: () => void): void => {
      stops.forEach((stop) => stop());
      act();
    };
  });
}
