import { randomUUID } from 'node:crypto';
import type { Clock } from './clock.js';
import { currentFrame, runInFrame } from './context.js';
import {
  FencingError,
  LeaseBusyError,
  LeaseLostError,
  LeaseOrderError,
  LeaseUncertainError,
  StoreUnavailableError,
  WaitAbortedError,
} from './errors.js';
import type { Fence } from './fence.js';
import { HeldLease, type LeaseHost } from './lease.js';
import type { AcquireAnswer, LeaseStore, ReleaseAnswer, ReleaseRequest, WakeHint } from './lease-store.js';
import type { FencingLogger } from './logger.js';
import type { ResolvedLeaseOptions } from './options.js';
import { Renewals } from './renewals.js';
import { backoff, jitter, sleep, unlessAborted, within } from './timing.js';
import { type Turn, type Waiter, WaitLines } from './wait-lines.js';

export interface KeeperOptions {
  readonly store: LeaseStore;
  readonly fence?: Fence;
  readonly clock: Clock;
  readonly logger: FencingLogger;
  /** How long one request to the lease store may take, ms. */
  readonly storeTimeoutMs: number;
}

/** A result that goes on after the method that gave it has returned. */
export interface StreamedResult<T> {
  readonly result: T;
  /** Resolves when it is over, however it ended. */
  readonly ended: Promise<void>;
}

/** A caller that wants a key. */
interface Call {
  readonly key: string;
  owner: string;
  readonly options: ResolvedLeaseOptions;
  readonly startedAt: number;
  readonly until: number;
  readonly signal?: AbortSignal;
  /** Asked for by work that holds a lease: allowed while the application stops. */
  readonly draining: boolean;
}

/** A waiter hears of a free key by a hint; where one was lost it looks again after this at the latest, ms. */
const LONGEST_PAUSE_MS = 2_000;
/** How often an activation is tried against a fence that is ahead. The model needs 1 + expiries + losses of the store. */
const MOST_ACTIVATIONS = 10;

/**
 * The protocol of a lease: wait for the turn, acquire, activate, let the body run, release. It keeps the leases of one
 * application; the fence decides what their writes are worth.
 */
export class LeaseKeeper implements LeaseHost {
  readonly clock: Clock;
  readonly logger: FencingLogger;
  private readonly store: LeaseStore;
  private readonly fence: Fence | undefined;
  /** This keeper as a waiter at the store. */
  private readonly id = randomUUID();
  private readonly lines: WaitLines;
  private readonly renewals: Renewals;
  private readonly held = new Set<HeldLease>();
  private readonly releases = new Set<Promise<unknown>>();
  private readonly pauses = new Set<Pause>();
  private stopping = false;
  private onIdle: (() => void) | undefined;

  constructor(private readonly settings: KeeperOptions) {
    this.clock = settings.clock;
    this.logger = settings.logger;
    this.store = settings.store;
    this.fence = settings.fence;
    this.lines = new WaitLines(this.clock);
    this.renewals = new Renewals(this.store, this.clock);
  }

  /** Leases held by this process now. */
  get heldLeases(): readonly HeldLease[] {
    return [...this.held];
  }

