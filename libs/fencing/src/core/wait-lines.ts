import type { Clock } from './clock.js';
import { type LeaseBusyError, WaitAbortedError } from './errors.js';

/** What a waiter gets when its turn comes. */
export interface Turn {
  /** When the request was sent that made the turn; hints and validity count from then. */
  readonly sentAt: number;
  /** The previous holder handed its key over: this is the grant. Without it the waiter asks the store itself. */
  readonly grant?: { readonly generation: number; readonly activated?: boolean };
  /** Another process is served first: wait this long (or for a hint) before asking. */
  readonly waitMs?: number;
}

export interface WaitRequest {
  readonly key: string;
  /** The owner that the waiter will be, so that the key can be handed over to it. */
  readonly owner: string;
  readonly ttlMs: number;
  /** Whether its grant is to be activated. */
  readonly activate?: boolean;
  /** Monotonic time at which the wait ends. */
  readonly until: number;
  readonly signal?: AbortSignal;
  readonly draining: boolean;
}

export interface Waiter extends WaitRequest {
  /** Gives it its turn; `false` if it has given up. */
  give(turn: Turn): boolean;
  giveUp(error: Error): void;
}

interface Line {
  readonly waiters: Waiter[];
  /** When the process took the key from outside, and how often it has handed it over inside since. */
  turnBegan: number;
  handOvers: number;
  /** When the key should be free at the latest, as far as known here. */
  freeAt: number;
}

/** How often, and for how long, one process may hand a key over inside while others wait for it. */
const LONGEST_TURN = 20;
const LONGEST_TURN_MS = 10;

/**
 * The callers of one process that want the same key, in the order they came. Only the head of a line talks to the store. A
 * line exists only while somebody holds or wants its key.
 */
export class WaitLines {
  private readonly lines = new Map<string, Line>();

  constructor(private readonly clock: Clock) {}

  /** Number of keys that somebody here holds or waits for. */
  get size(): number {
    return this.lines.size;
  }

  /** `true`: the caller is the head of the line now. */
  enter(key: string): boolean {
    if (this.lines.has(key)) return false;
    this.lines.set(key, { waiters: [], turnBegan: this.clock.now(), handOvers: 0, freeAt: 0 });
    return true;
  }

  /** Waits for the turn. Rejects with `busy()` at `until`, with `WaitAbortedError` when the signal aborts. */
  wait(request: WaitRequest, busy: () => LeaseBusyError): Promise<Turn> {
    const { key, signal, until } = request;
    const { waiters } = this.lines.get(key)!;
    return new Promise((resolve, reject) => {
      let settled = false;
      const settle = (): boolean => {
        if (settled) return false;
        settled = true;
        cancelTimer();
        signal?.removeEventListener('abort', onAbort);
        return true;
      };
      const giveUp = (error: Error): void => {
        if (!settle()) return;
        const at = waiters.indexOf(waiter);
        if (at >= 0) waiters.splice(at, 1);
        reject(error);
      };
      const waiter: Waiter = {
        ...request,
        giveUp,
        give: (turn) => {
          if (!settle()) return false;
          resolve(turn);
          return true;
        },
      };
      const onAbort = (): void => giveUp(new WaitAbortedError(key, signal?.reason));
      const cancelTimer = this.clock.setTimer(until - this.clock.now(), () => giveUp(busy()));
      signal?.addEventListener('abort', onAbort, { once: true });
      waiters.push(waiter);
    });
  }

  /** Takes the next waiter out of the line; `undefined` closes the line. */
  next(key: string): Waiter | undefined {
    const waiter = this.lines.get(key)?.waiters.shift();
    if (!waiter) this.lines.delete(key);
    return waiter;
  }

  /** Ends the wait of everyone for whom `reason` gives an error. */
  rejectAll(reason: (waiter: Waiter) => Error | undefined): void {
    for (const { waiters } of this.lines.values()) {
      for (const waiter of [...waiters]) {
        const error = reason(waiter);
        if (error) waiter.giveUp(error);
      }
    }
  }

  /** The process got the key from the store. */
  beginTurn(key: string): void {
    const line = this.lines.get(key);
    if (!line) return;
    line.turnBegan = this.clock.now();
    line.handOvers = 0;
  }

  /**
   * Whether the key may be handed over inside although other processes wait: a hand-over across processes costs a wake-up, so
   * a few quick ones in a row are better for everybody. Asked once per hand-over.
   */
  mayKeep(key: string): boolean {
    const line = this.lines.get(key);
    if (!line) return false;
    line.handOvers += 1;
    return line.handOvers < LONGEST_TURN && this.clock.now() - line.turnBegan < LONGEST_TURN_MS;
  }

  /** Notes when the key should be free, for the answers that waiters get. */
  expectFreeAt(key: string, at: number): void {
    const line = this.lines.get(key);
    if (line) line.freeAt = at;
  }

  /** When the key should be free at the latest, ms from now. */
  freeInMs(key: string): number {
    return Math.max(0, (this.lines.get(key)?.freeAt ?? 0) - this.clock.now());
  }

  /** How many wait in this process for `key`, the head not counted. */
  waiting(key: string): number {
    return this.lines.get(key)?.waiters.length ?? 0;
  }
}
