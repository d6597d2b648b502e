import { Observable } from 'rxjs';
import { currentFrame, runInFrame } from '../core/context.js';
import { systemClock } from '../core/clock.js';
import type { HeldLease } from '../core/lease.js';
import type { StreamedResult } from '../core/lease-keeper.js';

interface NodeStream {
  once(event: 'close' | 'end' | 'error', listener: () => void): unknown;
  destroy(error?: Error): unknown;
  pipe: unknown;
}

/**
 * Keeps the leases of a method whose result goes on after it returned: an Observable, a Node stream, a StreamableFile. A lost
 * lease ends the stream with its error.
 */
export function streamedResult<T>(result: T, leases: readonly HeldLease[]): StreamedResult<T> | undefined {
  if (isObservable(result)) return streamedObservable(result, leases) as StreamedResult<unknown> as StreamedResult<T>;
  const stream = isNodeStream(result) ? result : streamOfFile(result);
  if (!stream) return undefined;
  return {
    result,
    ended: new Promise((resolve) => {
      for (const event of ['close', 'end', 'error'] as const) stream.once(event, resolve);
      for (const lease of leases) lease.onEnd((reason) => stream.destroy(reason));
    }),
  };
}

function streamedObservable(source: Observable<unknown>, leases: readonly HeldLease[]): StreamedResult<Observable<unknown>> {
  const frame = currentFrame();
  let finish: () => void = () => undefined;
  const ended = new Promise<void>((resolve) => (finish = resolve));
  // Nobody may ever subscribe: then the lease ends as if it had not been renewed.
  const cancel = systemClock.setTimer(Math.min(...leases.map(({ options }) => options.ttlMs)), finish);
  const result = new Observable<unknown>((subscriber) => {
    cancel();
    const stops = leases.map((lease) => lease.onEnd((reason) => subscriber.error(reason)));
    const early = leases.map((lease) => lease.ended()).find((reason) => reason !== undefined);
    if (early) {
      subscriber.error(early);
      return undefined;
    }
    const subscription = runInFrame(frame, () => source.subscribe(subscriber));
    return () => {
      stops.forEach((stop) => stop());
      subscription.unsubscribe();
      finish();
    };
  });
  return { result, ended };
}

function isObservable(value: unknown): value is Observable<unknown> {
  const { subscribe, pipe } = (value ?? {}) as { subscribe?: unknown; pipe?: unknown };
  return typeof subscribe === 'function' && typeof pipe === 'function';
}

function isNodeStream(value: unknown): value is NodeStream {
  const { once, pipe, destroy } = (value ?? {}) as Partial<NodeStream>;
  return typeof once === 'function' && typeof pipe === 'function' && typeof destroy === 'function';
}

function streamOfFile(value: unknown): NodeStream | undefined {
  const { getStream, getHeaders } = (value ?? {}) as { getStream?: () => unknown; getHeaders?: unknown };
  if (typeof getStream !== 'function' || typeof getHeaders !== 'function') return undefined;
  const stream = getStream.call(value);
  return isNodeStream(stream) ? stream : undefined;
}
