import { createHash } from 'node:crypto';
import { FencingConfigError } from './errors.js';

/**
 * Tells two payloads apart: a hash of the arguments as JSON with sorted names.
 * @throws FencingConfigError where an argument has no JSON form
 */
export function fingerprintOf(where: string, args: readonly unknown[]): string {
  const text = JSON.stringify(args, (_name, value: unknown) => {
    if (typeof value === 'bigint') return `${value}n`;
    if (typeof value === 'function' || typeof value === 'symbol') {
      throw new FencingConfigError(`${where}: an operation's arguments are compared as JSON, and one contains a ${typeof value}. Pass plain data.`);
    }
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return value;
    if (value instanceof Map || value instanceof Set) {
      throw new FencingConfigError(`${where}: an operation's arguments are compared as JSON, which would make {} of a Map or Set. Pass plain data.`);
    }
    return Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)));
  });
  return createHash('sha256').update(text).digest('hex');
}

/**
 * The result of an operation is stored, and given to every later sender: it must survive JSON unchanged.
 * @throws FencingConfigError naming the part that would not
 */
export function assertJson(where: string, value: unknown, path = 'the result'): void {
  if (value === undefined || value === null || typeof value === 'string' || typeof value === 'boolean') return;
  if (typeof value === 'number' && Number.isFinite(value)) return;
  if (Array.isArray(value)) {
    value.forEach((one, i) => assertJson(where, one === undefined ? NaN : one, `${path}[${i}]`));
    return;
  }
  const prototype: unknown = typeof value === 'object' ? Object.getPrototypeOf(value) : undefined;
  // Compared by name: a plain object may come from another realm.
  if (prototype === null || (prototype as { constructor?: { name?: string } } | undefined)?.constructor?.name === 'Object') {
    for (const [name, one] of Object.entries(value as object)) assertJson(where, one, `${path}.${name}`);
    return;
  }
  const kind = typeof value === 'object' ? ((value as object).constructor?.name ?? 'an object') : typeof value === 'number' ? String(value) : typeof value;
  throw new FencingConfigError(`${where}: the result of an operation is stored as JSON, and ${path} is ${kind}. Return plain data.`);
}
