import { randomUUID } from 'node:crypto';
import type { Clock } from './clock.js';
import { LeaseBusyError, StoreUnavailableError, WaitAbortedError } from './errors.js';
import type { FencingEmitter } from './events.js';
import type { AcquireAnswer, Watch } from './lease-store.js';
import type { ResolvedLeaseOptions } from './options.js';
import { Pause } from './pause.js';
import type { StoreClient } from './store-client.js';
import { backoff, jitter, sleep, unlessAborted } from './timing.js';
import type { Turn, WaitLines } from './wait-lines.js';

/** A caller that wants a key. */
export interface Call {
  readonly key: string;
  owner: string;
  readonly options: ResolvedLeaseOptions;
  readonly startedAt: number;
  /** Monotonic time at which the wait ends. */
  readonly until: number;
  readonly signal?: AbortSignal;
  /** Asked for by work that holds a lease: allowed while the application stops. */
  readonly draining: boolean;
  /** Whether the grant is to be activated, so that a store that is joined to the fence may do both at once. */
  readonly activate?: boolean;
  /** Whether it was told that the key is taken. */
  contended?: boolean;
}

/** A grant, and when its request was sent: validity counts from then. */
export interface Granted {
  readonly generation: number;
  /** The store has activated it as well. */
  readonly activated?: boolean;
  readonly sentAt: number;
}

/** A request for a key. */
interface Request {
  readonly asked: Promise<AcquireAnswer>;
  readonly sentAt: number;
  /** Whether it asked for a place among those who wait as well. */
  readonly asWaiter: boolean;
}

/** What became of a request: `asked`, or that it had no answer in time. */
type Try = Request & { readonly answered: Promise<AcquireAnswer> };

/** A waiter hears of a free key by a hint; where one was lost it looks again after this at the latest, ms. */
const LONGEST_PAUSE_MS = 2_000;

/** Gets the head of a line its grant: asks the store, waits for hints, asks again, until its wait is over. */
export class Acquirer {
  /** This process as a waiter at the store. */
  readonly waiterId = randomUUID();
  private readonly pauses = new Set<Pause>();
  private stopping = false;

  constructor(
    private readonly client: StoreClient,
    private readonly clock: Clock,
    private readonly lines: WaitLines,
    private readonly events: FencingEmitter,
  ) {}

  /**
   * Asks for a key that is probably free. With `AsyncLocalStorage` in use, Node 20 and 22 make each promise dear, so a grant is
   * told by `granted`; everything else goes on in `acquire`, and `otherwise` gets what comes of it.
   */
  acquireFree(
    call: Call,
    granted: (granted: Granted) => void,
    otherwise: (acquired: Promise<Granted>) => void,
  ): void {
    try {
      const request = this.send(call);
      const goOn = (answered: Promise<AcquireAnswer>): void =>
        otherwise(this.acquire(call, { sentAt: request.sentAt }, { ...request, answered }));
      if (call.signal) return goOn(this.answerTo(request, call));
      this.client.hear(
        request.asked,
        call.until,
        (answer) =>
          // Of a store that answers nonsense the call must hear as well.
          answer?.granted ? granted(this.begin(call, answer, request)) : goOn(Promise.resolve(answer)),
        (error) => goOn(Promise.reject(error)),
      );
    } catch (error) {
      otherwise(Promise.reject(error));
    }
  }

