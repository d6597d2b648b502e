import { randomUUID } from 'node:crypto';
import { Acquirer, type Call, type Granted, shuttingDown } from './acquirer.js';
import type { Clock } from './clock.js';
import { currentFrame, runInFrame } from './context.js';
import {
  CommitUnknownError,
  FencingError,
  LeaseBusyError,
  LeaseLostError,
  LeaseOrderError,
  LeaseUncertainError,
  StaleGenerationError,
  StoreUnavailableError,
  WaitAbortedError,
} from './errors.js';
import { FencingEmitter, tellUnavailable } from './events.js';
import type { Fence } from './fence.js';
import { HeldLease, type LeaseHost } from './lease.js';
import type { Grant, LeaseStore, ReleaseAnswer } from './lease-store.js';
import type { FencingLogger } from './logger.js';
import type { ResolvedLeaseOptions } from './options.js';
import { Renewals } from './renewals.js';
import { StoreClient, type StoreClientOptions } from './store-client.js';
import { unlessAborted, within } from './timing.js';
import { tracing } from './tracing.js';
import { type Turn, type Waiter, WaitLines } from './wait-lines.js';

export interface KeeperOptions extends StoreClientOptions {
  readonly fence?: Fence;
  readonly events?: FencingEmitter;
}

/** A result that goes on after the method that gave it has returned. */
export interface StreamedResult<T> {
  readonly result: T;
  /** Resolves when it is over, however it ended. */
  readonly ended: Promise<void>;
}

interface RunExtra<T> {
  readonly signal?: AbortSignal;
  readonly stream?: (result: T, leases: readonly HeldLease[]) => StreamedResult<T> | undefined;
}

/** How often an activation is tried against a fence that is ahead. The model needs 1 + expiries + losses of the store. */
const MOST_ACTIVATIONS = 10;

/**
 * The protocol of a lease: wait for the turn, acquire, activate, let the body run, release. It keeps the leases of one
 * application; the fence decides what their writes are worth.
 */
export class LeaseKeeper implements LeaseHost {
  readonly clock: Clock;
  readonly logger: FencingLogger;
  readonly events: FencingEmitter;
  private readonly store: LeaseStore;
  private readonly fence: Fence | undefined;
  private readonly client: StoreClient;
  private readonly acquirer: Acquirer;
  private readonly lines: WaitLines;
  private readonly renewals: Renewals;
  private readonly held = new Set<HeldLease>();
  /** Leases of other services that calls in this process stand on. */
  private readonly accepted = new Set<HeldLease>();
  private onIdle: (() => void) | undefined;

