import { setTimeout as pause } from 'node:timers/promises';
import { FencingError, type Lease, type LeaseLostError } from 'nestjs-fencing';
import { gate, tell } from '../../test/support/worker-side.js';
import {
  type Ended,
  type Granted,
  type Order,
  type PausePoint,
  type Refused,
  TTL_MS,
  type Wrote,
} from './orders.js';

/*
 * The worker's side of a call: what it tells the drill, and where it waits for it.
 */

/** The lease of each running call. */
const leases = new Map<string, Lease>();

export async function granted({ call }: Order, lease: Lease): Promise<void> {
  leases.set(call, lease);
  lease.signal.addEventListener('abort', () => void tell(`${call} aborted`));
  await tell(`${call} granted`, { owner: lease.owner, generation: lease.generation } satisfies Granted);
}

export function wrote({ call }: Order, result: Wrote): Promise<void> {
  return tell(`${call} wrote`, result);
}

export function refused({ call }: Order, error: unknown): Promise<void> {
  return tell(`${call} refused`, { code: codeOf(error) } satisfies Refused);
}

/** Waits until the lease is in doubt. */
export async function uncertain({ call }: Order, lease: Lease): Promise<void> {
  while (lease.state === 'held') await pause(10);
  await tell(`${call} state`, lease.state);
}

export function gateOf({ call }: Order, name: string): Promise<void> {
  return gate(`${call} ${name}`);
}

/** Waits for the drill, if it wants the call to wait here. */
export async function pauseAt(point: PausePoint, order: Order, lease: Lease): Promise<void> {
  if (order.pauseAt !== point) return;
  // The drill may stop the process from here on: no renewal may be due just when it wakes up.
  if (point === 'before the write') while (lease.remainingMs() < 0.8 * TTL_MS) await pause(10);
  await gateOf(order, point);
}

/** Runs the call to its end and tells how that was. */
export async function report({ call }: Order, work: Promise<unknown>): Promise<void> {
  const outcome = await work.then(
    (result) => ({ result }),
    (error: unknown) => ({ error: faceOf(error), result: (error as Partial<LeaseLostError>).result }),
  );
  const lease = leases.get(call);
  leases.delete(call);
  const signal = lease?.signal;
  await tell(`${call} ended`, {
    ...outcome,
    abortedWith: signal?.aborted ? codeOf(signal.reason) : undefined,
  } satisfies Ended);
}

export function codeOf(error: unknown): string {
  return error instanceof FencingError ? error.code : String((error as Error | undefined)?.name ?? error);
}

function faceOf(error: unknown): NonNullable<Ended['error']> {
  const { message, acceptedWrites } = error as { message: string; acceptedWrites?: number };
  return { code: codeOf(error), message, acceptedWrites };
}
