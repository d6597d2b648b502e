import {
  type CallHandler,
  type ExecutionContext,
  Inject,
  Injectable,
  type NestInterceptor,
  type Type,
} from '@nestjs/common';
import { map, Observable } from 'rxjs';
import { currentFrame, runInFrame } from '../core/context.js';
import { FencingConfigError, FencingHeadersError } from '../core/errors.js';
import { readFencingHeaders, withoutFencingHeaders } from '../core/fencing-headers.js';
import type { Grant } from '../core/lease-store.js';
import type { HeldLease } from '../core/lease.js';
import type { LeaseOptions } from '../core/options.js';
import { FencingRuntime } from './fencing.runtime.js';
import { streamedResult } from './streamed-result.js';
import { runtimeToken } from './tokens.js';

type Fields = Readonly<Record<string, unknown>>;

/** What `@AcceptFencing` knows of its handler. */
export interface AcceptDefinition {
  readonly where: string;
  readonly trust: (context: ExecutionContext, grant: Grant) => boolean | Promise<boolean>;
  readonly required: boolean;
  readonly headers: ((context: ExecutionContext) => Fields | undefined) | undefined;
  readonly lease: LeaseOptions;
}

/** Where a message is among the arguments of its handler. */
const MESSAGE_POSITIONS: Readonly<Record<string, number>> = { rpc: 0, ws: 1 };

/** The interceptor of one handler: takes up the grant of the request, and runs the handler under it. */
export function acceptFencingInterceptor(
  definition: AcceptDefinition,
  instanceName: string,
): Type<NestInterceptor> {
  const { where, trust, required, headers } = definition;

  @Injectable()
  class AcceptFencingInterceptor implements NestInterceptor {
    constructor(@Inject(runtimeToken(instanceName)) private readonly runtime: FencingRuntime) {
      if (!runtime.hasFence) {
        throw new FencingConfigError(
          `${where} compares generations in the database, and FencingModule has no fence: add fence: typeOrmFence().`,
        );
      }
    }

    async intercept(context: ExecutionContext, next: CallHandler): Promise<Observable<unknown>> {
      const grant = headers ? readFencingHeaders(headers(context) ?? {}) : takeGrant(context);
      if (!grant) {
        if (!required) return next.handle();
        throw new FencingHeadersError(
          'missing',
          'The request brings no lease: send it with fencingHeaders(), inside a leased call.',
        );
      }
      if ((await trust(context, grant)) !== true) {
        throw new FencingHeadersError(
          'untrusted',
          'The lease that the request brings is not accepted from this caller.',
        );
      }
      const { keeper } = await this.runtime.start();
      const lease = await keeper.accept(grant, this.runtime.resolveOptions(where, definition.lease));
      return handleUnder(lease, next);
    }
  }
  return AcceptFencingInterceptor;
}

/** The grant that the request brings. Out of a message, so that a pipe that knows all fields of it does not object. */
function takeGrant(context: ExecutionContext): Grant | undefined {
  const type = context.getType<string>();
  const args = context.getArgs<unknown[]>();
  if (type === 'http')
    return readFencingHeaders(context.switchToHttp().getRequest<{ headers: Fields }>().headers);
  if (type === 'graphql')
    return readFencingHeaders((args[2] as { req?: { headers?: Fields } })?.req?.headers ?? {});
  const position = MESSAGE_POSITIONS[type] ?? 0;
  const message = args[position];
  if (typeof message !== 'object' || message === null || Array.isArray(message)) return undefined;
  const grant = readFencingHeaders(message as Fields);
  if (grant) args[position] = withoutFencingHeaders(message as Fields);
  return grant;
}

function handleUnder(lease: HeldLease, next: CallHandler): Observable<unknown> {
  const outer = currentFrame();
  const frame = { ...outer, leases: [...outer.leases.filter(({ isOver }) => !isOver), lease] };
  return new Observable((subscriber) => {
    let goesOn = false;
    const handled = runInFrame(frame, () => next.handle()).pipe(
      map((value: unknown) => {
        const streamed = runInFrame(frame, () => streamedResult(value, [lease]));
        if (!streamed) return value;
        goesOn = true;
        void streamed.ended.then(() => lease.finish());
        return streamed.result;
      }),
    );
    const subscription = runInFrame(frame, () => handled.subscribe(subscriber));
    return () => {
      subscription.unsubscribe();
      if (!goesOn) lease.finish();
    };
  });
}
