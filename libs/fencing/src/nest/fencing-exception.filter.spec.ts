import { describe, expect, it } from '@jest/globals';
import type { ArgumentsHost } from '@nestjs/common';
import { type FencingError, FencingExceptionFilter, LeaseBusyError } from 'nestjs-fencing';

describe('FencingExceptionFilter on a gateway', () => {
  const error: FencingError = new LeaseBusyError('key', 1, 2);
  const payload = { status: 'error', message: error.message, code: 'LEASE_BUSY' };
  const answer = (client: object) =>
    new FencingExceptionFilter({} as never).catch(error, {
      getType: () => 'ws',
      switchToWs: () => ({ getClient: () => client }),
    } as unknown as ArgumentsHost);

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
