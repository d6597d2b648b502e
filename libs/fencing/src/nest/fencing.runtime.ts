import {
  type BeforeApplicationShutdown,
  type OnApplicationShutdown,
  type OnModuleInit,
} from '@nestjs/common';
import type { DiscoveryService, ModuleRef } from '@nestjs/core';
import { AuditTrail } from '../core/audit-trail.js';
import { type Clock, systemClock } from '../core/clock.js';
import { currentFrame } from '../core/context.js';
import { FencingConfigError, StoreUnavailableError } from '../core/errors.js';
import { FencingEmitter } from '../core/events.js';
import type { Fence } from '../core/fence.js';
import { FencedWrites } from '../core/fenced-writes.js';
import { type BuildKey, keysOf } from '../core/key.js';
import { LeaseKeeper } from '../core/lease-keeper.js';
import type { LeaseStore, StoreFinding } from '../core/lease-store.js';
import type { Lease } from '../core/lease.js';
import { OperatorLog } from '../core/operator-log.js';
import { type LeaseOptions, type ResolvedLeaseOptions, resolveLeaseOptions } from '../core/options.js';
import type { FenceSource, LeaseStoreSource } from '../core/sources.js';
import { unanswered } from '../core/store-client.js';
import { within } from '../core/timing.js';
import { type AdoptedMethod, InstanceAdopter } from './adopt-instances.js';
import { type LeasedMethod, reportMistakes, reportSynchronous } from './boot-report.js';
import { containedLogger } from './contained-logger.js';
import type { FencingModuleOptions } from './fencing.module-definition.js';
import { checkLeaseStore, checkModuleOptions, isFence, isLeaseStoreSource } from './module-options.js';
import { streamedResult } from './streamed-result.js';
import { runtimeToken } from './tokens.js';
import { interceptorsMayLease, reportUnleasedEntries } from './unleased-entries.js';

/** What `@Leased` knows of its method. */
export interface LeasedDefinition {
  /** `Class.method`, for messages. */
  readonly where: string;
  readonly keys: readonly BuildKey[];
  readonly options: LeaseOptions;
}

/** Everything that runs, as resolved at boot. */
interface Parts {
  readonly store: LeaseStore;
  readonly fence: Fence | undefined;
  readonly keeper: LeaseKeeper;
  readonly writes: FencedWrites;
  readonly audit: AuditTrail | undefined;
}

/** The runtimes of this process, by name: for instances that Nest did not inject one into. */
const live = ((globalThis as Record<symbol, unknown>)[Symbol.for('nestjs-fencing/runtimes')] ??=
  new Set()) as Set<FencingRuntime>;

/** One instance of the package in one application: what the decorators and `FencingService` call. */
export class FencingRuntime implements OnModuleInit, BeforeApplicationShutdown, OnApplicationShutdown {
  readonly events: FencingEmitter;
  private readonly defaults: ResolvedLeaseOptions;
  private readonly resolved = new WeakMap<object, ResolvedLeaseOptions>();
  private readonly operatorLog: OperatorLog;
  private readonly adopter = new InstanceAdopter(this);
  private parts: Parts | undefined;
  private starting: Promise<Parts> | undefined;

  constructor(
    readonly name: string,
    private readonly options: FencingModuleOptions,
    private readonly moduleRef: ModuleRef,
    private readonly discovery: DiscoveryService,
  ) {
    this.defaults = checkModuleOptions(options);
    this.events = new FencingEmitter(name, containedLogger);
    this.operatorLog = new OperatorLog(this.events, this.clock, containedLogger, options.logKeys ?? false);
  }

  /**
   * The runtime that a decorated method of `instance` runs in: the one that was injected, else the only one there is.
   * @throws FencingConfigError where there is none, or where several applications make it ambiguous
   */
  static of(instance: unknown, property: symbol, name: string, where: string): FencingRuntime {
    const injected = (instance as Record<symbol, FencingRuntime | undefined> | undefined)?.[property];
    if (injected) return injected;
    const candidates = [...live].filter((runtime) => runtime.name === name);
    if (candidates.length === 1) return candidates[0]!;
    throw new FencingConfigError(
      candidates.length === 0
        ? `${where} was called without FencingModule: import FencingModule.forRoot() and let Nest make the instance (and do not call it in a constructor).`
        : `${where} was called on an instance that Nest did not inject, and several applications run in this process: provide the class itself, or use FencingService.`,
    );
  }

