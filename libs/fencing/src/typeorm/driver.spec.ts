import { QueryFailedError } from 'typeorm';
import { isConnectionLoss, isDatabaseError, isSerializationFailure, sqlStateOf } from './driver.js';

const withCode = (code: string, message = 'message') => Object.assign(new Error(message), { code });
const failed = (driverError: Error) => new QueryFailedError('SELECT 1', [], driverError);

describe('an error of the database', () => {
  it.each(['23505', '40001', '57P01', 'XX000', 'NF001', 'HV00N', '0A000'])('has the SQLSTATE %s', (code) => {
    expect(sqlStateOf(withCode(code))).toBe(code);
    expect(sqlStateOf(failed(withCode(code)))).toBe(code);
    expect(isDatabaseError(withCode(code))).toBe(true);
  });

  it.each(['EPIPE', 'ECONNRESET', 'LEASE_LOST', '', 'ABCDE'])(
    'has no SQLSTATE where the code is %j',
    (code) => {
      expect(sqlStateOf(withCode(code))).toBeUndefined();
    },
  );

  it.each([[undefined], [null], ['text'], [new Error('of the application')], [{ code: 42 }]])(
    'is not %p',
    (error) => {
      expect([sqlStateOf(error), isDatabaseError(error), isConnectionLoss(error)]).toEqual([
        undefined,
        false,
        false,
      ]);
    },
  );

  it.each([
    withCode('57P01'),
    withCode('25P03'),
    withCode('08006'),
    withCode('EPIPE', 'write EPIPE'),
    withCode('ECONNRESET', 'read ECONNRESET'),
    new Error('Connection terminated unexpectedly'),
    new Error('Client has encountered a connection error and is not queryable'),
    new Error('Query read timeout'),
  ])('%p means that the connection is gone', (error) => {
    expect(isConnectionLoss(error)).toBe(true);
    expect(isConnectionLoss(failed(error))).toBe(true);
  });

  it.each([withCode('23505', 'duplicate key in connection_terminated'), withCode('57014')])(
    '%p does not',
    (error) => {
      expect(isConnectionLoss(error)).toBe(false);
    },
  );

  it('may be a serialization failure', () => {
    expect(['40001', '40P01', '23505'].map((code) => isSerializationFailure(failed(withCode(code))))).toEqual(
      [true, true, false],
    );
  });
});
