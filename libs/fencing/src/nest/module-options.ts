import type { Clock } from '../core/clock.js';
import { FencingConfigError } from '../core/errors.js';
import type { Fence } from '../core/fence.js';
import type { LeaseStore } from '../core/lease-store.js';
import {
  checkChoice,
  checkFunction,
  checkInstanceName,
  checkMs,
  checkNames,
  type ResolvedLeaseOptions,
  resolveLeaseOptions,
  show,
} from '../core/options.js';
import type { FenceSource, LeaseStoreSource } from '../core/sources.js';
import type { FencingModuleExtras, FencingModuleOptions } from './fencing.module-definition.js';

const OPTIONS = [
  'leases',
  'fence',
  'defaults',
  'storeTimeoutMs',
  'drainMs',
  'httpErrors',
  'strict',
  'logKeys',
  'audit',
  'clock',
];
const EXTRAS = ['isGlobal', 'name'];
/** The names of all options of `forRoot()`. */
export const MODULE_OPTION_NAMES: readonly string[] = [...OPTIONS, ...EXTRAS];
const FACTORIES = ['useFactory', 'useClass', 'useExisting'] as const;
const ASYNC = ['imports', 'inject', 'provideInjectionTokensFrom', ...FACTORIES];

/**
 * What `forRoot()` is given, as far as it decides about the module itself; the rest is checked when the application boots.
 * @throws FencingConfigError naming the option
 */
export function checkSyncOptions(options: FencingModuleExtras): void {
  checkNames('FencingModule.forRoot', options, MODULE_OPTION_NAMES);
  checkExtras('FencingModule.forRoot', options);
}

/** What `forRootAsync()` is given. @throws FencingConfigError naming the option */
export function checkAsyncOptions(
  options: FencingModuleExtras & { [name in (typeof FACTORIES)[number]]?: unknown },
): void {
  const where = 'FencingModule.forRootAsync';
  checkNames(where, options, [...ASYNC, ...EXTRAS]);
  checkExtras(where, options);
  const given = FACTORIES.filter((name) => options[name] !== undefined);
  if (given.length !== 1) throw new FencingConfigError(`${where}: give it one of ${FACTORIES.join(', ')}.`);
  if (given[0] !== 'useExisting') checkFunction(where, given[0]!, options[given[0]!]);
}

/**
 * The options of the module, wherever they came from.
 * @returns the lease options that hold for all methods
 * @throws FencingConfigError naming the option
 */
export function checkModuleOptions(options: FencingModuleOptions): ResolvedLeaseOptions {
  const where = 'FencingModule';
  checkNames(where, options, OPTIONS);
  const { leases, fence, defaults, storeTimeoutMs, drainMs, httpErrors, strict, logKeys, audit, clock } =
    options;
  if (leases === undefined || leases === null) {
    throw new FencingConfigError(
      'FencingModule: leases is missing. Give it redisLeases(redis) or memoryLeases().',
    );
  }
  if (fence !== undefined && !isFence(fence) && !isFenceSource(fence)) {
    throw new FencingConfigError(
      `FencingModule: fence must be typeOrmFence(…) or a Fence, got ${show(fence)}.`,
    );
  }
  if (storeTimeoutMs !== undefined) checkMs(where, 'storeTimeoutMs', storeTimeoutMs, 10);
  if (drainMs !== undefined) checkMs(where, 'drainMs', drainMs, 0);
  if (httpErrors !== undefined) checkChoice(where, 'httpErrors', httpErrors, [true, false]);
  if (strict !== undefined) checkChoice(where, 'strict', strict, [true, false]);
  if (logKeys !== undefined) checkChoice(where, 'logKeys', logKeys, [true, false]);
  if (audit !== undefined) checkChoice(where, 'audit', audit, [true, false]);
  if (clock !== undefined && !isClock(clock)) {
    throw new FencingConfigError(`FencingModule: clock must be a Clock (now, setTimer), got ${show(clock)}.`);
  }
  return resolveLeaseOptions(`${where} defaults`, defaults);
}

function isClock(value: unknown): boolean {
  const { now, setTimer } = (value ?? {}) as Partial<Clock>;
  return typeof now === 'function' && typeof setTimer === 'function';
}

export function isLeaseStoreSource(value: unknown): value is LeaseStoreSource {
  return typeof (value as Partial<LeaseStoreSource> | null)?.createStore === 'function';
}

/** @throws FencingConfigError unless `store` is a lease store */
export function checkLeaseStore(store: unknown): asserts store is LeaseStore {
  if (typeof (store as Partial<LeaseStore> | null | undefined)?.acquire === 'function') return;
  throw new FencingConfigError(
    `FencingModule: leases must be a LeaseStore, such as redisLeases(redis) or memoryLeases(), got ${show(store)}.`,
  );
}

// By its face, not by its class: what is given may come from the other copy (ESM or CommonJS) of the package.
export function isFence(value: unknown): value is Fence {
  return typeof (value as Partial<Fence> | null)?.activate === 'function';
}

function isFenceSource(value: unknown): value is FenceSource {
  return typeof (value as Partial<FenceSource> | null)?.create === 'function';
}

function checkExtras(where: string, { name, isGlobal }: FencingModuleExtras): void {
  checkInstanceName(where, name);
  if (isGlobal !== undefined) checkChoice(where, 'isGlobal', isGlobal, [true, false]);
}