  get httpErrors(): boolean {
    return this.options.httpErrors ?? true;
  }

  get hasFence(): boolean {
    return this.options.fence !== undefined;
  }

  /** How a key is named in a log. */
  nameOf(key: string): string {
    return this.operatorLog.name(key);
  }

  async onModuleInit(): Promise<void> {
    live.add(this);
    try {
      this.refuseTwins();
      const methods = this.adopter.adoptAll(this.discovery);
      const { store, fence } = await this.start();
      const ofFence = (await fence?.check()) ?? [];
      const ofStore = await this.checkStore(store, this.leasedMethods(methods));
      const ofEntries = reportUnleasedEntries(methods, interceptorsMayLease(this.discovery));
      this.report([...ofFence.map(sentence), ...ofEntries, ...reportSynchronous(methods), ...ofStore]);
    } catch (error) {
      // Nobody closes an application that did not start.
      await this.onApplicationShutdown().catch(() => undefined);
      throw error;
    }
  }

  /** Makes this the runtime of an instance. @throws FencingConfigError where it would run unprotected */
  adopt(instance: object): void {
    this.adopter.adopt(instance, true);
  }

  async beforeApplicationShutdown(): Promise<void> {
    if (!this.parts) return;
    const cut = await this.parts.keeper.stop(this.options.drainMs ?? 10_000);
    if (cut > 0)
      containedLogger.warn(
        `${cut} leased method${cut === 1 ? ' was' : 's were'} still running after drainMs; aborted, and released.`,
      );
    await this.parts.audit?.stop();
  }

  async onApplicationShutdown(): Promise<void> {
    live.delete(this);
    this.adopter.close();
    this.operatorLog.close();
    // Also of an application that never started: what it was given may have opened a connection.
    const parts = await this.starting?.catch(() => undefined);
    const leases = parts?.store ?? (await Promise.resolve(this.options.leases).catch(() => undefined));
    await (leases as Partial<LeaseStore> | undefined)?.close?.();
    await parts?.fence?.close();
  }

  /** What runs, once it does: a call need not wait for what is there. */
  get running(): Parts | undefined {
    return this.parts;
  }

  /** Runs a method under its leases. Not `async`: most runtimes run, most keys are there at once, and every call pays for promises. */
  leased(
    definition: LeasedDefinition,
    args: unknown[],
    body: (leases: readonly Lease[]) => unknown,
  ): Promise<unknown> {
    const { parts } = this;
    if (!parts) return this.start().then(() => this.leased(definition, args, body));
    const { request } = currentFrame();
    const run = (keys: readonly string[]): Promise<unknown> =>
      parts.keeper.run(
        keys,
        this.optionsOf(definition),
        (leases) => {
          if (leases[0]) request?.granted?.(leases[0]);
          return body(leases);
        },
        { stream: streamedResult },
      );
    const keys = keysOf(definition.keys, args, request);
    return Array.isArray(keys) ? run(keys) : keys.then(run);
  }

  /** The running parts; starts them when a method is called before this module's `onModuleInit`. */
  async start(): Promise<Parts> {
    this.starting ??= this.create().then((parts) => (this.parts = parts));
    return this.starting;
  }

  /** @throws FencingConfigError, also for a name that is not among `allowed` (default: those of a method) */
  resolveOptions(where: string, options: LeaseOptions, allowed?: readonly string[]): ResolvedLeaseOptions {
    return resolveLeaseOptions(where, options, this.defaults, allowed);
  }

  private optionsOf(definition: LeasedDefinition): ResolvedLeaseOptions {
    let options = this.resolved.get(definition);
    if (!options)
      this.resolved.set(definition, (options = this.resolveOptions(definition.where, definition.options)));
    return options;
  }

