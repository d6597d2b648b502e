import { describe, expect, it } from '@jest/globals';
import { FencingHeadersError } from './errors.js';
import { readFencingHeaders, withoutFencingHeaders } from './fencing-headers.js';

const GRANT = { key: 'report:42', generation: 7, owner: 'an-owner' };
const HEADERS = { 'Fencing-Key': 'report%3A42', 'Fencing-Generation': '7', 'Fencing-Owner': 'an-owner' };

describe('the grant in headers', () => {
  it('is read as it was sent, in upper and in lower case', () => {
    const lower = Object.fromEntries(
      Object.entries(HEADERS).map(([name, value]) => [name.toLowerCase(), value]),
    );
    expect(readFencingHeaders(HEADERS)).toEqual(GRANT);
    expect(readFencingHeaders({ host: 'a', ...lower })).toEqual(GRANT);
  });

  it('is none where no field of it is there', () =>
    expect(readFencingHeaders({ host: 'a' })).toBeUndefined());

  it('is taken out of a message without touching the rest', () =>
    expect(withoutFencingHeaders({ id: 1, ...HEADERS })).toEqual({ id: 1 }));

  const malformed: Record<string, Record<string, unknown>> = {
    'no key': { 'Fencing-Key': undefined },
    'an empty key': { 'Fencing-Key': '' },
    'a blank key': { 'Fencing-Key': '%20' },
    'a key of bytes that are no UTF-8': { 'Fencing-Key': '%FF' },
    'a key with half an escape': { 'Fencing-Key': 'a%2' },
    'a key that is not escaped': { 'Fencing-Key': 'report:42' },
    'two keys, as HTTP joins them': { 'Fencing-Key': 'report%3A42, report%3A43' },
    'two keys as a list': { 'Fencing-Key': ['report%3A42', 'report%3A43'] },
    'a key with U+0000': { 'Fencing-Key': 'a%00' },
    'a key that is too long': { 'Fencing-Key': 'a'.repeat(1_025) },
    'no generation': { 'Fencing-Generation': undefined },
    'a generation of 0': { 'Fencing-Generation': '0' },
    'a negative generation': { 'Fencing-Generation': '-7' },
    'a generation with a sign': { 'Fencing-Generation': '+7' },
    'a generation with a leading zero': { 'Fencing-Generation': '07' },
    'a generation with a space': { 'Fencing-Generation': ' 7' },
    'a generation with an exponent': { 'Fencing-Generation': '1e3' },
    'a generation in hexadecimal': { 'Fencing-Generation': '0x7' },
    'a fraction as generation': { 'Fencing-Generation': '7.5' },
    'a generation above 2^53 - 1': { 'Fencing-Generation': '9007199254740992' },
    'two generations': { 'Fencing-Generation': '7, 8' },
    'a generation as a number': { 'Fencing-Generation': 7 },
    'no owner': { 'Fencing-Owner': undefined },
    'an empty owner': { 'Fencing-Owner': '' },
    'an owner that is too long': { 'Fencing-Owner': 'a'.repeat(257) },
    'an owner with U+0000': { 'Fencing-Owner': 'a%00' },
  };
  it.each(Object.entries(malformed))('is refused with %s, without showing it', (_, fields) => {
    let error: unknown;
    try {
      readFencingHeaders({ ...HEADERS, ...fields });
    } catch (thrown) {
      error = thrown;
    }
    expect(error).toBeInstanceOf(FencingHeadersError);
    expect(error).toMatchObject({ reason: 'malformed' });
    expect(String(error)).not.toMatch(/42|43/);
  });
});
