import { AsyncLocalStorage } from 'node:async_hooks';
import type { RequestParts } from './key.js';
import type { HeldLease, Lease } from './lease.js';

/** What a call and everything it calls know of their surroundings. Frames are never changed; a new one is run inside. */
export interface Frame {
  /** The leases this call stands on, outermost first. */
  readonly leases: readonly HeldLease[];
  /** The current HTTP request, message or event, for `{params.id}` and the like. */
  readonly request?: RequestFrame;
  /** Guarded transactions that this call is inside of, innermost first; kept by the fence that opened them. */
  readonly transactions?: TransactionLink;
}

export interface RequestFrame extends RequestParts {
  /** Called when a leased method of the request got its lease. */
  granted?(lease: Lease): void;
}

export interface TransactionLink {
  /** The fence that opened it. */
  readonly fence: object;
  readonly transaction: object;
  readonly outer?: TransactionLink;
}

const EMPTY: Frame = Object.freeze({ leases: [] });

/** One context for the ESM and the CommonJS copy of the package in a process. */
const storage = ((globalThis as Record<symbol, unknown>)[Symbol.for('nestjs-fencing/context')] ??=
  new AsyncLocalStorage<Frame>()) as AsyncLocalStorage<Frame>;

export function currentFrame(): Frame {
  return storage.getStore() ?? EMPTY;
}

/** Runs `work`, and all that it starts, inside `frame`. */
export function runInFrame<T>(frame: Frame, work: () => T): T {
  return storage.run(frame, work);
}

/** The innermost transaction of `fence` that this call is inside of. */
export function transactionOf(fence: object): object | undefined {
  for (let link = currentFrame().transactions; link; link = link.outer) {
    if (link.fence === fence) return link.transaction;
  }
  return undefined;
}

/** Runs `work` inside a transaction of `fence`. */
export function runInTransaction<T>(fence: object, transaction: object, work: () => T): T {
  const frame = currentFrame();
  return runInFrame({ ...frame, transactions: { fence, transaction, outer: frame.transactions } }, work);
}
