import type { Clock } from './clock.js';
import { StoreUnavailableError } from './errors.js';
import { type FencingEmitter, tellUnavailable } from './events.js';
import type { LeaseStore, ReleaseAnswer, ReleaseRequest } from './lease-store.js';
import type { FencingLogger } from './logger.js';
import { Timeouts } from './timeouts.js';
import { backoff, sleep, within } from './timing.js';

export interface StoreClientOptions {
  readonly store: LeaseStore;
  readonly clock: Clock;
  readonly logger: FencingLogger;
  readonly events?: FencingEmitter;
  /** How long one request to the lease store may take, ms. */
  readonly storeTimeoutMs: number;
}

/** No request is given less than this to be answered, ms: the last try of a wait should have a chance. */
const SHORTEST_BOUND_MS = 100;
/** How often a release is sent again while the application stops. */
const MOST_RELEASES_AT_STOP = 4;

/** The lease store with deadlines: every request is answered in time or fails, and a release is sent until it is answered. */
export class StoreClient {
  private readonly clock: Clock;
  private openReleases = 0;
  private stopping = false;
  private onReleased: (() => void) | undefined;
  private readonly timeouts: Timeouts;

  constructor(private readonly options: StoreClientOptions) {
    this.clock = options.clock;
    this.timeouts = new Timeouts(options.clock, options.storeTimeoutMs, this.unanswered);
  }

  get store(): LeaseStore {
    return this.options.store;
  }

  /** Settles like `work`, or rejects with `StoreUnavailableError` after the store timeout, or at `until` if that is sooner. */
  ask<T>(work: Promise<T>, until = 0): Promise<T> {
    return new Promise((resolve, reject) => this.hear(work, until, resolve, reject));
  }

  /** What `ask` does, without a promise more: calls one of the two. */
  hear<T>(
    work: Promise<T>,
    until: number,
    answered: (answer: T) => void,
    failed: (error: Error) => void,
  ): void {
    const { storeTimeoutMs } = this.options;
    const tell = (error: Error): void => failed(this.tellFailure(error));
    const left = until - this.clock.now();
    if (left <= 0 || left >= storeTimeoutMs) return this.timeouts.bound(work, answered, tell);
    const bound = Math.max(SHORTEST_BOUND_MS, left);
    within(this.clock, bound, work, () => this.unanswered(bound)).then(answered, tell);
  }

  /**
   * Sends a release, and calls `answered` with what the store says or with `undefined` where the first try had no answer. It is
   * then sent again in the background, until the ttl has freed the key anyway.
   */
  release(
    request: ReleaseRequest,
    ttlMs: number,
    answered?: (answer: ReleaseAnswer | undefined) => void,
  ): void {
    this.openReleases += 1;
    this.timeouts.bound(
      this.store.release(request),
      (answer) => {
        this.released();
        answered?.(answer);
      },
      (error) => {
        this.tellFailure(error);
        answered?.(undefined);
        // Whatever became of the successor, it asks for itself now.
        const again = { key: request.key, owner: request.owner, holdMs: request.holdMs };
        void this.releaseAgain(again, this.clock.now() + ttlMs).then(this.released);
      },
    );
  }

  /** A waiter of this process gives up its place at the store. */
  withdraw(key: string, waiterId: string): void {
    this.store.withdraw(key, waiterId).catch(() => undefined);
  }

  /** Resolves when every release was answered, or after one store timeout. */
  async stop(): Promise<void> {
    this.stopping = true;
    if (this.openReleases === 0) return;
    const all = new Promise<void>((resolve) => (this.onReleased = resolve));
    const { storeTimeoutMs } = this.options;
    await within(this.clock, storeTimeoutMs, all, () => this.unanswered(storeTimeoutMs)).catch(
      () => undefined,
    );
  }

  private readonly unanswered = (ms: number): Error => unanswered(this.store, ms);

  private tellFailure(error: Error): Error {
    tellUnavailable(this.options.events, error);
    return error;
  }

  private readonly released = (): void => {
    this.openReleases -= 1;
    if (this.openReleases === 0) this.onReleased?.();
  };

  private async releaseAgain(request: ReleaseRequest, until: number): Promise<void> {
    for (let attempt = 0; this.clock.now() < until; attempt++) {
      if (this.stopping && attempt >= MOST_RELEASES_AT_STOP) break;
      await sleep(this.clock, backoff(attempt));
      const answer = await this.ask(this.store.release(request)).catch(() => undefined);
      if (answer) return;
    }
    this.options.logger.warn(
      'A lease could not be released at the lease store; its key is free when its ttl is over.',
    );
  }
}

/** A request to the lease store had no answer in time. */
export function unanswered(store: LeaseStore, ms: number): StoreUnavailableError {
  const why = store.silentBecause?.();
  return new StoreUnavailableError(
    'lease store',
    `no answer within ${Math.round(ms)} ms${why === undefined ? '' : ` (${why})`}.`,
  );
}
