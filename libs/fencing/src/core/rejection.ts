import { CommitUnknownError, FencingError, LeaseLostError, LeaseUncertainError } from './errors.js';
import type { HeldLease } from './lease.js';

/** How the body of a leased call ended. */
export interface BodyOutcome {
  readonly result?: unknown;
  readonly bodyError?: unknown;
}

/** What a call rejects with whose lease ended, for `reason`, before its body did; it carries what the body gave. */
export function rejectionOf(lease: HeldLease, reason: FencingError, outcome: BodyOutcome): FencingError {
  const { bodyError } = outcome;
  // The body let the refusal through: it says it all.
  if (bodyError === reason) return reason;
  if (bodyError instanceof CommitUnknownError) return bodyError;
  if (bodyError instanceof FencingError && bodyError.key === lease.key && bodyError.code === reason.code)
    return bodyError;
  if (reason instanceof LeaseUncertainError)
    return new LeaseUncertainError(lease.key, lease.generation, bodyError ?? reason.cause);
  const why = reason instanceof LeaseLostError ? reason.reason : 'superseded';
  return new LeaseLostError(lease.key, lease.generation, why, lease.acceptedWrites, outcome);
}
