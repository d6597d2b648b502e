import { addAbortListener, once } from 'node:events';
import { describe, expect, it, jest } from '@jest/globals';
import { containedController } from './signal.js';

describe('the abort signal of a lease', () => {
  const failure = new Error('of the listener');
  const boom = () => {
    throw failure;
  };

  it('contains a listener that throws, and goes on with the others', () => {
    const report = jest.fn();
    const after = jest.fn();
    const { signal, abort } = signalAndAbort(report);
    signal.addEventListener('abort', boom);
    signal.addEventListener('abort', after);
    abort();
    expect(report.mock.calls).toEqual([[failure]]);
    expect(after).toHaveBeenCalledTimes(1);
  });

  it('contains a listener whose promise rejects', async () => {
    const report = jest.fn();
    const { signal, abort } = signalAndAbort(report);
    const rejects: () => unknown = () => Promise.reject(failure);
    signal.addEventListener('abort', rejects);
    abort();
    await Promise.resolve();
    await new Promise(setImmediate);
    expect(report.mock.calls).toEqual([[failure]]);
  });

  it('contains a listener that is an object, one set as onabort, and one of addAbortListener', () => {
    const report = jest.fn();
    const { signal, abort } = signalAndAbort(report);
    signal.addEventListener('abort', { handleEvent: boom });
    signal.onabort = boom;
    addAbortListener(signal, boom);
    abort();
    expect(report.mock.calls).toEqual([[failure], [failure], [failure]]);
  });

  it('calls a listener with the signal as `this` and the event as its argument', () => {
    const { signal, abort } = signalAndAbort();
    const seen: unknown[] = [];
    signal.addEventListener('abort', function (this: unknown, event) {
      seen.push(this, event.type);
    });
    abort();
    expect(seen).toEqual([signal, 'abort']);
  });

  it('calls a listener that was added twice once, and one that was removed never', () => {
    const { signal, abort } = signalAndAbort();
    const twice = jest.fn();
    const removed = jest.fn();
    signal.addEventListener('abort', twice);
    signal.addEventListener('abort', twice);
    signal.addEventListener('abort', removed);
    signal.removeEventListener('abort', removed);
    signal.addEventListener('abort', null as never);
    abort();
    expect(twice).toHaveBeenCalledTimes(1);
    expect(removed).not.toHaveBeenCalled();
  });

  it('is a plain AbortSignal to those who use it: any(), throwIfAborted(), fetch and timers', async () => {
    const { signal, abort } = signalAndAbort();
    const { setTimeout } = await import('node:timers/promises');
    const sleeping = expect(setTimeout(60_000, undefined, { signal })).rejects.toMatchObject({
      name: 'AbortError',
    });
    const any = AbortSignal.any([signal]);
    const heard = once(any, 'abort');
    abort('why');
    await sleeping;
    await heard;
    expect(any.reason).toBe('why');
    expect(() => signal.throwIfAborted()).toThrow('why');
  });

  function signalAndAbort(report: (error: unknown) => void = boom) {
    const controller = containedController(report);
    return { signal: controller.signal, abort: (reason?: unknown) => controller.abort(reason) };
  }
});
