import { describe, expect, it } from '@jest/globals';
import { bucketOf } from './buckets.js';
import { FencingConfigError, LeaseKeyError } from './errors.js';
import {
  checkBuiltKey,
  checkKey,
  type KeySource,
  leaseKey,
  readKeySource,
  type RequestParts,
} from './key.js';
import { keyLabel } from './key-label.js';

const at = '@Leased on Reports.rebuild';
const key = (source: unknown, args: unknown[] = [], request?: RequestParts) =>
  readKeySource(at, source as KeySource)(args, request);

/** A generator of pseudo-random numbers: failures can be repeated. */
function random(seed: number): (below: number) => number {
  return (below) => {
    // mulberry32
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return Math.floor((((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32) * below);
  };
}

describe('a key template', () => {
  it('takes arguments, their fields, and parts of the request', () => {
    expect(key('report:{0}', ['42'])).toBe('report:42');
    expect(key('report:{ 0 }', ['42'])).toBe('report:42');
    expect(key('report:{1.customer.id}', [0, { customer: { id: 7n } }])).toBe('report:7');
    expect(key('{0}', [true])).toBe('true');
    expect(key('{0.length}', ['four'])).toBe('4');
    const request = { params: { id: 'p' }, headers: { 'x-tenant': 'acme' }, user: { id: 3 } };
    expect(key('{params.id}/{headers.X-Tenant}/{user.id}', [], request)).toBe('p/acme/3');
    expect(key('static')).toBe('static');
  });

  it('does not escape what the author wrote, and escapes what comes from outside', () => {
    expect(key('räum €:{0}', ['a:b/c{d} e%f'])).toBe('räum €:a%3Ab%2Fc%7Bd%7D%20e%25f');
  });

  it('counts numbers by their text: what a job brings as 1 a request brings as "1"', () => {
    expect(key('n:{0}', [1])).toBe(key('n:{0}', ['1']));
    expect(key('n:{0}', [-0])).toBe(key('n:{0}', [0]));
    expect(key('n:{0}', [1e21])).toBe('n:1e%2B21');
  });

  it.each([
    [
      ['a', 'b:c'],
      ['a:b', 'c'],
    ],
    [
      ['1', '2'],
      ['12', ''],
    ],
    [
      ['a', 'b'],
      ['a ', 'b'],
    ],
    [
      ['É', 'x'],
      ['E\u0301', 'x'],
    ],
    [
      ['a%3A', 'b'],
      ['a:', 'b'],
    ],
    [
      ['null', 'b'],
      ['%6Eull', 'b'],
    ],
    [
      ['prod', '2:x'],
      ['prod2', 'x'],
    ],
    [
      ['*', 'x'],
      ['?', 'x'],
    ],
  ])('makes different keys of %j and %j', (one, other) => {
    const build = (tuple: string[]) => {
      try {
        return key('{0}:{1}', tuple);
      } catch {
        return undefined;
      }
    };
    expect(build(one)).toBeDefined();
    expect(build(one)).not.toBe(build(other));
  });

  it('is one to one: 10 000 random tuples of an alphabet that invites collisions', () => {
    const below = random(42);
    // Few and short ones: joined without care, hundreds of these tuples make the same key.
    const alphabet = [':', '/', '%', '3A', 'a', '%2F'];
    const part = () => Array.from({ length: 1 + below(2) }, () => alphabet[below(alphabet.length)]!).join('');
    const tuples = new Map<string, string>();
    const keys = new Map<string, string>();
    while (tuples.size < 10_000) {
      const tuple = [part(), part(), part()];
      const name = JSON.stringify(tuple);
      const made = key('{0}:{1}/{2}', tuple) as string;
      const isOneToOne = (tuples.get(name) ?? made) === made && (keys.get(made) ?? name) === name;
      if (!isOneToOne) throw new Error(`${name} and ${keys.get(made)} make ${made}`);
      tuples.set(name, made);
      keys.set(made, name);
    }
    expect(keys.size).toBe(10_000);
  });

  it.each<[string, unknown[], RegExp]>([
    ['report:{0}', [], /\{0\} of the key must be text or a number, got undefined/],
    ['report:{0}', [null], /got null/],
    ['report:{0}', [NaN], /got NaN/],
    ['report:{0}', [Infinity], /got Infinity/],
    ['report:{0}', [{}], /got an object/],
    ['report:{0}', [['1']], /got an object/],
    ['report:{0}', [Symbol('x')], /got symbol/],
    ['report:{0}', [() => '1'], /got function/],
    ['report:{0}', [''], /\{0\} of the key is empty/],
    ['report:{0}', ['  \t\n'], /\{0\} of the key is empty/],
    ['report:{0}', ['\ud800'], /not well-formed/],
    ['report:{0}', ['\udc00x'], /not well-formed/],
    ['report:{0.order.id}', [{}], /\{0\.order\.id\} .* got undefined/],
    ['report:{0.order.id}', [undefined], /\{0\.order\.id\} .* got undefined/],
    ['report:{0.constructor}', [{}], /got function/],
    ['report:{params.id}', [], /\{params\.id\} of the key needs a request, and there is none/],
    ['report:{0}', ['x'.repeat(1_018)], /must not be longer than 1024 bytes; hash the long part/],
    ['report:{0}', ['€'.repeat(120)], /must not be longer than 1024 bytes/],
  ])('%s of %j is refused by the name of the place', (template, args, message) => {
    expect(() => key(template, args)).toThrow(LeaseKeyError);
    expect(() => key(template, args)).toThrow(message);
    expect(() => key(template, args)).toThrow(/^@Leased on Reports\.rebuild: /);
  });

  it('what cannot be read is refused by the name of the place, with the cause', () => {
    const broken = new Error('broken');
    const order = {
      get id(): never {
        throw broken;
      },
    };
    expect(() => key('order:{0.id}', [order])).toThrow(LeaseKeyError);
    expect(() => key('order:{0.id}', [order])).toThrow(
      expect.objectContaining({ message: expect.stringContaining('{0.id}'), cause: broken }),
    );
  });

  it('U+0000 in a value is escaped, so it can be stored', () => {
    expect(key('n:{0}', ['\0'])).toBe('n:%00');
  });

  it.each<[unknown, RegExp]>([
    ['', /must not be empty/],
    ['   ', /must not be empty/],
    ['a\0b', /U\+0000/],
    ['report:{', /unbalanced/],
    ['report:}', /unbalanced/],
    ['report:{{0}}', /unbalanced/],
    ['report:{}', /no place \{\}/],
    ['report:{id}', /names of arguments do not exist at run time/],
    ['report:{customerId}', /no place \{customerId\}/],
    ['report:{params}', /no place \{params\}/],
    ['report:{cookies.id}', /no place \{cookies\.id\}/],
    ['report:{-1}', /no place \{-1\}/],
    ['{0}{1}', /need a separator/],
    ['{0}-{1}', /need a separator/],
    ['{0}a{1}', /need a separator/],
    ['{0}%{1}', /need a separator/],
    [undefined, /a text with .* or a function of the arguments, got undefined/],
    [null, /a function of the arguments/],
    [42, /got number/],
  ])('%j is refused when it is read', (template, message) => {
    expect(() => readKeySource(at, template as KeySource)).toThrow(message);
    expect(() => readKeySource(at, template as KeySource)).toThrow(/^@Leased on Reports\.rebuild/);
  });
});

/** A text as careless code makes it. */
const made = (...parts: unknown[]) => parts.map(String).join('');

describe('a key function', () => {
  it('gets the arguments; its text is the key as it is', () => {
    expect(key((a: string, b: number) => `${a}/${b}`, ['x', 2])).toBe('x/2');
  });

  it('may return a promise', async () => {
    await expect(key(async (a: string) => `order:${a}`, ['1'])).resolves.toBe('order:1');
    await expect(key(async (a?: string) => `order:${a}`, [])).rejects.toThrow(LeaseKeyError);
  });

  it('that throws, or rejects, is a key error with the cause', async () => {
    const broken = new Error('broken');
    const fails = () => {
      throw broken;
    };
    expect(() => key(fails)).toThrow(LeaseKeyError);
    expect(() => key(fails)).toThrow(expect.objectContaining({ cause: broken }));
    await expect(key(() => Promise.reject(broken))).rejects.toMatchObject({
      code: 'INVALID_KEY',
      cause: broken,
    });
  });

  it.each([
    `order:${undefined}`,
    `order:${null}`,
    `order:${NaN}`,
    made('order:', {}),
    made('order', {}),
    `${undefined}:order`,
    `order-${undefined}`,
    `order/${undefined}/line`,
    made('order:', []),
    made('order:', [], ':line'),
    `${''}:order`,
    'order:   ',
    ' :order',
    'undefined',
    made('order:', new Date(NaN)),
    made('order:', () => 1),
    made('order:', 'x'.trim),
    made('order:', new (class Dto { id(): number { return 1; } })().id), // prettier-ignore
    'order:${dto.id}',
    '',
    'a\0b',
    'half \ud800',
    'x'.repeat(1_025),
  ])('whose text is %j is refused', (text) => {
    expect(() => key(() => text)).toThrow(LeaseKeyError);
  });

  it.each([
    'order:nullable',
    'undefinedness',
    'annull',
    'NaNcy',
    'a:b',
    'a=>b',
    '$1',
    'f(x)',
    'x'.repeat(1_024),
  ])('whose text is %j is fine', (text) => {
    expect(key(() => text)).toBe(text);
  });

  it.each([undefined, null, 42, {}, Symbol('x')])('that returns %p is refused', (value) => {
    expect(() => key(() => value)).toThrow(/a lease key must be text, got/);
  });
});

describe('leaseKey', () => {
  const reportKey = leaseKey('report:{customerId}/{year}');

  it('makes the key of named values, and shows its template', () => {
    expect(reportKey({ customerId: 'a b', year: 2026 })).toBe('report:a%20b/2026');
    expect(reportKey.template).toBe('report:{customerId}/{year}');
    expect(leaseKey('all')()).toBe('all');
  });

  it('goes well with a key function, also for customers who are called Null', () => {
    for (const customerId of ['null', 'undefined', 'NaN', 'a-null', '[object Object]', ':']) {
      const made = reportKey({ customerId, year: 1 });
      expect(key(() => made)).toBe(made);
      expect(decodeURIComponent(made)).toBe(`report:${customerId}/1`);
    }
  });

  it('refuses missing values, by name', () => {
    const wrong = { customerId: undefined, year: 1 } as never;
    expect(() => reportKey(wrong)).toThrow(LeaseKeyError);
    expect(() => reportKey(wrong)).toThrow(
      /\{customerId\} of the key must be text or a number, got undefined/,
    );
    expect(() => (reportKey as unknown as () => string)()).toThrow(LeaseKeyError);
    expect(() => reportKey(null as never)).toThrow(LeaseKeyError);
  });

  it('refuses templates that it cannot fill', () => {
    expect(() => leaseKey('report:{0}')).toThrow(FencingConfigError);
    expect(() => leaseKey('report:{a.b}')).toThrow(/\{a\.b\} is not a name/);
    expect(() => leaseKey('')).toThrow(LeaseKeyError);
  });

  it('is checked by the compiler', () => {
    // @ts-expect-error a value is missing
    expect(() => reportKey({ customerId: '1' })).toThrow(LeaseKeyError);
    // @ts-expect-error no values at all
    expect(() => reportKey()).toThrow(LeaseKeyError);
    // @ts-expect-error a value that cannot stand in a key
    expect(() => reportKey({ customerId: '1', year: new Date(0) })).toThrow(LeaseKeyError);
    // @ts-expect-error a name that is not in the template
    expect(reportKey({ customerId: '1', year: 1, month: 2 })).toBe('report:1/1');
    // @ts-expect-error there is nothing to fill
    expect(leaseKey('all')({ id: 1 })).toBe('all');
  });
});

describe('keys everywhere', () => {
  it.each([undefined, null, 1, {}, ['a']])('%p is no key', (value) => {
    expect(() => checkKey('FencingService.inspect', value)).toThrow(
      /^FencingService\.inspect: a lease key must be text/,
    );
    expect(() => checkBuiltKey('x', value, 'an operation id')).toThrow(/^x: an operation id must be text/);
  });

  it('a label names a key without showing it', () => {
    expect(keyLabel('customer:jane')).toMatch(/^#[0-9a-f]{10}$/);
    expect(keyLabel('customer:jane')).toBe(keyLabel('customer:jane'));
    expect(keyLabel('customer:jane')).not.toBe(keyLabel('customer:john'));
  });

  it('the buckets are what they were in every earlier version: deployments mix', () => {
    expect(['a', 'report:42', 'É', '😀'].map(bucketOf)).toEqual([3, 19, 54, 4]);
  });
});
