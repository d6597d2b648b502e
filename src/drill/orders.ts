import type { Booked, Published } from './events.js';

/*
 * What the drill and its workers send each other. Every message of a call is named `<call> <what>`.
 */

/** How long a lease of the drill lasts without a renewal, ms. */
export const TTL_MS = 1_500;

/** Where a worker can be told to wait for the drill. */
export type PausePoint = 'before the write' | 'inside the write' | 'after the write';

export interface Order {
  /** Names the call in messages. */
  readonly call: string;
  readonly method:
    'rebuild' | 'rebuildSlowly' | 'keepWriting' | 'bookFee' | 'orStop' | 'orWithhold' | 'orReconcile';
  readonly customerId: string;
  readonly operationId: string;
  readonly pauseAt?: PausePoint;
  readonly amountCents?: number;
}

/** `<call> granted` */
export interface Granted {
  readonly owner: string;
  readonly generation: number;
}

/** `<call> wrote`: the database accepted a write. */
export type Wrote = Published | Booked;

/** `<call> refused`: a write was refused, and the method goes on. */
export interface Refused {
  readonly code: string;
}

/** `<call> ended` */
export interface Ended {
  /** What the method returned; where its lease was lost meanwhile, the error of its call brings it along. */
  readonly result?: unknown;
  readonly error?: { readonly code: string; readonly message: string; readonly acceptedWrites?: number };
  /** The code of the reason that the lease's signal was aborted with. */
  readonly abortedWith?: string;
}

/** The result of `keepWriting`. */
export interface LateWrites {
  readonly landed: number;
  readonly refusals: Readonly<Record<string, number>>;
}
