import { createHash } from 'node:crypto';
import { FencingConfigError } from './errors.js';

/** A path of names this long, in characters, leads round in a circle. */
const DEEPEST_PATH = 4_000;

/**
 * Tells two payloads apart: a hash of the arguments as JSON with sorted names.
 * @throws FencingConfigError where an argument has no JSON form
 */
export function fingerprintOf(where: string, args: readonly unknown[]): string {
  const read = (_name: string, value: unknown): unknown => {
    if (typeof value === 'bigint') return `${value}n`;
    if (
      typeof value === 'function' ||
      typeof value === 'symbol' ||
      (typeof value === 'number' && !Number.isFinite(value))
    ) {
      const kind = typeof value === 'number' ? String(value) : `a ${typeof value}`;
      throw new FencingConfigError(
        `${where}: an operation's arguments are compared as JSON, and one contains ${kind}. Pass plain data.`,
      );
    }
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return value;
    if (value instanceof Map || value instanceof Set) {
      throw new FencingConfigError(
        `${where}: an operation's arguments are compared as JSON, which would make {} of a Map or Set. Pass plain data.`,
      );
    }
    return Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)));
  };
  let text: string;
  try {
    text = JSON.stringify(args, read);
  } catch (error) {
    if (error instanceof FencingConfigError) throw error;
    throw new FencingConfigError(
      `${where}: an operation's arguments are compared as JSON, which they have none of (is one circular?). Pass plain data.`,
      error,
    );
  }
  return createHash('sha256').update(text).digest('hex');
}

/**
 * The result of an operation is stored, and given to every later sender: it must survive JSON unchanged.
 * @throws FencingConfigError naming the part that would not
 */
export function assertJson(where: string, value: unknown, path = 'the result'): void {
  if (path.length > DEEPEST_PATH) {
    throw new FencingConfigError(
      `${where}: the result of an operation is stored as JSON, and it is circular or nested too deeply. Return plain data.`,
    );
  }
  if (value === undefined || value === null || typeof value === 'string' || typeof value === 'boolean')
    return;
  if (typeof value === 'number' && Number.isFinite(value)) return;
  if (Array.isArray(value)) {
    value.forEach((one, i) => assertJson(where, one === undefined ? NaN : one, `${path}[${i}]`));
    return;
  }
  const prototype: unknown = typeof value === 'object' ? Object.getPrototypeOf(value) : undefined;
  // Compared by name: a plain object may come from another realm.
  if (prototype === null || prototype?.constructor?.name === 'Object') {
    for (const [name, one] of Object.entries(value)) assertJson(where, one, `${path}.${name}`);
    return;
  }
  const kind =
    typeof value === 'object'
      ? (value.constructor?.name ?? 'an object')
      : typeof value === 'number'
        ? String(value)
        : typeof value;
  throw new FencingConfigError(
    `${where}: the result of an operation is stored as JSON, and ${path} is ${kind}. Return plain data.`,
  );
}
