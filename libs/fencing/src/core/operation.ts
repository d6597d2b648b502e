import { createHash } from 'node:crypto';
import { FencingConfigError } from './errors.js';

/** Deeper results are refused before they exhaust the stack. */
const DEEPEST = 500;

/** Marks what JSON has no form for. A name of the payload that begins with it gets a second one, so nothing else looks so. */
const MARK = '\0';

/**
 * Tells two payloads apart: a hash of the arguments as JSON with sorted names. A bigint differs from every number and text.
 * @throws FencingConfigError where an argument has no JSON form, or one that says nothing of it
 */
export function fingerprintOf(where: string, args: readonly unknown[]): string {
  const refuse = (problem: string): never => {
    throw new FencingConfigError(
      `${where}: an operation's arguments are compared as JSON, ${problem}. Pass plain data.`,
    );
  };
  function read(this: Record<string, unknown>, name: string, value: unknown): unknown {
    if (typeof value === 'bigint') return { [`${MARK}bigint`]: value.toString() };
    if (typeof value === 'function' || typeof value === 'symbol')
      refuse(`and one contains a ${typeof value}`);
    if (typeof value === 'number' && !Number.isFinite(value)) refuse(`and one contains ${value}`);
    // JSON makes null of it, before it comes here.
    if (value === null && this[name] instanceof Date) refuse('and one contains an invalid Date');
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return value;
    if (isOpaque(value)) refuse(`which would make {} of a ${kindOf(value)}`);
    return Object.fromEntries(
      Object.entries(value)
        .sort(([a], [b]) => (a < b ? -1 : 1))
        .map(([key, one]) => [key.startsWith(MARK) ? MARK + key : key, one]),
    );
  }
  let text: string;
  try {
    // An argument that is left out, and one that is given as undefined, are the same.
    text = JSON.stringify(args.slice(0, args.findLastIndex((arg) => arg !== undefined) + 1), read);
  } catch (error) {
    if (error instanceof FencingConfigError) throw error;
    throw new FencingConfigError(
      `${where}: an operation's arguments are compared as JSON, which they have none of (is one circular?). Pass plain data.`,
      error,
    );
  }
  return createHash('sha256').update(text).digest('hex');
}

const kindOf = (value: object): string => Object.prototype.toString.call(value).slice('[object '.length, -1);

/** Whether the content of an object is not in its properties: Map, Set, RegExp, Error, URLSearchParams, Promise, private fields, … */
function isOpaque(value: object): boolean {
  const kind = kindOf(value);
  if (['Map', 'Set', 'RegExp', 'Error'].includes(kind)) return true;
  if (Object.keys(value).length > 0) return false;
  if (kind !== 'Object') return !kind.endsWith('Array');
  const prototype = Object.getPrototypeOf(value) as object | null;
  // By name: a plain object may come from another realm. A class without members has nothing to hide.
  return prototype?.constructor?.name !== 'Object' && Reflect.ownKeys(prototype ?? {}).length > 1;
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