  /**
   * Runs `body` under leases of all `keys`. A key that this call already holds is joined. The leases are released before the
   * result is given; where `stream` finds that the result goes on after the method returned, when that has ended.
   */
  async run<T>(
    keys: readonly string[],
    options: ResolvedLeaseOptions,
    body: (leases: readonly HeldLease[]) => T | PromiseLike<T>,
    extra: {
      signal?: AbortSignal;
      stream?: (result: T, leases: readonly HeldLease[]) => StreamedResult<T> | undefined;
    } = {},
  ): Promise<T | undefined> {
    const outer = currentFrame();
    const joined = new Map<string, HeldLease>();
    for (const lease of outer.leases) {
      if (lease.host === this && !lease.isOver) joined.set(lease.key, lease);
    }
    for (const key of keys) joined.get(key)?.assertHeld();
    const taken = await this.takeAll(
      keys.filter((key) => !joined.has(key)),
      options,
      extra.signal,
    );
    if (!taken) return undefined;

    const byKey = new Map([...joined, ...taken.map((lease) => [lease.key, lease] as const)]);
    const leases = keys.map((key) => byKey.get(key)!);
    // Innermost last, and of several keys the first one: it is what `current()` means.
    const around = outer.leases.filter((lease) => !lease.isOver && !leases.includes(lease));
    const frame = { ...outer, leases: [...around, ...new Set([...leases].reverse())] };
    let result: T;
    try {
      result = await runInFrame(frame, () => body(leases));
    } catch (error) {
      throw this.finishAll(taken, { bodyError: error }) ?? error;
    }
    const streamed = taken.length > 0 ? runInFrame(frame, () => extra.stream?.(result, taken)) : undefined;
    if (streamed) {
      void streamed.ended.then(() => this.finishAll(taken, {}));
      return streamed.result;
    }
    const lost = this.finishAll(taken, { result });
    if (lost) throw lost;
    return result;
  }

  /** Takes one lease that the caller ends with `finish`. */
  async take(
    key: string,
    options: ResolvedLeaseOptions,
    until = this.clock.now() + options.waitMs,
    signal?: AbortSignal,
  ): Promise<HeldLease> {
    // Work that is being drained may still take the leases that it needs to end.
    const draining = currentFrame().leases.some((lease) => !lease.ended());
    if (this.stopping && !draining) throw shuttingDown(key);
    if (this.fence?.inTransaction()) throw new LeaseOrderError(key);
    const call: Call = {
      key,
      owner: randomUUID(),
      options,
      startedAt: this.clock.now(),
      until,
      signal,
      draining,
    };
    if (signal?.aborted) throw new WaitAbortedError(key, signal.reason);
    let turn: Turn = { sentAt: call.startedAt };
    if (!this.lines.enter(key)) {
      if (options.waitMs === 0) throw new LeaseBusyError(key, 0, this.lines.freeInMs(key));
      turn = await this.lines.wait({ ...call, ttlMs: options.ttlMs });
    }
    return this.takeAsHead(call, turn);
  }

  /** Ends a lease: releases it, and lets the next in line have its turn. */
  finish(lease: HeldLease): void {
    lease.finish();
  }

  /** Asks the store whether the lease is still held. Resolves once it is known, or rejects with `LeaseUncertainError`. */
  async confirm(lease: HeldLease): Promise<void> {
    const bound = Math.min(lease.remainingMs(), this.settings.storeTimeoutMs);
    await within(
      this.clock,
      bound,
      this.renewals.confirmNow(lease),
      () => new LeaseUncertainError(lease.key, lease.generation),
    ).catch((error: unknown) => {
      if (!lease.ended()) throw error;
    });
    lease.assertHeld();
    if (lease.state === 'uncertain') throw new LeaseUncertainError(lease.key, lease.generation);
  }

  /**
   * Raises the fence to a lease whose method left that to its first write. A fence that is ahead makes the write stale, since
   * what the method read is old; the store's counter is raised above it, so that the next grant is not.
   * @returns the fence's generation where it is ahead
   */
  async activateForWrite(lease: HeldLease): Promise<number | undefined> {
    const answer = await this.askFence(lease, this.settings.storeTimeoutMs);
    if (answer.activated) return undefined;
    await this.askStore(this.store.acquire({ ...this.claim(lease), floor: answer.generation })).catch(
      () => undefined,
    );
    return answer.generation;
  }

  /**
   * Takes no new leases, waits up to `drainMs` for the running ones, then ends the rest with `LeaseLostError` ('drained').
   * Resolves when all releases were answered, or after one more store timeout.
   * @returns how many were cut off
   */
  async stop(drainMs: number): Promise<number> {
    this.stopping = true;
    this.lines.rejectAll((waiter) => (waiter.draining ? undefined : shuttingDown(waiter.key)));
    for (const pause of this.pauses) pause.wake();
    const idle = new Promise<void>((resolve) => (this.onIdle = resolve));
    if (this.held.size > 0) {
      await within(this.clock, drainMs, idle, () => new Error('drained')).catch(() => undefined);
    }
    const cut = this.heldLeases;
    for (const lease of cut) lease.lose('drained');
    const answered = Promise.allSettled([...this.releases]);
    await within(this.clock, this.settings.storeTimeoutMs, answered, () => new Error('unanswered')).catch(
      () => undefined,
    );
    this.renewals.close();
    return cut.length;
  }

