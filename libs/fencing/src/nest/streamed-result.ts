import type { ReadableStream } from 'node:stream/web';
import { Observable } from 'rxjs';
import type { HeldLease } from '../core/lease.js';
import type { StreamedResult } from '../core/lease-keeper.js';
import { Afterlife } from './afterlife.js';
import { leasedIterable, leasedResponse, leasedWebStream } from './streamed-iterables.js';

interface NodeStream {
  once(event: 'close' | 'end' | 'error', listener: () => void): unknown;
  destroy(error?: Error): unknown;
  pipe: unknown;
  readonly destroyed?: boolean;
  readonly readableEnded?: boolean;
  readonly readableDidRead?: boolean;
}

/**
 * Keeps the leases of a method whose result goes on after it returned: all that Nest streams to a client, which is an
 * Observable, a Node stream, a StreamableFile, a web stream or Response, an async iterable. The end of a lease ends the stream
 * with its error.
 */
export function streamedResult<T>(result: T, leases: readonly HeldLease[]): StreamedResult<T> | undefined {
  try {
    const streamed = stream(result, leases);
    return streamed && { result: streamed.result as T, ended: streamed.afterlife.ended };
  } catch {
    return undefined; // What cannot be looked at, such as a proxy that throws, is no stream.
  }
}

function stream(
  value: unknown,
  leases: readonly HeldLease[],
): { result: unknown; afterlife: Afterlife } | undefined {
  if (typeof value !== 'object' || value === null) return undefined;
  const node = isNodeStream(value) ? value : (streamOfFile(value) ?? streamOfResponse(value));
  if (node) {
    if (node.destroyed || node.readableEnded) return undefined;
    const afterlife = new Afterlife(leases, () => node.readableDidRead !== false);
    followNodeStream(node, leases, afterlife);
    return { result: value, afterlife };
  }
  const wrap = wrapperFor(value);
  if (!wrap) return undefined;
  const afterlife = new Afterlife(leases);
  return { result: wrap(afterlife), afterlife };
}

function wrapperFor(value: object): ((afterlife: Afterlife) => unknown) | undefined {
  if (isObservable(value)) return (afterlife) => leasedObservable(value, afterlife);
  switch (Object.prototype.toString.call(value)) {
    case '[object Response]': {
      const response = value as Response;
      return response.body && !response.bodyUsed
        ? (afterlife) => leasedResponse(response, afterlife)
        : undefined;
    }
    case '[object ReadableStream]': {
      const web = value as ReadableStream<unknown>;
      return web.locked ? undefined : (afterlife) => leasedWebStream(web, afterlife);
    }
    default: {
      const iterable = value as AsyncIterable<unknown>;
      return typeof iterable[Symbol.asyncIterator] === 'function'
        ? (afterlife) => leasedIterable(iterable, afterlife)
        : undefined;
    }
  }
}

function leasedObservable(source: Observable<unknown>, afterlife: Afterlife): Observable<unknown> {
  return new Observable((subscriber) => {
    const cut = (reason: unknown): void => subscriber.error(reason);
    if (!afterlife.begin(cut)) return undefined;
    const subscription = afterlife.run(() => source.subscribe(subscriber));
    return () => {
      subscription.unsubscribe();
      afterlife.finish(cut);
    };
  });
}

/** A Node stream is read by events, so it is given on as it is. */
function followNodeStream(stream: NodeStream, leases: readonly HeldLease[], afterlife: Afterlife): void {
  const stops = leases.map((lease) => lease.onEnd((reason) => stream.destroy(reason)));
  const over = (): void => {
    // First: the end of the leases that follows must not become an error of a stream that ended well.
    stops.forEach((stop) => stop());
    afterlife.finish();
  };
  for (const event of ['close', 'end', 'error'] as const) stream.once(event, over);
  const reason = leases.map((lease) => lease.ended()).find((one) => one !== undefined);
  if (reason) stream.destroy(reason);
}

function isObservable(value: object): value is Observable<unknown> {
  const { subscribe, pipe } = value as { subscribe?: unknown; pipe?: unknown };
  return typeof subscribe === 'function' && typeof pipe === 'function';
}

function isNodeStream(value: unknown): value is NodeStream {
  const { once, pipe, destroy } = (value ?? {}) as Partial<NodeStream>;
  return typeof once === 'function' && typeof pipe === 'function' && typeof destroy === 'function';
}

function streamOfFile(value: object): NodeStream | undefined {
  const { getStream, getHeaders } = value as { getStream?: () => unknown; getHeaders?: unknown };
  if (typeof getStream !== 'function' || typeof getHeaders !== 'function') return undefined;
  const stream = getStream.call(value);
  return isNodeStream(stream) ? stream : undefined;
}

/** The body of a response of node-fetch. */
function streamOfResponse(value: object): NodeStream | undefined {
  if (Object.prototype.toString.call(value) !== '[object Response]') return undefined;
  const { body } = value as { body?: unknown };
  return isNodeStream(body) ? body : undefined;
}
