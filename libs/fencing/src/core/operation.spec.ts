import { describe, expect, it } from '@jest/globals';
import { createContext, runInContext } from 'node:vm';
import { FencingConfigError } from './errors.js';
import { assertJson, fingerprintOf } from './operation.js';

const at = '@FencedWrite on Accounts.charge';
const fingerprint = (...args: unknown[]) => fingerprintOf(at, args);

describe('the fingerprint of a payload', () => {
  it.each<[unknown[], unknown[]]>([
    [[{ a: 1, b: 2 }], [{ b: 2, a: 1 }]],
    [[{ a: { x: [1, { z: 1, y: 2 }] } }], [{ a: { x: [1, { y: 2, z: 1 }] } }]],
    [[{ a: 1, b: undefined }], [{ a: 1 }]],
    [[new Date(0)], ['1970-01-01T00:00:00.000Z']],
    [[], []],
    [['42', undefined], ['42']], // an argument that is left out
    [[undefined, undefined], []],
    [[-0], [0]],
    [
      [
        new (class Order {
          id = 1;
        })(),
      ],
      [{ id: 1 }],
    ],
  ])('is the same for %j and %j', (one, other) => {
    expect(fingerprint(...one)).toBe(fingerprint(...other));
  });

  it.each<[unknown[], unknown[]]>([
    [['1'], [1]],
    [[1], [2]],
    [[[1, 2]], [[2, 1]]],
    [[[1, 2]], [1, 2]],
    [
      ['a', 'b'],
      ['ab', ''],
    ],
    [[{ a: 1 }], [{ A: 1 }]],
    [[null], [0]],
    [['42', null], ['42']],
    [[undefined, 1], [1]],
    [[1n], [1]],
    [[1n], ['1']],
    [[1n], ['1n']],
    [[{ a: [1n] }], [{ a: ['1n'] }]],
    [[1n], [2n]],
    [[1n], [{ '\0bigint': '1' }]],
    [[{ '\0bigint': '1' }], [{ '\0\0bigint': '1' }]],
    [[Buffer.from('a')], [Buffer.from('b')]],
    [[Uint8Array.of(1)], [Uint8Array.of(2)]],
    [[{ a: [] }], [{ a: {} }]],
    [['É'], ['E\u0301']],
  ])('differs between %p and %p', (one, other) => {
    expect(fingerprint(...one)).not.toBe(fingerprint(...other));
  });

  it('of an object without properties is that of any other', () => {
    class Empty {}
    expect(fingerprint(new Empty())).toBe(fingerprint({}));
  });

  it('is the same in every process and version: receipts are stored', () => {
    expect(fingerprint('42', { amount: 5, to: ['a'] })).toBe(
      'bfaa10bbd795bc2551ce853642195a053bf4b9db9954143fd412b20bbfa96b02',
    );
  });

  it.each<[string, unknown]>([
    ['a function', () => 1],
    ['a symbol', Symbol('x')],
    ['a Map', new Map()],
    ['a Set deep inside', { a: [{ b: new Set([1]) }] }],
    ['a RegExp', { like: /a/ }],
    ['an Error', new TypeError('no')],
    ['URLSearchParams', new URLSearchParams('a=b')],
    ['an ArrayBuffer', new ArrayBuffer(8)],
    ['a DataView', new DataView(new ArrayBuffer(8))],
    ['a Promise', [Promise.resolve(1)]],
    ['a boxed number', Object(1)],
    [
      'an object that keeps to itself what it is',
      new (class Money {
        #cents = 1;
        toString(): string {
          return String(this.#cents);
        }
      })(),
    ],
    ['an invalid Date', { at: new Date(NaN) }],
    ['NaN', { amount: NaN }],
    ['Infinity', -Infinity],
  ])('%s has none: typed error that names the method', (_, value) => {
    expect(() => fingerprint(value)).toThrow(FencingConfigError);
    expect(() => fingerprint(value)).toThrow(/^@FencedWrite on Accounts\.charge: .*Pass plain data\.$/);
  });

  it('a circular argument has none', () => {
    const circular: Record<string, unknown> = {};
    circular.self = [circular];
    expect(() => fingerprint(circular)).toThrow(FencingConfigError);
    expect(() => fingerprint(circular)).toThrow(/^@FencedWrite on Accounts\.charge: .*circular/);
  });
});

describe('the result of an operation', () => {
  it.each<[unknown]>([
    [undefined],
    [null],
    ['text'],
    [0],
    [true],
    [[]],
    [{}],
    [[1, [null, { a: 'b' }]]],
    [{ a: undefined }],
  ])('%j survives being stored', (value) => {
    expect(() => assertJson(at, value)).not.toThrow();
  });

  it('may be a plain object of another realm, or one without a prototype', () => {
    expect(() => assertJson(at, runInContext('({ a: [1] })', createContext({})))).not.toThrow();
    expect(() => assertJson(at, Object.create(null))).not.toThrow();
  });

  class Report {}
  it.each<[unknown, string]>([
    [new Date(0), 'the result is Date'],
    [{ at: new Date(0) }, 'the result.at is Date'],
    [[1, { rows: [new Report()] }], 'the result[1].rows[0] is Report'],
    [NaN, 'the result is NaN'],
    [{ n: Infinity }, 'the result.n is Infinity'],
    [1n, 'the result is bigint'],
    [() => 1, 'the result is function'],
    [Symbol('x'), 'the result is symbol'],
    [new Map(), 'the result is Map'],
  ])('%p would not: refused by its path', (value, message) => {
    expect(() => assertJson(at, value)).toThrow(FencingConfigError);
    expect(() => assertJson(at, value)).toThrow(
      `${at}: the result of an operation is stored as JSON, and ${message}. Return plain data.`,
    );
  });

  it('a circular one would not', () => {
    const circular: Record<string, unknown> = {};
    circular.self = circular;
    expect(() => assertJson(at, circular)).toThrow(FencingConfigError);
    expect(() => assertJson(at, circular)).toThrow(/circular/);
  });
});