  constructor(private readonly settings: KeeperOptions) {
    this.clock = settings.clock;
    this.logger = settings.logger;
    this.store = settings.store;
    this.fence = settings.fence;
    this.events = settings.events ?? new FencingEmitter();
    this.client = new StoreClient(settings);
    this.lines = new WaitLines(this.clock);
    this.acquirer = new Acquirer(this.client, this.clock, this.lines, this.events);
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
  run<T>(
    keys: readonly string[],
    options: ResolvedLeaseOptions,
    body: (leases: readonly HeldLease[]) => T | PromiseLike<T>,
    extra: RunExtra<T> = {},
  ): Promise<T | undefined> {
    const { tracer } = tracing;
    if (!tracer) return this.runNow(keys, options, body, extra);
    return tracer.leased(this.events.instance, keys, (onLeased) => {
      const told = (leases: readonly HeldLease[]) => {
        onLeased(leases);
        return body(leases);
      };
      return this.runNow(keys, options, told, extra);
    });
  }

  private async runNow<T>(
    keys: readonly string[],
    options: ResolvedLeaseOptions,
    body: (leases: readonly HeldLease[]) => T | PromiseLike<T>,
    extra: RunExtra<T>,
  ): Promise<T | undefined> {
    const outer = currentFrame();
    const joined = outer.leases.filter(
      (lease) => lease.host === this && !lease.isOver && keys.includes(lease.key),
    );
    for (const lease of joined) lease.assertHeld();
    const free = joined.length > 0 ? keys.filter((key) => !joined.some((lease) => lease.key === key)) : keys;
    let taken: HeldLease[];
    try {
      taken =
        free.length === 1
          ? [await this.take(free[0]!, options, extra.signal)]
          : await this.takeAll(free, options, extra.signal);
    } catch (error) {
      if (error instanceof LeaseBusyError && options.onBusy === 'skip') return undefined;
      throw error;
    }

    const all = joined.length > 0 ? [...joined, ...taken] : taken;
    const leases = keys.length === 1 ? all : keys.map((key) => all.find((lease) => lease.key === key)!);
    const frame = { ...outer, leases: innermostLast(outer.leases, leases) };
    let result: T;
    try {
      const outcome = runInFrame(frame, () => body(leases));
      result = isPromiseLike(outcome) ? await outcome : outcome;
    } catch (error) {
      throw this.finishAll(taken, { bodyError: error }) ?? error;
    }
    const streamed =
      extra.stream && taken.length > 0 ? runInFrame(frame, () => extra.stream!(result, taken)) : undefined;
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
    signal?: AbortSignal,
    until = this.clock.now() + options.waitMs,
  ): Promise<HeldLease> {
    // Work that is being drained may still take the leases that it needs to end.
    const draining = currentFrame().leases.some((lease) => !lease.ended());
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
    this.acquirer.assertMayTake(call);
    let turn: Turn = { sentAt: call.startedAt };
    if (!this.lines.enter(key)) {
      this.acquirer.tellContended(call);
      if (options.waitMs === 0) throw this.acquirer.busy(call, this.lines.freeInMs(key));
      turn = await this.lines.wait({ ...call, ttlMs: options.ttlMs }, () =>
        this.acquirer.busy(call, this.lines.freeInMs(key)),
      );
    }
    for (;;) {
      const lease = await this.takeAsHead(call, turn);
      if (lease) return lease;
      call.owner = randomUUID();
      turn = { sentAt: this.clock.now() };
    }
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
    await this.raise(lease, answer.generation);
    return answer.generation;
  }

  async raise(lease: HeldLease, generation: number): Promise<void> {
    // A lease that has ended must not take its key again.
    if (!this.held.has(lease)) return;
    await this.client
      .ask(this.store.acquire({ ...this.claim(lease), floor: generation }))
      .catch(() => undefined);
  }

  /**
   * A lease of a grant that another service holds and has handed on: from here on the fence of this application refuses older
   * ones. It is neither renewed nor released here, and ends with `finish`, or after the ttl of `options` at the latest.
   * @throws StaleGenerationError where the fence has seen a newer grant
   */
  async accept({ key, owner, generation }: Grant, options: ResolvedLeaseOptions): Promise<HeldLease> {
    this.acquirer.assertMayTake({ key, draining: false });
    const lease = new HeldLease(key, owner, generation, this.clock.now(), options, this);
    const answer = await this.askFence(lease, options.waitMs);
    if (!answer.activated) throw new StaleGenerationError(key, generation, answer.generation);
    lease.assertHeld();
    lease.started = true;
    this.accepted.add(lease);
    // Looking at the clock is what ends it, also for those who only listen.
    lease.onEnd(this.clock.setTimer(lease.remainingMs() + 1, () => lease.ended()));
    return lease;
  }

  /**
   * Takes no new leases, waits up to `drainMs` for the running ones, then ends the rest with `LeaseLostError` ('drained').
   * Resolves when all releases were answered, or after one more store timeout.
   * @returns how many were cut off
   */
  async stop(drainMs: number): Promise<number> {
    this.lines.rejectAll((waiter) => (waiter.draining ? undefined : shuttingDown(waiter.key)));
    this.acquirer.stop();
    const idle = new Promise<void>((resolve) => (this.onIdle = resolve));
    if (this.held.size + this.accepted.size > 0) {
      await within(this.clock, drainMs, idle, () => new Error('drained')).catch(() => undefined);
    }
    const cut = [...this.held, ...this.accepted];
    for (const lease of cut) lease.lose('drained');
    await this.client.stop();
    this.renewals.close();
    return cut.length;
  }

  /** A lease has ended: lost, or finished by its call. */
  leaseEnded(lease: HeldLease): void {
    this.renewals.remove(lease);
    if (lease.begun) this.tellEnd(lease);
    if (this.held.delete(lease)) {
      // A lease that was never started is still in the hands of `takeAsHead`, which keeps its place in the line.
      if (lease.started) this.leave(lease);
      else this.client.release({ key: lease.key, owner: lease.owner }, lease.options.ttlMs);
    } else if (!this.accepted.delete(lease)) {
      return;
    }
    if (this.held.size + this.accepted.size === 0) this.onIdle?.();
  }

  // ---------------------------------------------------------------------------------------------------------- taking

  /** All or none, in sorted order. */
  private async takeAll(
    keys: readonly string[],
    options: ResolvedLeaseOptions,
    signal?: AbortSignal,
  ): Promise<HeldLease[]> {
    const sorted = [...new Set(keys)].sort();
    const until = this.clock.now() + options.waitMs;
    for (;;) {
      const taken: HeldLease[] = [];
      try {
        for (const key of sorted) taken.push(await this.take(key, options, signal, until));
        // The wait for the later keys may have used up what was left of the earlier ones.
        if (taken.length < 2 || (await this.allHaveEnoughLeft(taken))) return taken;
        if (this.clock.now() >= until) throw tooLate(sorted[0]!);
      } catch (error) {
        for (const lease of taken) lease.finish();
        throw error;
      }
      for (const lease of taken) lease.finish();
    }
  }

  /** The head of a line: gets a grant, activates it, and makes sure that enough of it is left; otherwise gives it back. */
  private async takeAsHead(call: Call, { grant, sentAt, waitMs }: Turn): Promise<HeldLease | undefined> {
    let lease: HeldLease;
    try {
      lease = this.hold(
        call,
        grant ? { ...grant, sentAt } : await this.acquirer.acquire(call, { sentAt, waitMs }),
      );
    } catch (error) {
      this.passOn(call.key);
      throw error;
    }
    try {
      this.acquirer.assertMayTake(call);
      if (
        (!this.mustActivate(call) || (await this.activate(lease, call))) &&
        (hasEnoughLeft(lease) || (await this.renewToStart(lease)))
      ) {
        this.acquirer.assertMayTake(call);
        this.start(lease, call);
        return lease;
      }
      if (this.clock.now() >= call.until) throw tooLate(call.key);
      lease.finish();
      return undefined;
    } catch (error) {
      if (this.held.has(lease)) {
        lease.started = true;
        lease.finish();
      } else {
        this.passOn(call.key);
      }
      throw error;
    }
  }

  private hold(call: Call, { generation, sentAt }: Granted): HeldLease {
    const lease = new HeldLease(call.key, call.owner, generation, sentAt, call.options, this);
    this.held.add(lease);
    this.renewals.add(lease);
    this.lines.expectFreeAt(call.key, lease.validUntil);
    return lease;
  }

  private start(lease: HeldLease, call: Call): void {
    lease.started = lease.begun = true;
    if (!this.events.hears('lease.acquired')) return;
    this.events.emit('lease.acquired', {
      ...lease.facts,
      ttlMs: lease.options.ttlMs,
      waitedMs: this.clock.now() - call.startedAt,
      activated: lease.activated,
    });
  }

  private tellEnd(lease: HeldLease): void {
    const reason = lease.loss;
    const name = reason === undefined ? 'lease.released' : 'lease.lost';
    if (!this.events.hears(name)) return;
    const { facts, acceptedWrites, uncertainMs } = lease;
    const told = { ...facts, heldMs: this.clock.now() - lease.grantedAt, acceptedWrites, uncertainMs };
    if (reason === undefined) this.events.emit('lease.released', told);
    else this.events.emit('lease.lost', { ...told, reason });
  }

  private mustActivate({ options }: Call): boolean {
    return this.fence !== undefined && options.activate === 'start';
  }

  /** `false`: the grant went to somebody else meanwhile. */
  private async activate(lease: HeldLease, call: Call): Promise<boolean> {
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
      const again = await this.client.ask(
        this.store.acquire({ ...this.claim(lease), floor: answer.generation }),
      );
      if (!again.granted) return false;
      const behind = answer.generation - lease.generation;
      lease.regrant(again.generation, sentAt);
      if (this.events.hears('store.healed')) this.events.emit('store.healed', { ...lease.facts, behind });
    }
    throw new StoreUnavailableError(
      'lease store',
      `the fence was ahead of ${MOST_ACTIVATIONS} generations in a row.`,
      { key: call.key },
    );
  }

