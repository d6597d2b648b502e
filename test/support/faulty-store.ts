import { StoreUnavailableError } from '../../libs/fencing/src/core/errors.js';
import type { FencingEmitter } from '../../libs/fencing/src/core/events.js';
import type {
  AcquireRequest,
  ReleaseRequest,
  RenewRequest,
} from '../../libs/fencing/src/core/lease-store.js';
import { Fence, type ActivationAnswer, type ActivationRequest } from '../../libs/fencing/src/core/fence.js';
import { LeaseKeeper } from '../../libs/fencing/src/core/lease-keeper.js';
import type { FencingLogger } from '../../libs/fencing/src/core/logger.js';
import { type LeaseOptions, resolveLeaseOptions } from '../../libs/fencing/src/core/options.js';
import { ManualClock } from '../../libs/fencing/src/testing/manual-clock.js';
import { MemoryLeaseStore } from '../../libs/fencing/src/testing/memory-lease-store.js';
import { type Gate } from './gate.js';

type Method = 'acquire' | 'renew' | 'release' | 'withdraw';

/**
 * What happens to a request. `fail`: not done, and an error. `hang`: not done, and never answered. `lose`: done, and never
 * answered. `slow`: done at once, answered when the gate opens. `late`: done and answered when the gate opens.
 */
export type Fault = 'fail' | 'hang' | 'lose' | { slow: Gate } | { late: Gate };

/** What was sent, of whichever kind it was. */
export type SentRequest = AcquireRequest & ReleaseRequest & readonly RenewRequest[];

/** A memory store behind a bad network: deterministic, with every request on record. */
export class FaultyStore extends MemoryLeaseStore {
  readonly sent: { method: Method; request: SentRequest }[] = [];
  /** Whether hints are heard; where not, a watch never gets live. */
  isDeaf = false;
  private readonly once = new Map<Method, Fault[]>();
  private readonly always = new Map<Method, Fault>();

  /** The next request of this kind meets `fault`; several wait their turn. */
  next(method: Method, fault: Fault): void {
    this.once.set(method, [...(this.once.get(method) ?? []), fault]);
  }

  /** All requests of these kinds meet `fault`, until `heal()`. */
  break(fault: Fault, ...methods: Method[]): void {
    for (const method of methods) this.always.set(method, fault);
  }

  heal(): void {
    this.always.clear();
  }

  /** Nothing is answered any more. */
  freeze(): void {
    this.break('hang', 'acquire', 'renew', 'release', 'withdraw');
  }

  count(method: Method): number {
    return this.sent.filter((one) => one.method === method).length;
  }

  override acquire(request: Parameters<MemoryLeaseStore['acquire']>[0]) {
    return this.pass('acquire', request, () => super.acquire(request));
  }

  override renew(request: Parameters<MemoryLeaseStore['renew']>[0]) {
    return this.pass('renew', request, () => super.renew(request));
  }

  override release(request: Parameters<MemoryLeaseStore['release']>[0]) {
    return this.pass('release', request, () => super.release(request));
  }

  override withdraw(key: string, waiterId: string) {
    return this.pass('withdraw', { key, waiterId }, () => super.withdraw(key, waiterId));
  }

  override watch(key: string, listener: Parameters<MemoryLeaseStore['watch']>[1]) {
    return this.isDeaf ? { live: never<void>(), stop: () => undefined } : super.watch(key, listener);
  }

  private async pass<T>(method: Method, request: unknown, act: () => Promise<T>): Promise<T> {
    this.sent.push({ method, request: request as SentRequest });
    const fault = this.once.get(method)?.shift() ?? this.always.get(method);
    if (fault === 'fail') throw new StoreUnavailableError('lease store', 'broken by the test.');
    if (fault === 'hang') return never();
    if (fault && typeof fault === 'object' && 'late' in fault) await fault.late.wait();
    const answer = await act();
    if (fault === 'lose') return never();
    if (fault && typeof fault === 'object' && 'slow' in fault) await fault.slow.wait();
    return answer;
  }
}

function never<T>(): Promise<T> {
  return new Promise(() => undefined);
}

/** The fence's row in memory: what a keeper needs of a fence. Writes are tested against the real one. */
export class MemoryFence extends Fence {
  readonly rows = new Map<string, { generation: number; owner: string }>();
  readonly activations: ActivationRequest[] = [];
  /** Runs before each activation; may throw, wait, or change the world. */
  before: (request: ActivationRequest) => void | Promise<void> = () => undefined;
  isInTransaction = false;

  async check(): Promise<void> {}

  async activate(request: ActivationRequest): Promise<ActivationAnswer> {
    this.activations.push(request);
    await this.before(request);
    const { key, generation, owner } = request;
    const row = this.rows.get(key);
    if (!row || row.generation < generation) this.rows.set(key, { generation, owner });
    else if (row.generation !== generation || row.owner !== owner)
      return { activated: false, generation: row.generation };
    return { activated: true };
  }

  write(): never {
    throw new Error('not here');
  }

  inTransaction(): boolean {
    return this.isInTransaction;
  }

  async inspect() {
    return undefined;
  }

  async receipt() {
    return undefined;
  }

  async pruneReceipts() {
    return 0;
  }

  revoke(): never {
    throw new Error('not here');
  }

  async pruneAudit() {
    return 0;
  }

  async close(): Promise<void> {}
}

export interface Bench {
  readonly clock: ManualClock;
  readonly store: FaultyStore;
  readonly keeper: LeaseKeeper;
  readonly logged: string[];
  /** Lets everything that is settled run on. */
  settle(): Promise<void>;
  /** Another application on the same store and clock. */
  another(): LeaseKeeper;
}

export const STORE_TIMEOUT_MS = 500;

/** A keeper on a manual clock: nothing moves unless the test says so. */
export function keeperBench({
  fence,
  logger,
  events,
}: { fence?: Fence; logger?: FencingLogger; events?: FencingEmitter } = {}): Bench {
  const clock = new ManualClock();
  // The store's wall clock moves with the manual one, so that generations are small and predictable.
  const store = new FaultyStore({ clock, wallClockUs: () => clock.now() * 1_000 });
  const logged: string[] = [];
  const recorder = { warn: (text: string) => logged.push(text), error: (text: string) => logged.push(text) };
  const make = () =>
    new LeaseKeeper({
      store,
      fence,
      clock,
      events,
      logger: logger ?? recorder,
      storeTimeoutMs: STORE_TIMEOUT_MS,
    });
  return { clock, store, keeper: make(), logged, settle: () => clock.advance(0), another: make };
}

/** Options as a method declares them: ttl 3 s, wait 10 s. */
export function leaseOptions(options: LeaseOptions = {}) {
  return resolveLeaseOptions('the test', { ttlMs: 3_000, waitMs: 10_000, ...options });
}

/** An error with the facts of any kind of error. */
export type SeenError = Error & { [fact: string]: unknown };

/** Watches a promise without waiting for it. */
export function observe<T>(promise: Promise<T>) {
  const seen: { state: 'pending' | 'resolved' | 'rejected'; value?: T; error?: SeenError } = {
    state: 'pending',
  };
  promise.then(
    (value) => Object.assign(seen, { state: 'resolved', value }),
    (error: unknown) => Object.assign(seen, { state: 'rejected', error }),
  );
  return seen;
}
