import { Acquirer, type Call, type Granted, shuttingDown } from './acquirer.js';
import { Activation } from './activation.js';
import type { Clock } from './clock.js';
import { currentFrame, runInFrame } from './context.js';
import { type FencingError, LeaseBusyError, LeaseUncertainError, StaleGenerationError } from './errors.js';
import { FencingEmitter } from './events.js';
import type { Fence } from './fence.js';
import { HandOver } from './hand-over.js';
import { HeldLease } from './lease.js';
import type { Grant } from './lease-store.js';
import { LeaseTaker, type TakerHost } from './lease-taker.js';
import type { FencingLogger } from './logger.js';
import type { ResolvedLeaseOptions } from './options.js';
import { type BodyOutcome, rejectionOf } from './rejection.js';
import { Renewals } from './renewals.js';
import { StoreClient, type StoreClientOptions } from './store-client.js';
import { within } from './timing.js';
import { tracing } from './tracing.js';
import { WaitLines } from './wait-lines.js';

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

/**
 * The protocol of a lease: wait for the turn, acquire, activate, let the body run, release. It keeps the leases of one
 * application; the fence decides what their writes are worth.
 */
export class LeaseKeeper implements TakerHost {
  readonly clock: Clock;
  readonly logger: FencingLogger;
  readonly events: FencingEmitter;
  private readonly client: StoreClient;
  private readonly acquirer: Acquirer;
  private readonly lines: WaitLines;
  private readonly renewals: Renewals;
  private readonly activation: Activation;
  private readonly handOver: HandOver;
  private readonly taker: LeaseTaker;
  private readonly held = new Set<HeldLease>();
  /** Leases of other services that calls in this process stand on. */
  private readonly accepted = new Set<HeldLease>();
  private onIdle: (() => void) | undefined;

  constructor(private readonly settings: KeeperOptions) {
    this.clock = settings.clock;
    this.logger = settings.logger;
    this.events = settings.events ?? new FencingEmitter();
    this.client = new StoreClient(settings);
    this.lines = new WaitLines(this.clock);
    this.acquirer = new Acquirer(this.client, this.clock, this.lines, this.events);
    this.renewals = new Renewals(settings.store, this.clock);
    const { fence, storeTimeoutMs } = settings;
    this.activation = new Activation(fence, this.client, this.clock, this.events, storeTimeoutMs);
    this.handOver = new HandOver(this.client, this.clock, this.lines, this.acquirer);
    this.taker = new LeaseTaker(this, this.lines, this.acquirer, this.activation, this.handOver);
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
          ? [await this.taker.take(free[0]!, options, extra.signal)]
          : await this.taker.takeAll(free, options, extra.signal);
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
  take(key: string, options: ResolvedLeaseOptions, signal?: AbortSignal): Promise<HeldLease> {
    return this.taker.take(key, options, signal);
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
   * Activates a lease whose method left that to its first write.
   * @returns the fence's generation where it is ahead: the write is stale
   */
  activateForWrite(lease: HeldLease): Promise<number | undefined> {
    return this.activation.activateForWrite(lease);
  }

  async raise(lease: HeldLease, generation: number): Promise<void> {
    // A lease that has ended must not take its key again.
    if (!this.held.has(lease)) return;
    await this.activation.raise(lease, generation);
  }

  /**
   * A lease of a grant that another service holds and has handed on: from here on the fence of this application refuses older
   * ones. It is neither renewed nor released here, and ends with `finish`, or after the ttl of `options` at the latest.
   * @throws StaleGenerationError where the fence has seen a newer grant
   */
  async accept({ key, owner, generation }: Grant, options: ResolvedLeaseOptions): Promise<HeldLease> {
    this.acquirer.assertMayTake({ key, draining: false });
    const lease = new HeldLease(key, owner, generation, this.clock.now(), options, this);
    const answer = await this.activation.ask(lease, options.waitMs);
    if (!answer.activated) throw new StaleGenerationError(key, generation, answer.generation);
    // The application may have stopped meanwhile, and waits for nobody any more.
    this.acquirer.assertMayTake({ key, draining: false });
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
      // A lease that was never started is still in the hands of the taker, which keeps its place in the line.
      if (lease.started) this.handOver.leave(lease);
      else this.client.release({ key: lease.key, owner: lease.owner }, lease.options.ttlMs);
    } else if (!this.accepted.delete(lease)) {
      return;
    }
    if (this.held.size + this.accepted.size === 0) this.onIdle?.();
  }

  /** Keeps a grant: renews it, until it ends. */
  hold(call: Call, { generation, activated = false, sentAt }: Granted): HeldLease {
    const lease = new HeldLease(call.key, call.owner, generation, sentAt, call.options, this);
    lease.activated = activated;
    this.held.add(lease);
    this.renewals.add(lease);
    this.lines.expectFreeAt(call.key, lease.validUntil);
    return lease;
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

  /** Ends leases of one call. Answers what the call must reject with, where one of them had been lost. */
  private finishAll(leases: readonly HeldLease[], outcome: BodyOutcome): FencingError | undefined {
    let lost: FencingError | undefined;
    for (const lease of leases) {
      const reason = lease.ended();
      lost ??= reason && rejectionOf(lease, reason, outcome);
      lease.finish();
    }
    return lost;
  }
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