  /**
   * @param first a request that was sent already
   * @throws LeaseBusyError, WaitAbortedError, StoreUnavailableError; whatever may have been granted then is given back
   */
  async acquire(call: Call, { waitMs, sentAt: since }: Turn, first?: Try): Promise<Granted> {
    const { key, until } = call;
    // What waiting needs is made when it is needed: most keys are free.
    let pause: Pause | undefined;
    let watch: Watch | undefined;
    const wait = (ms: number, from: number): Promise<void> => {
      if (!pause) {
        pause = new Pause(this.clock, this.waiterId);
        this.pauses.add(pause);
        watch = this.client.store.watch(key, pause.hear, from);
        // Hints sent before the watch was live are gone, so the key is tried once more after that.
        if (waitMs === undefined) watch.live?.then(pause.wake, () => undefined);
      }
      const left = until - this.clock.now();
      return pause.wait(Math.min(left, jitter(Math.min(ms + 1, LONGEST_PAUSE_MS))), call.signal);
    };
    let registered = waitMs !== undefined;
    // Tries without an answer: each may have been granted, or may be yet.
    const open: Promise<AcquireAnswer>[] = [];
    try {
      if (waitMs !== undefined) await wait(waitMs, since);
      for (let failures = 0, current = first; ; current = undefined) {
        if (!current) {
          this.assertMayTake(call);
          pause?.reset();
        }
        const { asked, sentAt, asWaiter, answered } = current ?? this.ask(call);
        let answer: AcquireAnswer;
        try {
          answer = await answered;
        } catch (error) {
          open.push(asked);
          // The store may have noted the waiter all the same.
          registered ||= asWaiter;
          const pauseMs = backoff(failures++);
          const passing = error instanceof StoreUnavailableError && error.retryable;
          if (passing && this.clock.now() + pauseMs < until) {
            await sleep(this.clock, pauseMs, call.signal);
            continue;
          }
          throw error;
        }
        if (answer.granted) {
          registered = false;
          return this.begin(call, answer, { sentAt });
        }
        registered ||= asWaiter;
        this.tellContended(call);
        this.lines.expectFreeAt(key, this.clock.now() + answer.remainingMs);
        if (this.clock.now() >= until) {
          throw this.busy(call, answer.remainingMs);
        }
        await wait(answer.remainingMs, sentAt);
      }
    } catch (error) {
      if (open.length > 0) this.giveBack(call, open);
      throw error;
    } finally {
      if (pause) this.pauses.delete(pause);
      watch?.stop();
      if (registered) this.client.withdraw(key, this.waiterId);
    }
  }

  private send({ key, owner, options, until, activate }: Call): Request {
    const sentAt = this.clock.now();
    const waiter = sentAt < until ? { id: this.waiterId, forMs: until - sentAt } : undefined;
    const asked = this.client.store.acquire({ key, owner, ttlMs: options.ttlMs, floor: 0, waiter, activate });
    return { asked, sentAt, asWaiter: waiter !== undefined };
  }

  private ask(call: Call): Try {
    const request = this.send(call);
    return { ...request, answered: this.answerTo(request, call) };
  }

  private answerTo({ asked }: Request, call: Call): Promise<AcquireAnswer> {
    return unlessAborted(this.client.ask(asked, call.until), call.signal, () => aborted(call));
  }

  /** The process has got the key. */
  private begin(
    { key }: Call,
    { generation, activated }: AcquireAnswer & { granted: true },
    { sentAt }: Pick<Request, 'sentAt'>,
  ): Granted {
    this.lines.beginTurn(key);
    return { generation, activated, sentAt };
  }

  /** Ends the waits of calls that may not take a lease any more. */
  stop(): void {
    this.stopping = true;
    for (const pause of this.pauses) pause.wake();
  }

  /** @throws where the call may not take a lease any more */
  assertMayTake(call: Pick<Call, 'key' | 'signal' | 'draining'>): void {
    if (call.signal?.aborted) throw aborted(call);
    if (!this.mayTake(call)) throw shuttingDown(call.key);
  }

  mayTake({ signal, draining }: Pick<Call, 'signal' | 'draining'>): boolean {
    return !signal?.aborted && (!this.stopping || draining);
  }

  /** What a caller whose wait is over gets. */
  busy({ key, startedAt }: Call, remainingMs: number): LeaseBusyError {
    const waitedMs = this.clock.now() - startedAt;
    if (this.events.hears('lease.busy')) this.events.emit('lease.busy', { key, waitedMs });
    return new LeaseBusyError(key, waitedMs, remainingMs);
  }

  /** Tells, once for each call, that its key is taken. */
  tellContended(call: Call): void {
    if (call.contended) return;
    call.contended = true;
    if (!this.events.hears('lease.contended')) return;
    const waitMs = Math.max(0, call.until - this.clock.now());
    this.events.emit('lease.contended', { key: call.key, waitMs });
  }

  /** The key must not stay taken by what one of these tries was granted, or still will be. */
  private giveBack({ key, owner, options }: Call, tries: readonly Promise<AcquireAnswer>[]): void {
    const release = (): void => this.client.release({ key, owner }, options.ttlMs);
    release();
    for (const asked of tries) {
      asked.then(
        ({ granted }) => granted && release(),
        () => undefined,
      );
    }
  }
}

export function shuttingDown(key: string): StoreUnavailableError {
  return new StoreUnavailableError(
    'lease store',
    'the application is shutting down and takes no new leases.',
    { key, retryable: false },
  );
}

function aborted({ key, signal }: Pick<Call, 'key' | 'signal'>): WaitAbortedError {
  return new WaitAbortedError(key, signal?.reason);
}
