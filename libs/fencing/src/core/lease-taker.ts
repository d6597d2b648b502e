import { randomUUID } from 'node:crypto';
import type { Acquirer, Call, Granted } from './acquirer.js';
import type { Activation } from './activation.js';
import type { Clock } from './clock.js';
import { currentFrame } from './context.js';
import { StoreUnavailableError } from './errors.js';
import type { HandOver } from './hand-over.js';
import type { HeldLease, LeaseHost } from './lease.js';
import type { ResolvedLeaseOptions } from './options.js';
import type { Turn, WaitLines } from './wait-lines.js';

/** Who keeps the leases that are taken. */
export interface TakerHost extends LeaseHost {
  /** Keeps a grant from here on. */
  hold(call: Call, granted: Granted): HeldLease;
}

/** Takes leases: waits for the turn in the line, acquires, activates, and makes sure that enough of the grant is left. */
export class LeaseTaker {
  private readonly clock: Clock;

  constructor(
    private readonly host: TakerHost,
    private readonly lines: WaitLines,
    private readonly acquirer: Acquirer,
    private readonly activation: Activation,
    private readonly handOver: HandOver,
  ) {
    this.clock = host.clock;
  }

  /**
   * Takes one lease. Not `async`, like all that every call goes through: with `AsyncLocalStorage` in use, Node 20 and 22 make
   * each layer of promises dear.
   */
  take(
    key: string,
    options: ResolvedLeaseOptions,
    signal?: AbortSignal,
    until = this.clock.now() + options.waitMs,
  ): Promise<HeldLease> {
    try {
      this.activation.assertOutsideTransaction(key);
      const call: Call = {
        key,
        owner: randomUUID(),
        options,
        startedAt: this.clock.now(),
        until,
        signal,
        // Work that is being drained may still take the leases that it needs to end.
        draining: currentFrame().leases.some((lease) => !lease.ended()),
        activate: this.activation.isDueAtStart(options),
      };
      this.acquirer.assertMayTake(call);
      return this.lines.enter(key) ? this.takeFree(call) : this.takeInLine(call);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** All or none, in sorted order. */
  async takeAll(
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

  private async takeInLine(call: Call): Promise<HeldLease> {
    const { key, options } = call;
    this.acquirer.tellContended(call);
    const busy = () => this.acquirer.busy(call, this.lines.freeInMs(key));
    if (options.waitMs === 0) throw busy();
    return this.takeAsHead(call, await this.lines.wait({ ...call, ttlMs: options.ttlMs }, busy));
  }

  /** Most keys are free, and most grants need nothing more. */
  private takeFree(call: Call): Promise<HeldLease> {
    return new Promise((resolve) =>
      this.acquirer.acquireFree(
        call,
        (granted) => resolve(this.start(call, granted)),
        (acquired) => resolve(this.startOn(call, acquired)),
      ),
    );
  }

  /** The head of a line gets a grant: the one that it was handed, or one of the store's. */
  private takeAsHead(call: Call, turn: Turn): HeldLease | Promise<HeldLease> {
    const { grant, sentAt } = turn;
    return grant
      ? this.start(call, { ...grant, sentAt })
      : this.startOn(call, this.acquirer.acquire(call, turn));
  }

  private async startOn(call: Call, acquired: Promise<Granted>): Promise<HeldLease> {
    let granted: Granted;
    try {
      granted = await acquired;
    } catch (error) {
      this.handOver.passOn(call.key);
      throw error;
    }
    return this.start(call, granted);
  }

  private start(call: Call, granted: Granted): HeldLease | Promise<HeldLease> {
    const lease = this.host.hold(call, granted);
    if (!isActivated(lease, call) || !hasEnoughLeft(lease) || !this.acquirer.mayTake(call))
      return this.prepare(lease, call);
    this.begin(lease, call);
    return lease;
  }

  /** Activates a grant. One of which too little is left then is given back, and asked for anew. */
  private async prepare(lease: HeldLease, call: Call): Promise<HeldLease> {
    try {
      this.acquirer.assertMayTake(call);
      if (
        (isActivated(lease, call) || (await this.activation.activate(lease, call))) &&
        (hasEnoughLeft(lease) || (await renewToStart(lease)))
      ) {
        this.acquirer.assertMayTake(call);
        this.begin(lease, call);
        return lease;
      }
      if (this.clock.now() >= call.until) throw tooLate(call.key);
    } catch (error) {
      // A lease that ended by itself has left its place in the line to this call.
      if (lease.ended()) {
        this.handOver.passOn(call.key);
      } else {
        lease.started = true;
        lease.finish();
      }
      throw error;
    }
    lease.finish();
    call.owner = randomUUID();
    return this.takeAsHead(call, { sentAt: this.clock.now() });
  }

  private begin(lease: HeldLease, call: Call): void {
    lease.started = lease.begun = true;
    const { events } = this.host;
    if (!events.hears('lease.acquired')) return;
    events.emit('lease.acquired', {
      ...lease.facts,
      ttlMs: lease.options.ttlMs,
      waitedMs: this.clock.now() - call.startedAt,
      activated: lease.activated,
    });
  }

  private async allHaveEnoughLeft(leases: readonly HeldLease[]): Promise<boolean> {
    for (const lease of leases) if (!hasEnoughLeft(lease)) await renewToStart(lease);
    return leases.every(hasEnoughLeft);
  }
}

/** A body must not start on the last breath of a grant: it is renewed first. `false`: it is to be given back. */
async function renewToStart(lease: HeldLease): Promise<boolean> {
  if (!lease.ended()) await lease.host.confirm(lease).catch(() => undefined);
  return hasEnoughLeft(lease);
}

function isActivated(lease: HeldLease, call: Call): boolean {
  return !call.activate || lease.activated;
}

function hasEnoughLeft(lease: HeldLease): boolean {
  return lease.remainingMs() >= lease.options.ttlMs / 2;
}

function tooLate(key: string): StoreUnavailableError {
  return new StoreUnavailableError(
    'lease store',
    'grants arrive too late to be used; ttlMs is too short for its answers.',
    { key },
  );
}
