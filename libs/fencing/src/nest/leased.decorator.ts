import { type KeySource, readKeySource } from '../core/key.js';
import { FencingConfigError } from '../core/errors.js';
import {
  checkInstanceName,
  checkNames,
  LEASE_OPTION_NAMES,
  type LeaseOptions,
  resolveLeaseOptions,
} from '../core/options.js';
import { withCurrentLease } from './current-lease.decorator.js';
import type { LeasedDefinition } from './fencing.runtime.js';
import type { LaterResult } from './later-result.js';
import type { LeaseTimes } from './times.js';
import { wrapMethod } from './wrap-method.js';

/** Options of `@Leased`. */
export interface LeasedOptions extends LeaseOptions {
  /**
   * The instance of `FencingModule` to use, where there are several.
   * @default the one without a name
   */
  name?: string;
}

/**
 * A method whose arguments fit the key function; bivariant, so that `(order: { id: string })` fits a method of `Order`. Its
 * result comes later: callers get a promise from now on, which a method that returns a plain value would not tell them.
 */
type LeasedMethodFor<Args extends readonly unknown[]> = {
  method(...args: [...Args, ...never[]]): LaterResult;
}['method'];

/**
 * Runs the method under a lease of `key`, renewed while it runs and released before its caller gets the result. Inside a call
 * that already holds the key, the method joins it.
 *
 * - `@Leased((id: string) => 'report:' + id)`: from the arguments, checked by the compiler
 * - `@Leased('report:{0.customerId}', { ttlMs: 10_000 })`: the same as text, escaped
 * - `@Leased(['account:{0}', 'account:{1}'])`: several, taken in sorted order
 *
 * @param key text with `{…}` places, a function of the arguments, or an array of either. `{0}`, `{0.id}` stand for arguments,
 * `{params.id}`, `{body.x}`, `{query.x}`, `{headers.x}`, `{user.id}` for parts of the current request.
 * @throws FencingConfigError at decoration, where the key or an option is wrong
 *
 * Calls reject with `LeaseBusyError`, `StoreUnavailableError`, `LeaseKeyError`, `LeaseLostError`, or what the method throws.
 */
export function Leased<
  const Args extends readonly unknown[] = [],
  Ttl extends number = number,
  Wait extends number = number,
  Hold extends number = number,
>(
  key: KeySource<Args> | readonly KeySource<Args>[],
  options: LeasedOptions & LeaseTimes<Ttl, Wait, Hold> = {},
) {
  return <M extends LeasedMethodFor<Args>>(
    target: object,
    method: string | symbol,
    descriptor: TypedPropertyDescriptor<M>,
  ): void => {
    const where = `@Leased on ${target.constructor.name}.${String(method)}`;
    checkNames(where, options, [...LEASE_OPTION_NAMES, 'name']);
    const { name, ...leaseOptions } = options;
    checkInstanceName(where, name);
    resolveLeaseOptions(where, leaseOptions);
    const sources = (Array.isArray(key) ? key : [key]) as readonly KeySource[];
    if (sources.length === 0) throw new FencingConfigError(`${where}: the array of keys is empty.`);
    const definition: LeasedDefinition = {
      where,
      keys: sources.map((source) => readKeySource(where, source)),
      options: leaseOptions,
    };
    wrapMethod(target, method, descriptor, {
      decorator: '@Leased',
      instanceName: name,
      needsFence: false,
      lease: { keys: sources, options: leaseOptions },
      call: (runtime, args, body) =>
        runtime.leased(definition, args, (leases) => body(withCurrentLease(target, method, args, leases[0]))),
    });
  };
}