  private async askFence(lease: HeldLease, waitMs: number) {
    const { key, owner, generation } = lease;
    try {
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
    } catch (error) {
      tellUnavailable(this.events, error);
      throw error;
    }
  }

  /** A body must not start on the last breath of a grant: it is renewed first. `false`: it is to be given back. */
  private async renewToStart(lease: HeldLease): Promise<boolean> {
    if (!lease.ended()) await this.confirm(lease).catch(() => undefined);
    return hasEnoughLeft(lease);
  }

  private async allHaveEnoughLeft(leases: readonly HeldLease[]): Promise<boolean> {
    for (const lease of leases) if (!hasEnoughLeft(lease)) await this.renewToStart(lease);
    return leases.every(hasEnoughLeft);
  }

  private claim(of: { key: string; owner: string; options: ResolvedLeaseOptions }) {
    return { key: of.key, owner: of.owner, ttlMs: of.options.ttlMs };
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
    if (bodyError instanceof CommitUnknownError) return bodyError;
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
    const successor =
      next && holdMs <= 0
        ? {
            owner: next.owner,
            ttlMs: next.ttlMs,
            waiterId: this.acquirer.waiterId,
            forMs: Math.max(0, next.until - now),
            mayOvertake: this.lines.mayKeep(key),
          }
        : undefined;
    this.client.release(
      { key, owner, holdMs: holdMs > 0 ? holdMs : undefined, successor },
      Math.max(options.ttlMs, holdMs),
      next && ((answer) => this.giveTurn(next, now, answer)),
    );
  }

