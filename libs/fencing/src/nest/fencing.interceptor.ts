import { type CallHandler, type ExecutionContext, Injectable, type NestInterceptor } from '@nestjs/common';
import { Observable } from 'rxjs';
import { currentFrame, type RequestFrame, runInFrame } from '../core/context.js';
import type { Lease } from '../core/lease.js';

interface Response {
  readonly headersSent?: boolean;
  setHeader?(name: string, value: string): unknown;
  header?(name: string, value: string): unknown;
}

/**
 * Comes with `@Leased` and `@FencedWrite` on handlers of controllers, gateways and resolvers: carries the request into the
 * context, for keys like `{params.id}`, and answers the header `Fencing-Generation` (not for SSE, whose headers Nest sends
 * before the handler runs).
 */
@Injectable()
export class FencingInterceptor implements NestInterceptor {
  intercept(context: ExecutionContext, next: CallHandler): Observable<unknown> {
    const request = requestOf(context);
    // Nest binds the context of the handler in handle(), so it is called inside.
    return new Observable((subscriber) =>
      runInFrame({ ...currentFrame(), request }, () => next.handle().subscribe(subscriber)),
    );
  }
}

function requestOf(context: ExecutionContext): RequestFrame {
  switch (context.getType<string>()) {
    case 'http': {
      const http = context.switchToHttp();
      // The handler's own comes first; those of the methods that it calls are of other keys.
      let isTold = false;
      const granted = (lease: Lease): void => {
        if (!isTold) answerGeneration(http.getResponse(), lease);
        isTold = true;
      };
      return { ...partsOf(http.getRequest()), granted };
    }
    case 'graphql': {
      const [, args, graph] = context.getArgs<[unknown, unknown, { req?: RequestFrame } | undefined]>();
      return { ...partsOf(graph?.req ?? {}), body: args };
    }
    case 'ws': {
      const ws = context.switchToWs();
      return { body: ws.getData<unknown>(), user: ws.getClient<{ user?: unknown } | undefined>()?.user };
    }
    default:
      return { body: context.switchToRpc().getData<unknown>() };
  }
}

function partsOf({ params, body, query, headers, user }: RequestFrame): RequestFrame {
  return { params, body, query, headers, user };
}

function answerGeneration(response: Response, lease: Lease): void {
  if (response.headersSent) return;
  const value = String(lease.generation);
  if (response.setHeader) response.setHeader('Fencing-Generation', value);
  else response.header?.('Fencing-Generation', value);
}
