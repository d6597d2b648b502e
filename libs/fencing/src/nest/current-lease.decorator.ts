import type { Lease } from '../core/lease.js';

const CURRENT_LEASE = Symbol.for('nestjs-fencing/current-lease');

/**
 * The lease of the current call as a parameter of a `@Leased` or `@FencedWrite` method; callers leave it out. Of several, the
 * one of the first key.
 *
 * `@CurrentLease() lease?: Lease` as the last parameter; in the method `lease!.signal`, `lease!.assertHeld()`.
 */
export function CurrentLease(): ParameterDecorator {
  return (target, method, index) => {
    if (method === undefined) return;
    const known = (Reflect.getOwnMetadata(CURRENT_LEASE, target, method) as number[] | undefined) ?? [];
    Reflect.defineMetadata(CURRENT_LEASE, [...known, index], target, method);
  };
}

/** The positions of `@CurrentLease()` parameters of a method. */
export function currentLeasePositions(target: object, method: string | symbol): readonly number[] {
  return (Reflect.getMetadata(CURRENT_LEASE, target, method) as number[] | undefined) ?? [];
}

/** `args` with the lease where the method wants it. */
export function withCurrentLease(
  target: object,
  method: string | symbol,
  args: unknown[],
  lease: Lease | undefined,
): unknown[] {
  const positions = currentLeasePositions(target, method);
  if (positions.length === 0) return args;
  const filled = [...args];
  for (const position of positions) filled[position] = lease;
  return filled;
}
