import { type ArgumentsHost, Catch, type ExceptionFilter } from '@nestjs/common';
import { BaseExceptionFilter, HttpAdapterHost } from '@nestjs/core';
import { throwError } from 'rxjs';
import { FencingError, type FencingErrorCode, LeaseBusyError } from '../core/errors.js';

/** What a client can do something about. Everything else is a fault of the application: 500, logged by Nest. */
const ANSWERS: Partial<Record<FencingErrorCode, { status: number; title: string }>> = {
  LEASE_BUSY: { status: 423, title: 'Locked' },
  STALE_GENERATION: { status: 409, title: 'Superseded by a newer owner' },
  LEASE_LOST: { status: 409, title: 'Lease lost' },
  LEASE_RELEASED: { status: 409, title: 'Lease ended' },
  STORE_UNAVAILABLE: { status: 503, title: 'Temporarily unavailable' },
  LEASE_UNCERTAIN: { status: 503, title: 'Temporarily unavailable' },
  WAIT_ABORTED: { status: 503, title: 'Wait aborted' },
  COMMIT_UNKNOWN: { status: 503, title: 'Outcome unknown' },
  OPERATION_CONFLICT: { status: 422, title: 'Operation id used with another payload' },
  INVALID_KEY: { status: 400, title: 'Bad request' },
  INVALID_FENCING_HEADERS: { status: 400, title: 'Bad request' },
  ROW_MISSING: { status: 404, title: 'Not found' },
};

/** A client of a gateway: of socket.io, or a plain WebSocket. */
interface WsClient {
  readonly readyState?: unknown;
  send?(text: string): unknown;
  emit?(event: string, payload: object): unknown;
}

/**
 * Answers errors of this package over HTTP as problem details (RFC 9457), and over message transports as plain objects with
 * their `code`. Registered by the module unless `httpErrors: false`; then for single controllers:
 * `@UseFilters(FencingExceptionFilter)`.
 */
@Catch(FencingError)
export class FencingExceptionFilter implements ExceptionFilter {
  constructor(private readonly adapterHost: HttpAdapterHost) {}

  catch(error: FencingError, host: ArgumentsHost): unknown {
    const transport = host.getType<string>();
    // Messages carry plain objects: what Nest's own filters send, and the code, which is all that a caller needs to decide.
    const payload = { status: 'error', message: error.message, code: error.code };
    if (transport === 'rpc') return throwError(() => payload);
    if (transport === 'ws') {
      const client = host.switchToWs().getClient<WsClient>();
      // As Nest's own filter does: `emit` of a plain WebSocket tells nobody but this process.
      if (typeof client.readyState === 'number')
        client.send?.(JSON.stringify({ event: 'exception', data: payload }));
      else client.emit?.('exception', payload);
      return undefined;
    }
    if (transport !== 'http') return error;
    const { httpAdapter } = this.adapterHost;
    const answer = ANSWERS[error.code];
    if (!answer) return new BaseExceptionFilter(httpAdapter).catch(error, host);
    const response = host.switchToHttp().getResponse<unknown>();
    if (httpAdapter.isHeadersSent(response)) return httpAdapter.end(response);
    httpAdapter.setHeader(response, 'Content-Type', 'application/problem+json');
    if (error instanceof LeaseBusyError) {
      httpAdapter.setHeader(
        response,
        'Retry-After',
        String(Math.max(1, Math.ceil(error.retryAfterMs / 1_000))),
      );
    }
    const problem = { type: 'about:blank', ...answer, code: error.code, detail: error.message };
    // As text: to an object Nest 11 gives the content type application/json, whatever was set.
    httpAdapter.reply(response, JSON.stringify(problem), answer.status);
    return undefined;
  }
}

/** Stands where the application wants no filter: it catches what nothing throws. */
@Catch(class Nothing {})
export class NoExceptionFilter implements ExceptionFilter {
  catch(): void {}
}