  /** A lease has ended: lost, or finished by its call. */
  leaseEnded(lease: HeldLease): void {
    this.renewals.remove(lease);
    if (!this.held.delete(lease)) return;
    // A lease that was never started is still in the hands of `takeAsHead`, which keeps its place in the line.
    if (lease.started) this.leave(lease);
    else this.release({ key: lease.key, owner: lease.owner }, lease.options.ttlMs).catch(() => undefined);
    if (this.held.size === 0) this.onIdle?.();
  }

  // ---------------------------------------------------------------------------------------------------------- taking

  /** All or none, in sorted order; `undefined` where the method is to be skipped. */
  private async takeAll(
    keys: readonly string[],
    options: ResolvedLeaseOptions,
    signal?: AbortSignal,
  ): Promise<HeldLease[] | undefined> {
    const sorted = keys.length > 1 ? [...new Set(keys)].sort() : keys;
    const until = this.clock.now() + options.waitMs;
    for (;;) {
      const taken: HeldLease[] = [];
      try {
        for (const key of sorted) taken.push(await this.take(key, options, until, signal));
        // The wait for the later keys may have used up what was left of the earlier ones.
        if (taken.length < 2 || (await this.allHaveEnoughLeft(taken))) return taken;
        if (this.clock.now() >= until) throw tooLate(sorted[0]!);
      } catch (error) {
        for (const lease of taken) lease.finish();
        if (error instanceof LeaseBusyError && options.onBusy === 'skip') return undefined;
        throw error;
      }
      for (const lease of taken) lease.finish();
    }
  }

  /** The head of a line: gets a grant, activates it, and makes sure that enough of it is left. */
  private async takeAsHead(call: Call, turn: Turn): Promise<HeldLease> {
    for (;;) {
      let lease: HeldLease;
      try {
        lease = turn.grant
          ? this.hold(call, turn.grant.generation, turn.sentAt)
          : await this.acquire(call, turn);
      } catch (error) {
        this.passOn(call.key);
        throw error;
      }
      try {
        this.refuseWhileStopping(call);
        if ((await this.activate(lease, call)) && (await this.hasEnoughLeft(lease))) {
          this.refuseWhileStopping(call);
          lease.started = true;
          return lease;
        }
        if (this.clock.now() >= call.until) throw tooLate(call.key);
        lease.finish();
      } catch (error) {
        if (this.held.has(lease)) {
          lease.started = true;
          lease.finish();
        } else {
          this.passOn(call.key);
        }
        throw error;
      }
      call.owner = randomUUID();
      turn = { sentAt: this.clock.now() };
    }
  }

  /** A grant that was on its way when the application began to stop is given back. */
  private refuseWhileStopping({ key, draining }: Call): void {
    if (this.stopping && !draining) throw shuttingDown(key);
  }

  private hold(call: Call, generation: number, sentAt: number): HeldLease {
    const lease = new HeldLease(call.key, call.owner, generation, sentAt, call.options, this);
    this.held.add(lease);
    this.renewals.add(lease);
    this.lines.expectFreeAt(call.key, lease.validUntil);
    return lease;
  }

