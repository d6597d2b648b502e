import { describe, expect, it } from '@jest/globals';
import { createHash } from 'node:crypto';
import { type KeySource, leaseKey } from './key.js';
import { describeKey } from './key-map.js';

const reportKey = leaseKey('report:{customerId}');

describe('a key is described by its template and its shape:', () => {
  it.each<[string, KeySource, string, string]>([
    ['a text', 'report:{0}', 'report:{0}', 'report:{}'],
    ['a text with paths', 'order:{0.tenant}/{params.id}', 'order:{0.tenant}/{params.id}', 'order:{}/{}'],
    ['a text without places', 'nightly', 'nightly', 'nightly'],
    ['a function of a text', (id: string) => `report:${id}`, 'report:{0}', 'report:{}'],
    ['a function of the second argument', (_a: string, b: string) => `x:${b}`, 'x:{1}', 'x:{}'],
    ['a function of a field', (order: { id: string }) => `order:${order.id}`, 'order:{0.id}', 'order:{}'],
    [
      'a function of a deep field',
      (order: { customer: { id: string } }) => `order:${order.customer.id}`,
      'order:{0.customer.id}',
      'order:{}',
    ],
    [
      'a function of a text and a field',
      (tenant: string, order: { id: string }) => `${tenant}:order:${order.id}`,
      '{0}:order:{1.id}',
      '{}:order:{}',
    ],
    [
      'a leaseKey inside a function',
      (id: string) => reportKey({ customerId: id }),
      'report:{0}',
      'report:{}',
    ],
    [
      'a leaseKey of a field',
      (order: { id: string }) => reportKey({ customerId: order.id }),
      'report:{0.id}',
      'report:{}',
    ],
    ['a leaseKey itself', reportKey, 'report:{customerId}', 'report:{}'],
    ['a constant function', () => 'nightly', 'nightly', 'nightly'],
    ['a function that changes case', (id: string) => `r:${id.trim()}`, 'r:{0}', 'r:{}'],
  ])('%s', (_, source, template, shape) => {
    expect(describeKey(source)).toEqual({ template, shape });
  });

  it.each<[string, KeySource]>([
    ['hides its argument', (id: string) => createHash('sha1').update(id).digest('hex')],
    ['looks an argument up', (id: string) => ({ a: 'x' })[id]!],
    ['is asynchronous', async (id: string) => `report:${id}`],
    ['is asynchronous and fails', async () => Promise.reject(new Error('nobody there'))],
    ['does what stand-ins cannot', (ids: string[]) => ids.map((id) => id.slice(1)).join('+')],
  ])('a function that %s is shown as its text', (_, source) => {
    expect(describeKey(source)).toEqual({ template: null, shape: null, source: String(source) });
  });
});
