import type { WriteOutcome } from './fence.js';
import type { Lease } from './lease.js';

/**
 * Wraps leased calls and fenced writes, in spans for instance. It is there beside the events since what runs inside must see
 * the span around it.
 * @internal
 */
export interface FencingTracer {
  /** Runs a leased call, its wait included. `call` tells of the leases when the method begins; never where it stays busy. */
  leased<T>(
    instance: string,
    keys: readonly string[],
    call: (onLeased: (leases: readonly Lease[]) => void) => Promise<T>,
  ): Promise<T>;
  /** Runs a fenced write under these leases. `call` tells what became of it, unless it throws. */
  write<T>(
    instance: string,
    where: string,
    leases: readonly Lease[],
    call: (onOutcome: (outcome: WriteOutcome<unknown>) => void) => Promise<T>,
  ): Promise<T>;
}

/**
 * The tracer of this process; one for the ESM and the CommonJS copy of the package.
 * @internal
 */
export const tracing = ((globalThis as Record<symbol, unknown>)[Symbol.for('nestjs-fencing/tracing')] ??= {
  tracer: undefined,
}) as { tracer: FencingTracer | undefined };