  /** `answer` is undefined where the release had none. */
  private giveTurn(waiter: Waiter, sentAt: number, answer: ReleaseAnswer | undefined): void {
    const successor = answer?.successor;
    const grant = successor && 'generation' in successor ? successor : undefined;
    const waitMs = successor && 'waitMs' in successor ? successor.waitMs : undefined;
    if (waiter.give({ sentAt, grant, waitMs })) return;
    // It gave up meanwhile: what was granted to it, or may have been, goes back, and the next has its turn.
    if (grant || !answer) this.client.release({ key: waiter.key, owner: waiter.owner }, waiter.ttlMs);
    this.passOn(waiter.key, { sentAt, waitMs });
  }

  /** The head of a line gives up without a grant. */
  private passOn(key: string, turn: Turn = { sentAt: this.clock.now() }): void {
    for (let next; (next = this.lines.next(key));) if (next.give(turn)) return;
    // Nobody is left to use the place that the store keeps for this process.
    if (turn.waitMs !== undefined) this.client.withdraw(key, this.acquirer.waiterId);
  }
}

function hasEnoughLeft(lease: HeldLease): boolean {
  return lease.remainingMs() >= lease.options.ttlMs / 2;
}

/** Innermost last, and of several keys the first one: it is what `current()` means. */
function innermostLast(outer: readonly HeldLease[], leases: readonly HeldLease[]): readonly HeldLease[] {
  if (outer.length === 0 && leases.length === 1) return leases;
  const around = outer.filter((lease) => !lease.isOver && !leases.includes(lease));
  return [...around, ...new Set([...leases].reverse())];
}

function isPromiseLike<T>(value: T | PromiseLike<T>): value is PromiseLike<T> {
  return typeof (value as PromiseLike<T> | null | undefined)?.then === 'function';
}

function tooLate(key: string): StoreUnavailableError {
  return new StoreUnavailableError(
    'lease store',
    'grants arrive too late to be used; ttlMs is too short for its answers.',
    { key },
  );
}
