import { describe, expect, it } from '@jest/globals';
import { FencingConfigError } from './errors.js';
import {
  checkChoice,
  checkFunction,
  checkInstanceName,
  checkMs,
  checkNames,
  LEASE_OPTION_NAMES,
  resolveLeaseOptions,
} from './options.js';

const at = '@Leased on Reports.rebuild';
const DAY = 24 * 3_600_000;

/** What comes where a number of milliseconds is expected, and how the message shows it. */
const NO_MS: [unknown, string][] = [
  [1500.7, '1500.7'],
  ['2s', "'2s'"],
  ['1500', "'1500'"],
  [NaN, 'NaN'],
  [Infinity, 'Infinity'],
  [-1, '-1'],
  [null, 'null'],
  [true, 'true'],
  [{}, 'an object'],
  [[], 'an array'],
  [() => 1, 'a function'],
  [5n, '5'],
  [Symbol('ms'), 'Symbol(ms)'],
  [366 * DAY, String(366 * DAY)],
];

describe('lease options', () => {
  it('have a default each', () => {
    expect(resolveLeaseOptions(at)).toEqual({
      ttlMs: 30_000,
      waitMs: 5_000,
      onBusy: 'fail',
      holdAtLeastMs: 0,
      onUncertain: 'reconcile',
      activate: 'start',
    });
    expect(LEASE_OPTION_NAMES).toEqual(
      Object.keys(resolveLeaseOptions(at)).sort(
        (a, b) => LEASE_OPTION_NAMES.indexOf(a) - LEASE_OPTION_NAMES.indexOf(b),
      ),
    );
  });

  it('of a method go before those of the module, which go before the defaults; undefined counts as not given', () => {
    const base = resolveLeaseOptions('defaults', { ttlMs: 1_000, waitMs: 1 });
    const resolved = resolveLeaseOptions(at, { waitMs: 2, ttlMs: undefined }, base);
    expect(resolved).toMatchObject({ ttlMs: 1_000, waitMs: 2, onBusy: 'fail' });
    expect(Object.isFrozen(resolved)).toBe(true);
  });

  it.each([100, 1_500, 2 ** 31 + 5, 90 * DAY, 365 * DAY])('ttlMs: %i is fine', (ttlMs) => {
    expect(resolveLeaseOptions(at, { ttlMs }).ttlMs).toBe(ttlMs);
  });

  it.each(['waitMs', 'holdAtLeastMs'])('%s: 0 is fine', (name) => {
    expect(resolveLeaseOptions(at, { [name]: 0 })).toMatchObject({ [name]: 0 });
  });

  it.each([0, 99])('ttlMs: %i is too short to be renewed', (ttlMs) => {
    expect(() => resolveLeaseOptions(at, { ttlMs })).toThrow(
      `${at}: ttlMs must be a whole number of milliseconds from 100 to 31536000000 (365 days), got ${ttlMs}.`,
    );
  });

  describe.each(['ttlMs', 'waitMs', 'holdAtLeastMs'])('%s', (name) => {
    it.each(NO_MS)(
      '%p is refused: the message names the option, the value and what is allowed',
      (value, shown) => {
        const resolve = () => resolveLeaseOptions(at, { [name]: value });
        expect(resolve).toThrow(FencingConfigError);
        expect(resolve).toThrow(`${at}: ${name} must be a whole number of milliseconds from `);
        expect(resolve).toThrow(`(365 days), got ${shown}.`);
      },
    );
  });

  it('a text with a unit is told how to be written', () => {
    expect(() => resolveLeaseOptions(at, { ttlMs: '2s' as never })).toThrow(
      'Texts like "2s" are not read; write 2_000.',
    );
  });

  it.each([
    ['onBusy', "'fail' or 'skip'"],
    ['onUncertain', "'stop' or 'withhold' or 'reconcile'"],
    ['activate', "'start' or 'write'"],
  ])('%s is one of %s', (name, choices) => {
    for (const value of ['', 'FAIL', null, true, 1, {}, ['fail']]) {
      const resolve = () => resolveLeaseOptions(at, { [name]: value });
      expect(resolve).toThrow(FencingConfigError);
      expect(resolve).toThrow(`${at}: ${name} must be ${choices}, got `);
    }
  });

  it.each(['ttl', 'ttlMS', 'timeout', 'wait', 'onbusy', 'name', '__proto__x'])(
    '"%s" is no option; the message lists them',
    (name) => {
      const resolve = () => resolveLeaseOptions(at, { [name]: 1 });
      expect(resolve).toThrow(FencingConfigError);
      expect(resolve).toThrow(
        `${at}: there is no option "${name}". Options: ttlMs, waitMs, holdAtLeastMs, onBusy, onUncertain, activate.`,
      );
    },
  );

  it.each<[unknown, string]>([
    [null, 'null'],
    ['30s', "'30s'"],
    [30_000, '30000'],
    [[], 'an array'],
    [() => ({}), 'a function'],
  ])('%p is no object of options', (options, shown) => {
    expect(() => resolveLeaseOptions(at, options as never)).toThrow(
      `${at}: options must be an object, got ${shown}.`,
    );
  });
});

describe('the single checks', () => {
  it('name the place, the option and the value', () => {
    expect(() => checkMs('X', 'drainMs', -1, 0)).toThrow(/^X: drainMs must be .* from 0 to .*, got -1\.$/);
    expect(() => checkChoice('X', 'flag', 'yes', [true, false])).toThrow(
      "X: flag must be true or false, got 'yes'.",
    );
    expect(() => checkFunction('X', 'the body', undefined)).toThrow(
      'X: the body must be a function, got undefined.',
    );
    expect(() => checkNames('X', { b: 1 }, ['a'])).toThrow('X: there is no option "b". Options: a.');
    for (const name of ['', '  ', 5, null, {}])
      expect(() => checkInstanceName('X', name)).toThrow(/^X: name must be a non-empty text, got /);
    expect(() => checkInstanceName('X', undefined)).not.toThrow();
  });
});
