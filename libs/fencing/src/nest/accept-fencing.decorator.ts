import { type ExecutionContext, UseInterceptors } from '@nestjs/common';
import type { Grant } from '../core/lease-store.js';
import {
  checkChoice,
  checkFunction,
  checkInstanceName,
  checkNames,
  type LeaseOptions,
  resolveLeaseOptions,
} from '../core/options.js';
import { acceptFencingInterceptor } from './accept-fencing.interceptor.js';
import type { LeaseTimes } from './times.js';
import { DEFAULT_INSTANCE } from './tokens.js';

/** Options of `@AcceptFencing`. */
export interface AcceptFencingOptions extends Pick<LeaseOptions, 'ttlMs' | 'waitMs'> {
  /**
   * Whether this caller may speak for this lease; anything but `true` refuses the request. Whoever is trusted can fence off every
   * key that you let pass here, with the largest generation for ever, so look at the caller (a mutual TLS certificate, a signed
   * token, a private network) and, where callers own different keys, at `grant.key`.
   */
  trust: (context: ExecutionContext, grant: Grant) => boolean | Promise<boolean>;
  /**
   * Whether a request without a grant is refused. `false`: it runs without a lease, and a `@FencedWrite` in it is refused then.
   * @default true
   */
  required?: boolean;
  /**
   * Where the grant's three fields are. By default in the headers of an HTTP request (also of GraphQL), else in the message itself,
   * from which they are taken out before pipes see it.
   */
  headers?: (context: ExecutionContext) => Readonly<Record<string, unknown>> | undefined;
  /**
   * How long the handler may write under the accepted grant, ms. How long the caller's lease is valid is not known here, and its
   * renewals are not seen: this only bounds for how long a handler that hangs keeps a newer owner waiting.
   * @default the module's default, 30_000
   */
  ttlMs?: number;
  /**
   * How long to wait for transactions of the previous owner, ms.
   * @default the module's default, 5_000
   */
  waitMs?: number;
  /**
   * The instance of `FencingModule` to use, where there are several.
   * @default the one without a name
   */
  name?: string;
}

const OPTIONS = ['trust', 'required', 'headers', 'ttlMs', 'waitMs', 'name'];

/**
 * On a handler of a controller, message controller, gateway or resolver: the lease of the calling service, which it sent by
 * `fencingHeaders()`, becomes the lease of this call. Before the handler runs, the grant is activated in this service's own
 * database; from then on, its `@FencedWrite` accepts no older grant of the key, whatever arrives late.
 *
 * `@AcceptFencing({ trust: (context) => isInternal(context) })` on a route whose service has a `@FencedWrite()` method.
 *
 * The keys of both services are one space of names: a service that takes leases of its own under the same keys must take them
 * from the same lease store. It has no effect on a method that Nest does not call as a handler.
 *
 * @throws FencingConfigError at decoration, where an option is wrong
 *
 * Requests are refused with `FencingHeadersError` (400), `StaleGenerationError` (409) or `StoreUnavailableError` (503).
 */
export function AcceptFencing<Ttl extends number = number, Wait extends number = number>(
  options: AcceptFencingOptions & Pick<LeaseTimes<Ttl, Wait, number>, 'ttlMs' | 'waitMs'>,
) {
  return (target: object, method: string | symbol, descriptor: PropertyDescriptor): void => {
    const where = `@AcceptFencing on ${target.constructor.name}.${String(method)}`;
    checkNames(where, options, OPTIONS);
    const { trust, required = true, headers, name = DEFAULT_INSTANCE, ttlMs, waitMs } = options;
    checkFunction(where, 'trust (who may speak for a lease)', trust);
    checkChoice(where, 'required', required, [true, false]);
    if (headers !== undefined) checkFunction(where, 'headers', headers);
    checkInstanceName(where, name);
    const lease = { ttlMs, waitMs };
    resolveLeaseOptions(where, lease);
    const interceptor = acceptFencingInterceptor({ where, trust, required, headers, lease }, name);
    UseInterceptors(interceptor)(target, method, descriptor);
  };
}