  private async acquire(call: Call, { waitMs, sentAt: since }: Turn): Promise<HeldLease> {
    const { key, options, until, signal } = call;
    const pause = new Pause(this.clock, this.id);
    let watch = waitMs === undefined ? undefined : this.store.watch(key, pause.hear, since);
    let registered = waitMs !== undefined;
    this.pauses.add(pause);
    try {
      if (waitMs !== undefined) await this.waitForHint(call, pause, waitMs);
      for (let failures = 0; ;) {
        const sentAt = this.clock.now();
        const waiter = sentAt < until ? { id: this.id, forMs: until - sentAt } : undefined;
        let asked: Promise<AcquireAnswer> | undefined;
        let answer: AcquireAnswer;
        try {
          if (signal?.aborted) throw new WaitAbortedError(key, signal.reason);
          this.refuseWhileStopping(call);
          pause.reset();
          asked = this.store.acquire({ ...this.claim(call), floor: 0, waiter });
          answer = await unlessAborted(
            this.askStore(asked, until),
            signal,
            () => new WaitAbortedError(key, signal?.reason),
          );
        } catch (error) {
          // The store may have noted the waiter all the same.
          registered ||= asked !== undefined && waiter !== undefined;
          const pauseMs = backoff(failures++);
          const again =
            error instanceof StoreUnavailableError && error.retryable && this.clock.now() + pauseMs < until;
          if (again) {
            await sleep(this.clock, pauseMs, signal);
            continue;
          }
          // Whether it was granted is unknown, or not yet: if it was, the key must not stay taken.
          const giveBack = () =>
            this.release({ key, owner: call.owner }, options.ttlMs).catch(() => undefined);
          if (asked) void giveBack();
          void asked?.then(({ granted }) => (granted ? giveBack() : undefined)).catch(() => undefined);
          throw error;
        }
        if (answer.granted) {
          registered = false;
          if (signal?.aborted) {
            this.release({ key, owner: call.owner }, options.ttlMs).catch(() => undefined);
            throw new WaitAbortedError(key, signal.reason);
          }
          return this.hold(call, answer.generation, sentAt);
        }
        registered ||= waiter !== undefined;
        this.lines.expectFreeAt(key, this.clock.now() + answer.remainingMs);
        if (this.clock.now() >= until)
          throw new LeaseBusyError(key, this.clock.now() - call.startedAt, answer.remainingMs);
        if (!watch) {
          watch = this.store.watch(key, pause.hear, sentAt);
          // Hints sent before the watch was live are gone, so the key is tried once more after that.
          watch.live?.then(pause.wake, () => undefined);
        }
        await this.waitForHint(call, pause, answer.remainingMs);
      }
    } finally {
      this.pauses.delete(pause);
      watch?.stop();
      if (registered) this.withdraw(key);
    }
  }

  private waitForHint(call: Call, pause: Pause, remainingMs: number): Promise<void> {
    const left = call.until - this.clock.now();
    return pause.wait(Math.min(left, jitter(Math.min(remainingMs + 1, LONGEST_PAUSE_MS))), call.signal);
  }

  /** `false`: the grant went to somebody else meanwhile. */
  private async activate(lease: HeldLease, call: Call): Promise<boolean> {
    if (!this.fence || call.options.activate !== 'start') return true;
    for (let tries = 0; tries < MOST_ACTIVATIONS; tries++) {
      const waitMs = Math.max(call.until - this.clock.now(), this.settings.storeTimeoutMs);
      const answer = await unlessAborted(
        this.askFence(lease, waitMs),
        call.signal,
        () => new WaitAbortedError(call.key, call.signal?.reason),
      );
      if (answer.activated) return true;
      // The store lost its counter, or was replaced: it starts again above what the database has seen.
      const sentAt = this.clock.now();
      const again = await this.askStore(
        this.store.acquire({ ...this.claim(lease), floor: answer.generation }),
      );
      if (!again.granted) return false;
      lease.regrant(again.generation, sentAt);
    }
    throw new StoreUnavailableError(
      'lease store',
      `the fence was ahead of ${MOST_ACTIVATIONS} generations in a row.`,
      { key: call.key },
    );
  }

  private async askFence(lease: HeldLease, waitMs: number) {
    const { key, owner, generation } = lease;
    const answer = await within(
      this.clock,
      waitMs + this.settings.storeTimeoutMs,
      this.fence!.activate({ key, owner, generation, waitMs }),
      () =>
        new StoreUnavailableError(
          'database',
          'no answer to the activation of a grant (is the connection pool exhausted?).',
          { key },
        ),
    );
    if (answer.activated) lease.activated = true;
    return answer;
  }

