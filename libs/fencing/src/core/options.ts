import { FencingConfigError } from './errors.js';

/** How a method takes its lease. Every option has a default; `defaults` of the module apply to all methods. */
export interface LeaseOptions {
  /**
   * How long a grant is valid without a renewal, ms; a crashed worker's key is free after it. Renewed at a third of it.
   * Whole number, 100 ms to 365 days.
   * @default 30_000
   */
  ttlMs?: number;
  /**
   * How long to wait for a busy key, ms; 0 tries once. Whole number, up to 365 days.
   * @default 5_000
   */
  waitMs?: number;
  /**
   * What happens when the wait is over: `'fail'` throws `LeaseBusyError`, `'skip'` does not run the method and returns
   * `undefined` (cron jobs).
   * @default 'fail'
   */
  onBusy?: 'fail' | 'skip';
  /**
   * Keeps the key taken for at least this long after the grant, ms, even if the method ends sooner: for cron jobs on machines
   * whose clocks differ. Whole number, 0 to 365 days.
   * @default 0
   */
  holdAtLeastMs?: number;
  /**
   * What an unconfirmed renewal means while validity is left. `'stop'`: abort `lease.signal` at once. `'withhold'`: work on,
   * but fenced writes wait until the lease is confirmed. `'reconcile'`: ask the store before the next fenced write.
   * @default 'reconcile'
   */
  onUncertain?: 'stop' | 'withhold' | 'reconcile';
  /**
   * When the database learns of the grant. `'start'`: before the method runs (invariants I1 to I3). `'write'`: at its first
   * fenced write; cheaper for methods that often write nothing, but until then the previous owner may still commit, so what
   * the method read before may be old (I1 and I2, not I3).
   * @default 'start'
   */
  activate?: 'start' | 'write';
}

/** Options of a call of `FencingService`: those of a method, and a signal that ends the wait. */
export interface LeaseCallOptions extends LeaseOptions {
  /**
   * Aborting it ends the wait for the lease with `WaitAbortedError`. It does not touch a lease that was granted.
   * @default nothing ends the wait before `waitMs`
   */
  signal?: AbortSignal;
}

/** Complete, checked and frozen. */
export type ResolvedLeaseOptions = Readonly<Required<LeaseOptions>>;

const DEFAULTS: ResolvedLeaseOptions = Object.freeze({
  ttlMs: 30_000,
  waitMs: 5_000,
  onBusy: 'fail',
  holdAtLeastMs: 0,
  onUncertain: 'reconcile',
  activate: 'start',
});

/** A year. Longer is a mistake of units, and far from every limit of timers and stores. */
const LONGEST_MS = 365 * 24 * 3_600_000;
/** Below this, a renewal at a third of it has no time for a slow answer. */
const SHORTEST_TTL_MS = 100;

const CHECKS: { [Name in keyof Required<LeaseOptions>]: (where: string, value: unknown) => void } = {
  ttlMs: (where, value) => checkMs(where, 'ttlMs', value, SHORTEST_TTL_MS),
  waitMs: (where, value) => checkMs(where, 'waitMs', value, 0),
  holdAtLeastMs: (where, value) => checkMs(where, 'holdAtLeastMs', value, 0),
  onBusy: (where, value) => checkChoice(where, 'onBusy', value, ['fail', 'skip']),
  onUncertain: (where, value) => checkChoice(where, 'onUncertain', value, ['stop', 'withhold', 'reconcile']),
  activate: (where, value) => checkChoice(where, 'activate', value, ['start', 'write']),
};

/**
 * Fills in defaults and checks every option.
 * @param where names the place in messages, e.g. `@Leased on ReportsService.rebuild`
 * @throws FencingConfigError naming the option, its value and what is allowed
 */
export function resolveLeaseOptions(
  where: string,
  options: LeaseOptions = {},
  base: ResolvedLeaseOptions = DEFAULTS,
  allowed: readonly string[] = LEASE_OPTION_NAMES,
): ResolvedLeaseOptions {
  checkNames(where, options, allowed);
  const resolved: Record<string, unknown> = { ...base };
  for (const name of LEASE_OPTION_NAMES) {
    const value = options[name as keyof LeaseOptions];
    if (value === undefined) continue;
    CHECKS[name as keyof LeaseOptions](where, value);
    resolved[name] = value;
  }
  return Object.freeze(resolved) as ResolvedLeaseOptions;
}

/** The names of all lease options. */
export const LEASE_OPTION_NAMES: readonly string[] = Object.keys(CHECKS);
/** Those of a call of `FencingService`. */
export const LEASE_CALL_OPTION_NAMES: readonly string[] = [...LEASE_OPTION_NAMES, 'signal'];

/** @throws FencingConfigError where `options` is no object or has a name that is not among `allowed` */
export function checkNames(where: string, options: unknown, allowed: readonly string[]): void {
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new FencingConfigError(`${where}: options must be an object, got ${show(options)}.`);
  }
  for (const name of Object.keys(options)) {
    if (!allowed.includes(name)) {
      throw new FencingConfigError(`${where}: there is no option "${name}". Options: ${allowed.join(', ')}.`);
    }
  }
}

/** @throws FencingConfigError unless `value` is a whole number of milliseconds in range */
export function checkMs(where: string, name: string, value: unknown, least: number): void {
  if (typeof value === 'number' && Number.isInteger(value) && value >= least && value <= LONGEST_MS) return;
  throw new FencingConfigError(
    `${where}: ${name} must be a whole number of milliseconds from ${least} to ${LONGEST_MS} (365 days), got ${show(value)}.` +
      (typeof value === 'string' ? ' Texts like "2s" are not read; write 2_000.' : ''),
  );
}

/** @throws FencingConfigError unless `value` is one of `choices` */
export function checkChoice(where: string, name: string, value: unknown, choices: readonly unknown[]): void {
  if (choices.includes(value)) return;
  throw new FencingConfigError(
    `${where}: ${name} must be ${choices.map(show).join(' or ')}, got ${show(value)}.`,
  );
}

/** @throws FencingConfigError unless `value` is a function */
export function checkFunction(where: string, name: string, value: unknown): void {
  if (typeof value !== 'function')
    throw new FencingConfigError(`${where}: ${name} must be a function, got ${show(value)}.`);
}

/** The name of an instance of the module. @throws FencingConfigError unless it is missing or a text */
export function checkInstanceName(where: string, value: unknown): void {
  if (value === undefined || (typeof value === 'string' && value.trim() !== '')) return;
  throw new FencingConfigError(`${where}: name must be a non-empty text, got ${show(value)}.`);
}

/** How a wrong value is named in a message. */
export function show(value: unknown): string {
  return typeof value === 'string'
    ? `'${value}'`
    : Array.isArray(value)
      ? 'an array'
      : typeof value === 'function' || (typeof value === 'object' && value)
        ? `${typeof value === 'function' ? 'a' : 'an'} ${typeof value}`
        : String(value);
}
