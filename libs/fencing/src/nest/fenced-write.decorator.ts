import { currentFrame } from '../core/context.js';
import { FencingConfigError } from '../core/errors.js';
import type { IsolationLevel } from '../core/fence.js';
import type { WriteOptions } from '../core/fenced-writes.js';
import { readKeySource } from '../core/key.js';
import { fingerprintOf } from '../core/operation.js';
import { checkChoice, checkFunction, checkInstanceName, checkNames, show } from '../core/options.js';
import { currentLeasePositions, withCurrentLease } from './current-lease.decorator.js';
import { wrapMethod } from './wrap-method.js';

/** Options of `@FencedWrite`. */
export interface FencedWriteOptions<Args extends readonly unknown[] = readonly never[]> extends WriteOptions {
  /**
   * Names the operation, so that its effect is committed at most once whoever sends it: the second call with the id gets the
   * stored result, and the method does not run. The arguments are its payload; other arguments under the same id are refused.
   * A write whose COMMIT had no answer finds out by its receipt whether it was accepted.
   * @default none: every call has its effect
   */
  operation?: (...args: Args) => string;
  /**
   * The instance of `FencingModule` to use, where there are several.
   * @default the one without a name
   */
  name?: string;
}

type MethodFor<Args extends readonly unknown[]> = {
  method(...args: [...Args, ...never[]]): PromiseLike<unknown>;
}['method'];

const ISOLATION_LEVELS: readonly IsolationLevel[] = ['READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE'];

/**
 * Runs the method in a transaction that the database accepts only while no newer lease of the key has been activated. Every
 * path to the DataSource inside the method is in that transaction: injected repositories, managers, `query`, query builders.
 * Needs a lease: call it from a `@Leased` method.
 *
 * - `@FencedWrite()`: as often as it is called
 * - `@FencedWrite({ operation: (orderId: string) => 'pay:' + orderId })`: at most once for an order
 *
 * @throws FencingConfigError at decoration, where an option is wrong
 *
 * Calls reject with `NoLeaseError`, `StaleGenerationError`, `LeaseLostError`, `LeaseReleasedError`, `LeaseUncertainError`,
 * `StoreUnavailableError`, `CommitUnknownError`, `WriteRolledBackError`, `OperationConflictError`, or what the method throws.
 */
export function FencedWrite<const Args extends readonly unknown[] = []>(
  options: FencedWriteOptions<Args> = {},
) {
  return <M extends MethodFor<Args>>(
    target: object,
    method: string | symbol,
    descriptor: TypedPropertyDescriptor<M>,
  ): void => {
    const where = `@FencedWrite on ${target.constructor.name}.${String(method)}`;
    checkWriteOptions(where, options, ['operation', 'name']);
    const { operation, name, ...writeOptions } = options;
    checkInstanceName(where, name);
    if (operation !== undefined)
      checkFunction(where, 'operation (it makes an id of the arguments)', operation);
    const idOf = operation && readKeySource(where, operation, 'an operation id');
    wrapMethod(target, method, descriptor, {
      decorator: '@FencedWrite',
      instanceName: name,
      needsFence: true,
      call: async (runtime, args, body) => {
        const { writes } = runtime.running ?? (await runtime.start());
        const id = idOf && (await idOf(args, undefined));
        return writes.write(
          where,
          {
            ...writeOptions,
            operation: id === undefined ? id : operationOf(where, id, args, target, method),
          },
          () => {
            const lease = currentFrame().leases.at(-1);
            return body(withCurrentLease(target, method, args, lease));
          },
        );
      },
    });
  };
}

/** @throws FencingConfigError naming the option */
export function checkWriteOptions(where: string, options: WriteOptions, more: readonly string[]): void {
  checkNames(where, options, ['isolation', 'retries', ...more]);
  if (options.isolation !== undefined) checkChoice(where, 'isolation', options.isolation, ISOLATION_LEVELS);
  const { retries } = options;
  if (retries !== undefined && !(Number.isInteger(retries) && retries >= 0 && retries <= 100)) {
    throw new FencingConfigError(
      `${where}: retries must be a whole number from 0 to 100, got ${show(retries)}.`,
    );
  }
}

function operationOf(where: string, id: string, args: unknown[], target: object, method: string | symbol) {
  const leases = currentLeasePositions(target, method);
  const payload = args.filter((_, i) => !leases.includes(i));
  return { where, id, fingerprint: fingerprintOf(where, payload) };
}