  /** Two runtimes of one name would not know each other's leases: a leased call inside another would wait for itself. */
  private refuseTwins(): void {
    const twins = this.discovery.getProviders().filter(({ token }) => token === runtimeToken(this.name));
    if (twins.length < 2) return;
    throw new FencingConfigError(
      `FencingModule is imported ${twins.length} times under the name '${this.name}'. Import it once, in the root module; ` +
        'it is global. For a second lease store or database give the second one a name.',
    );
  }

  private get clock(): Clock {
    return this.options.clock ?? systemClock;
  }

  private get storeTimeoutMs(): number {
    return this.options.storeTimeoutMs ?? 2_000;
  }

  /** What is set up in a way that works and is wrong all the same, as sentences. */
  private async checkStore(store: LeaseStore, methods: readonly LeasedMethod[]): Promise<string[]> {
    const { storeTimeoutMs } = this;
    const silent = () => unanswered(store, storeTimeoutMs);
    const answered = <T>(work: Promise<T>) => within(systemClock, storeTimeoutMs, work, silent);
    const found: string[] = [];
    try {
      found.push(...(await answered(store.check())).map(sentence));
      const mistakes = reportMistakes(methods, this.defaults.ttlMs, store, () => systemClock.now());
      found.push(...(await answered(mistakes)));
    } catch (error) {
      // A store that is down now may be up when it is needed; every call says so itself. A wrong set-up stops the boot.
      if (!(error instanceof StoreUnavailableError)) throw error;
      containedLogger.warn(
        `${error.message} The application starts; calls that need a lease fail until it answers.`,
      );
    }
    return found;
  }

  /** @throws FencingConfigError with all of it, where the module is strict */
  private report(mistakes: readonly string[]): void {
    if (this.options.strict && mistakes.length > 0)
      throw new FencingConfigError(
        `FencingModule is strict, and found at boot: ${mistakes.map((mistake) => `\n- ${mistake}`).join('')}`,
      );
    for (const mistake of mistakes) containedLogger.warn(mistake);
  }

  private leasedMethods(methods: readonly AdoptedMethod[]): LeasedMethod[] {
    // Descendants bring the methods of their ancestors again.
    const leases = new Map(methods.map(({ where, lease }) => [lease, where]));
    return [...leases].flatMap(([lease, where]) =>
      lease ? [{ where, lease, ttlMs: this.resolveOptions(where, lease.options).ttlMs }] : [],
    );
  }

  private async create(): Promise<Parts> {
    const leases: LeaseStore | LeaseStoreSource = await this.options.leases;
    const store = isLeaseStoreSource(leases) ? leases.createStore(this.providerOf(leases)) : leases;
    checkLeaseStore(store);
    const fence = this.createFence();
    const keeper = new LeaseKeeper({
      store,
      fence,
      clock: this.clock,
      logger: containedLogger,
      events: this.events,
      storeTimeoutMs: this.storeTimeoutMs,
    });
    const record = (this.options.audit ?? true) ? fence?.record?.bind(fence) : undefined;
    const audit = record && new AuditTrail(record, this.events, this.clock);
    return { store, fence, keeper, writes: new FencedWrites(keeper, fence), audit };
  }

  private createFence(): Fence | undefined {
    const { fence } = this.options;
    if (fence === undefined || isFence(fence)) return fence;
    return fence.create(this.providerOf(fence));
  }

  private providerOf({ token, tokenHelp }: FenceSource | LeaseStoreSource): unknown {
    if (token === undefined) return undefined;
    let found: unknown;
    try {
      found = this.moduleRef.get(token as string, { strict: false });
    } catch (error) {
      throw new FencingConfigError(tokenHelp, error);
    }
    if (found) return found;
    throw new FencingConfigError(
      'A leased method was called while Nest still made its DataSource: call it in onModuleInit or later, not in a factory.',
    );
  }
}

function sentence({ problem, consequence, fix }: StoreFinding): string {
  return `${problem} ${consequence} ${fix}`;
}
