import { createHash } from 'node:crypto';
import { FencingConfigError } from './errors.js';

/** Deeper results are refused before they exhaust the stack. */
const DEEPEST = 500;

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
export function assertJson(where: string, value: unknown, path = 'the result', inside: object[] = []): void {
  const refuse = (problem: string, at = path): never => {
    throw new FencingConfigError(
      `${where}: the result of an operation is stored as JSON, and ${at} is ${problem}. Return plain data.`,
    );
  };
  if (value === undefined || value === null || typeof value === 'boolean') return;
  if (typeof value === 'string') {
    // PostgreSQL's jsonb has no place for either.
    if (/\0|\p{Surrogate}/u.test(value)) refuse('a text with U+0000 or half a surrogate pair');
    return;
  }
  if (typeof value === 'number') {
    if (!Number.isFinite(value)) refuse(String(value));
    return;
  }
  if (typeof value !== 'object') return refuse(typeof value);
  if (inside.includes(value)) refuse('circular: part of itself');
  if (inside.length > DEEPEST) refuse('nested too deeply');
  const parts = [...inside, value];
  if (Array.isArray(value)) {
    // By index: a hole would be skipped, and JSON makes null of it.
    for (let i = 0; i < value.length; i++) {
      if (value[i] === undefined) refuse('undefined', `${path}[${i}]`);
      assertJson(where, value[i], `${path}[${i}]`, parts);
    }
    return;
  }
  const prototype = Object.getPrototypeOf(value) as object | null;
  // Compared by name: a plain object may come from another realm.
  if (prototype !== null && prototype.constructor?.name !== 'Object') {
    refuse(prototype.constructor?.name ?? 'an object with a prototype');
  }
  for (const [name, one] of Object.entries(value)) {
    assertJson(where, name, `a name in ${path}`, parts);
    assertJson(where, one, `${path}.${name}`, parts);
  }
}
