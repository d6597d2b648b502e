import { describe, expect, it, jest } from '@jest/globals';
import { inspect } from 'node:util';
import * as errors from './errors.js';

const SECRET = 'customer:jane.doe@example.com';
const why = new Error('why');

const EVERY: errors.FencingError[] = [
  new errors.LeaseBusyError(SECRET, 10.4, 20.6),
  new errors.StoreUnavailableError('lease store', 'no answer.', { key: SECRET, cause: why }),
  new errors.LeaseUncertainError(SECRET, 7, why),
  new errors.LeaseLostError(SECRET, 7, 'expired', 1, { result: SECRET, bodyError: why }),
  new errors.StaleGenerationError(SECRET, 7, 8, why),
  new errors.LeaseReleasedError(SECRET, 7),
  new errors.NoLeaseError('@FencedWrite on Reports.publish'),
  new errors.WaitAbortedError(SECRET, why),
  new errors.CommitUnknownError(SECRET, why),
  new errors.WriteRolledBackError(SECRET, why),
  new errors.OperationConflictError(SECRET),
  new errors.RowMissingError(SECRET, 'Account'),
  new errors.RowProtectedError(SECRET, 'public.report', why),
  new errors.FencingHeadersError('malformed', 'Fencing-Generation is no generation.'),
  new errors.FenceBypassError('A query runner of its own', 'Use the repositories.'),
  new errors.LeaseOrderError(SECRET),
  new errors.LeaseKeyError('@Leased on Reports.rebuild', '{0} of the key is empty.', why),
  new errors.FencingConfigError('FencingModule: leases is missing.', why),
  new errors.GenerationsExhaustedError(SECRET),
];
const classes = Object.values(errors).filter(
  (value) => typeof value === 'function' && value !== errors.FencingError,
) as (new (...args: never[]) => errors.FencingError)[];

describe('every error of the package', () => {
  it('is listed here', () => {
    expect(new Set(EVERY.map(({ constructor }) => constructor))).toEqual(new Set(classes));
  });

  it.each(EVERY.map((error) => [error.name, error] as const))(
    '%s is told apart by its type and by its code',
    (_, error) => {
      expect(error).toBeInstanceOf(Error);
      expect(error).toBeInstanceOf(errors.FencingError);
      expect(classes.filter((type) => error instanceof type)).toEqual([error.constructor]);
      expect(EVERY.filter(({ code }) => code === error.code)).toEqual([error]);
      expect(error.name).toBe(error.constructor.name);
      expect(error.stack).toContain(`${error.name}: ${error.message}`);
      // What loggers, queues and transports make of it.
      expect(JSON.parse(JSON.stringify(error))).toMatchObject({ code: error.code });
      expect({ ...error }).toMatchObject({ code: error.code });
    },
  );

  it.each(EVERY.map((error) => [error.name, error] as const))(
    '%s shows no key and no payload when it is logged',
    (_, error) => {
      for (const shown of [
        error.message,
        error.stack,
        String(error),
        inspect(error),
        JSON.stringify(error),
        inspect({ ...error }),
      ])
        expect(shown).not.toContain('jane');
    },
  );

  it.each(EVERY.map((error) => [error.name, error] as const))(
    '%s says what to do, in whole sentences',
    (_, error) => {
      expect(error.message).toMatch(/[.…]$/);
      expect(error.message).not.toMatch(/undefined|null|NaN|\[object/);
    },
  );

  it('keeps the key and the cause for the code that wants them', () => {
    expect(EVERY[0]!.key).toBe(SECRET);
    expect(EVERY[1]).toMatchObject({ store: 'lease store', key: SECRET, cause: why, retryable: true });
    expect(EVERY[3]).toMatchObject({
      reason: 'expired',
      acceptedWrites: 1,
      result: SECRET,
      bodyError: why,
      cause: why,
    });
    expect(EVERY[4]).toMatchObject({ generation: 7, currentGeneration: 8, cause: why });
    expect(EVERY[6]!.key).toBeUndefined();
    expect(Object.hasOwn(EVERY[0]!, 'cause')).toBe(false);
    expect((EVERY[10] as errors.OperationConflictError).operationId).toBe(SECRET);
  });

  it('is known by the other copy of the package (ESM and CommonJS in one process)', async () => {
    jest.resetModules();
    const copy = await import('./errors.js');
    expect(copy.LeaseBusyError).not.toBe(errors.LeaseBusyError);
    const foreign = new copy.LeaseBusyError(SECRET, 1, 2);
    expect(foreign).toBeInstanceOf(errors.LeaseBusyError);
    expect(foreign).toBeInstanceOf(errors.FencingError);
    expect(foreign).not.toBeInstanceOf(errors.LeaseLostError);
  });

  it('is not what merely has its code, nor what is not an object', () => {
    for (const value of [
      { code: 'LEASE_BUSY' },
      Object.assign(new Error('x'), { code: 'LEASE_BUSY' }),
      null,
      undefined,
      'LEASE_BUSY',
    ])
      expect(value instanceof errors.FencingError || value instanceof errors.LeaseBusyError).toBe(false);
  });

  it('can be extended by an application, and is then told apart as any class', () => {
    class VeryBusy extends errors.LeaseBusyError {}
    expect(new VeryBusy(SECRET, 1, 2)).toBeInstanceOf(errors.LeaseBusyError);
    expect(new VeryBusy(SECRET, 1, 2)).toBeInstanceOf(VeryBusy);
    expect(EVERY[0]).not.toBeInstanceOf(VeryBusy);
  });
});
