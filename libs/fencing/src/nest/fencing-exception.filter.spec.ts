import { describe, expect, it } from '@jest/globals';
import { ExecutionContextHost } from '@nestjs/core/helpers/execution-context-host.js';
import { type FencingError, FencingExceptionFilter, LeaseBusyError } from 'nestjs-fencing';

describe('FencingExceptionFilter on a gateway', () => {
  const error: FencingError = new LeaseBusyError('key', 1, 2);
  const payload = { status: 'error', message: error.message, code: 'LEASE_BUSY' };
  const answer = (client: object) => {
    const host = new ExecutionContextHost([client]);
    host.setType('ws');
    return new FencingExceptionFilter({} as never).catch(error, host);
  };

  it('emits to a client of socket.io', () => {
    const told: unknown[] = [];
    answer({ emit: (...args: unknown[]) => told.push(args) });
    expect(told).toEqual([['exception', payload]]);
  });

  it('sends to a client of ws, whose emit would tell nobody but this process', () => {
    const told: unknown[] = [];
    answer({
      readyState: 1,
      emit: () => told.push('emitted'),
      send: (text: string) => told.push(JSON.parse(text)),
    });
    expect(told).toEqual([{ event: 'exception', data: payload }]);
  });
});