  /** A body must not start on the last breath of a grant: it is renewed first, or given back. */
  private async hasEnoughLeft(lease: HeldLease): Promise<boolean> {
    const enough = lease.options.ttlMs / 2;
    if (lease.remainingMs() < enough && !lease.ended()) await this.confirm(lease).catch(() => undefined);
    return lease.remainingMs() >= enough;
  }

  private async allHaveEnoughLeft(leases: readonly HeldLease[]): Promise<boolean> {
    for (const lease of leases) await this.hasEnoughLeft(lease);
    return leases.every((lease) => lease.remainingMs() >= lease.options.ttlMs / 2);
  }

  private claim(of: { key: string; owner: string; options: ResolvedLeaseOptions }) {
    return { key: of.key, owner: of.owner, ttlMs: of.options.ttlMs };
  }

  private askStore<T>(work: Promise<T>, until = 0): Promise<T> {
    const { storeTimeoutMs } = this.settings;
    const left = until - this.clock.now();
    const bound = left > 0 ? Math.max(100, Math.min(left, storeTimeoutMs)) : storeTimeoutMs;
    return within(
      this.clock,
      bound,
      work,
      () => new StoreUnavailableError('lease store', `no answer within ${Math.round(bound)} ms.`),
    );
  }

  // --------------------------------------------------------------------------------------------------------- leaving

  /** Ends leases of one call. Answers what the call must reject with, where one of them had been lost. */
  private finishAll(
    leases: readonly HeldLease[],
    outcome: { result?: unknown; bodyError?: unknown },
  ): FencingError | undefined {
    let lost: FencingError | undefined;
    for (const lease of leases) {
      const reason = lease.ended();
      lost ??= reason && this.rejection(lease, reason, outcome);
      lease.finish();
    }
    return lost;
  }

  private rejection(
    lease: HeldLease,
    reason: FencingError,
    outcome: { result?: unknown; bodyError?: unknown },
  ): FencingError {
    const { bodyError } = outcome;
    // The body let the refusal through: it says it all.
    if (bodyError === reason) return reason;
    if (bodyError instanceof FencingError && bodyError.key === lease.key && bodyError.code === reason.code)
      return bodyError;
    if (reason instanceof LeaseUncertainError)
      return new LeaseUncertainError(lease.key, lease.generation, bodyError ?? reason.cause);
    const why = reason instanceof LeaseLostError ? reason.reason : 'superseded';
    return new LeaseLostError(lease.key, lease.generation, why, lease.acceptedWrites, outcome);
  }

  private leave(lease: HeldLease): void {
    const { key, owner, options } = lease;
    const now = this.clock.now();
    const holdMs =
      lease.state === 'released' ? Math.ceil(options.holdAtLeastMs - (now - lease.grantedAt)) : 0;
    const next = this.lines.next(key);
    if (!next && holdMs <= 0) {
      this.release({ key, owner }, options.ttlMs).catch(() => undefined);
      return;
    }
    const successor =
      next && holdMs <= 0
        ? { owner: next.owner, ttlMs: next.ttlMs, waiterId: this.id, forMs: Math.max(0, next.until - now) }
        : undefined;
    const answer = this.release(
      { key, owner, holdMs: holdMs > 0 ? holdMs : undefined, successor },
      Math.max(options.ttlMs, holdMs),
    );
    if (next) {
      void answer.then(
        ({ successor }) => this.giveTurn(next, now, successor),
        () => this.giveTurn(next, now, 'unknown'),
      );
    } else {
      answer.catch(() => undefined);
    }
  }

  private giveTurn(waiter: Waiter, sentAt: number, answer: ReleaseAnswer['successor'] | 'unknown'): void {
    const known = answer === 'unknown' ? undefined : answer;
    const grant = known && 'generation' in known ? known : undefined;
    const waitMs = known && 'waitMs' in known ? known.waitMs : undefined;
    if (waiter.give({ sentAt, grant, waitMs })) return;
    // It gave up while the answer was under way: what was granted to it, or may have been, goes back, and the next has its turn.
    if (grant || answer === 'unknown') {
      this.release({ key: waiter.key, owner: waiter.owner }, waiter.ttlMs).catch(() => undefined);
    }
    this.passOn(waiter.key, { sentAt, waitMs });
  }

  /** The head of a line gives up without a grant. */
  private passOn(key: string, turn: Turn = { sentAt: this.clock.now() }): void {
    for (let next; (next = this.lines.next(key));) if (next.give(turn)) return;
    // Nobody is left to use the place that the store keeps for this process.
    if (turn.waitMs !== undefined) this.withdraw(key);
  }

  private withdraw(key: string): void {
    this.store.withdraw(key, this.id).catch(() => undefined);
  }

  /**
   * Sends a release. Answers as the store does; where the answer is lost it is sent again in the background until the ttl has
   * freed the key anyway, and the promise rejects after the first try so that nobody waits for that.
   */
  private release(request: ReleaseRequest, ttlMs: number): Promise<ReleaseAnswer> {
    const first = this.askStore(this.store.release(request));
    const settled = first.then(
      () => undefined,
      () =>
        this.releaseAgain(
          { key: request.key, owner: request.owner, holdMs: request.holdMs },
          this.clock.now() + ttlMs,
        ),
    );
    this.releases.add(settled);
    void settled.finally(() => this.releases.delete(settled));
    return first;
  }

  private async releaseAgain(request: ReleaseRequest, until: number): Promise<void> {
    for (let attempt = 0; this.clock.now() < until && !(this.stopping && attempt > 3); attempt++) {
      await sleep(this.clock, backoff(attempt));
      const answered = await this.askStore(this.store.release(request)).then(
        () => true,
        () => false,
      );
      if (answered) return;
    }
    this.logger.warn(
      'A lease could not be released at the lease store; its key is free when its ttl is over.',
    );
  }
}

function shuttingDown(key: string): StoreUnavailableError {
  return new StoreUnavailableError(
    'lease store',
    'the application is shutting down and takes no new leases.',
    { key, retryable: false },
  );
}

function tooLate(key: string): StoreUnavailableError {
  return new StoreUnavailableError(
    'lease store',
    'grants arrive too late to be used; ttlMs is too short for its answers.',
    { key },
  );
}

/** The pause of the head of a line between two tries, shortened or lengthened by hints. */
class Pause {
  private wakeAt = Infinity;
  private woken = false;
  private rearm: (() => void) | undefined;

  constructor(
    private readonly clock: Clock,
    private readonly waiterId: string,
  ) {}

  /** A try begins: hints from now on count. */
  reset(): void {
    this.woken = false;
  }

  /** Ends the pause now. */
  readonly wake = (): void => {
    this.woken = true;
    this.rearm?.();
  };

  readonly hear = ({ waiterId, reservedMs }: WakeHint): void => {
    const mine = waiterId === undefined || waiterId === this.waiterId;
    this.woken ||= mine;
    // Kept for another process: look again when that is over, in case it does not come.
    if (!mine) this.wakeAt = this.clock.now() + jitter(reservedMs + 1);
    this.rearm?.();
  };

  wait(ms: number, signal?: AbortSignal): Promise<void> {
    if (this.woken) return Promise.resolve();
    const end = this.clock.now() + ms;
    this.wakeAt = end;
    return new Promise((resolve) => {
      let cancel: () => void = () => undefined;
      const done = (): void => {
        cancel();
        this.rearm = undefined;
        signal?.removeEventListener('abort', done);
        resolve();
      };
      const arm = (): void => {
        cancel();
        const now = this.clock.now();
        if (this.woken || now >= Math.min(this.wakeAt, end)) return done();
        cancel = this.clock.setTimer(Math.min(this.wakeAt, end) - now, arm);
      };
      this.rearm = arm;
      signal?.addEventListener('abort', done, { once: true });
      arm();
    });
  }
}
