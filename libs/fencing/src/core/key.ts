import { FencingConfigError, LeaseKeyError } from './errors.js';

/** The parts of the current request that a key template may name. */
export interface RequestParts {
  readonly params?: unknown;
  readonly body?: unknown;
  readonly query?: unknown;
  readonly headers?: unknown;
  readonly user?: unknown;
}

/** Builds a key from the arguments of a method. A promise is awaited. */
export type KeyFunction<Args extends readonly unknown[] = readonly never[]> = (
  ...args: Args
) => string | Promise<string>;

/** What `@Leased` takes as a key: text with `{…}` places, or a function of the method's arguments. */
export type KeySource<Args extends readonly unknown[] = readonly never[]> = string | KeyFunction<Args>;

/** A `KeySource` that was checked: builds the key of one call. */
export type BuildKey = (
  args: readonly unknown[],
  request: RequestParts | undefined,
) => string | Promise<string>;

/** Bounded so that a key fits into an index entry of PostgreSQL. */
const LONGEST_KEY_BYTES = 1_024;
/** What JavaScript makes of a missing value in a text. */
const MISSING = /(?<![A-Za-z0-9%])(?:undefined|null|NaN)(?![A-Za-z0-9%])/g;
/** What it makes of an object, of a time that is none, and of a function that was not called; and a text in the wrong quotes. */
const UNREAD = /\[object \w+\]|Invalid Date|\)\s?(?:=>|\{\s)|\$\{/;
const REQUEST_PARTS: readonly string[] = ['params', 'body', 'query', 'headers', 'user'];

/**
 * Reads a key source once, at decoration.
 * @throws FencingConfigError where a template cannot be read or would make one key of different inputs
 */
export function readKeySource<Args extends readonly unknown[]>(
  where: string,
  source: KeySource<Args>,
  what = 'a lease key',
): BuildKey {
  if (typeof source === 'string') {
    const template = readTemplate(where, source, (place) => checkCallPlace(where, place));
    return (args, request) => template.fill(where, (place) => resolvePlace(where, place, args, request));
  }
  if (typeof source !== 'function') {
    throw new FencingConfigError(
      `${where}: a key is a text with {…} places or a function of the arguments, got ${typeof source}.`,
    );
  }
  return (args) => {
    const failed = (cause: unknown): never => {
      throw new LeaseKeyError(where, `the function of ${what} threw (see cause).`, cause);
    };
    let key: unknown;
    try {
      key = (source as (...args: readonly unknown[]) => unknown)(...args);
    } catch (error) {
      failed(error);
    }
    if (!isThenable(key)) return checkBuiltKey(where, key, what);
    return Promise.resolve(key).then((text) => checkBuiltKey(where, text, what), failed);
  };
}

/** Builds one key after the other; a promise only where one of them is. */
export function keysOf(
  builds: readonly BuildKey[],
  args: readonly unknown[],
  request: RequestParts | undefined,
): string[] | Promise<string[]> {
  const keys: string[] = [];
  for (const [at, build] of builds.entries()) {
    const key = build(args, request);
    if (typeof key !== 'string')
      return key.then(async (text) => [
        ...keys,
        text,
        ...(await keysOf(builds.slice(at + 1), args, request)),
      ]);
    keys.push(key);
  }
  return keys;
}

/**
 * A key that services share: a template with named places, checked by the compiler.
 *
 * `export const reportKey = leaseKey('report:{customerId}')`, and then
 * `@Leased((customerId: string) => reportKey({ customerId }))`.
 *
 * Values are escaped, so that two different values never make one key. A missing, empty or non-scalar value throws
 * `LeaseKeyError`.
 */
export function leaseKey<const Template extends string>(template: Template): LeaseKey<Template> {
  const where = `leaseKey('${template}')`;
  const parsed = readTemplate(where, template, (place) => {
    if (!/^[A-Za-z_]\w*$/.test(place)) {
      throw new FencingConfigError(`${where}: {${place}} is not a name. Write {id} and pass { id }.`);
    }
  });
  const build = (values?: Record<string, unknown>) => parsed.fill(where, (place) => values?.[place]);
  return Object.assign(build, { template });
}

/** What `leaseKey()` gives. */
export interface LeaseKey<Template extends string> {
  (
    ...values: PlacesOf<Template> extends never ? [] : [{ readonly [Place in PlacesOf<Template>]: KeyPart }]
  ): string;
  /** The template, for key maps. */
  readonly template: Template;
}

/** What may stand in a key. */
export type KeyPart = string | number | bigint | boolean;

type PlacesOf<Template extends string> = Template extends `${string}{${infer Place}}${infer Rest}`
  ? Place | PlacesOf<Rest>
  : never;

/**
 * @returns the key itself
 * @throws LeaseKeyError unless it is a non-empty, well-formed text of at most 1024 bytes in UTF-8
 */
export function checkKey(where: string, key: unknown, what = 'a lease key'): string {
  if (typeof key !== 'string') throw new LeaseKeyError(where, `${what} must be text, got ${kindOf(key)}.`);
  if (key.trim() === '') throw new LeaseKeyError(where, `${what} must not be empty.`);
  if (key.includes('\0')) throw new LeaseKeyError(where, `${what} must not contain the character U+0000.`);
  if (!isWellFormed(key))
    throw new LeaseKeyError(
      where,
      `${what} must be well-formed Unicode, this one has half a surrogate pair.`,
    );
  if (key.length * 3 > LONGEST_KEY_BYTES && Buffer.byteLength(key) > LONGEST_KEY_BYTES) {
    throw new LeaseKeyError(
      where,
      `${what} must not be longer than ${LONGEST_KEY_BYTES} bytes; hash the long part.`,
    );
  }
  return key;
}

/** Texts and places alternate: `texts[0] {places[0]} texts[1] …`. */
interface Template {
  readonly texts: readonly string[];
  readonly places: readonly string[];
  fill(where: string, valueOf: (place: string) => unknown): string;
}

/** @throws FencingConfigError where a template cannot be read, or could make one key of different values */
export function readTemplate(where: string, template: string, checkPlace: (place: string) => void): Template {
  const pieces = template.split(/\{([^{}]*)\}/);
  const texts = pieces.filter((_, i) => i % 2 === 0);
  const places = pieces.filter((_, i) => i % 2 === 1).map((place) => place.trim());
  if (texts.some((text) => /[{}]/.test(text)))
    throw new FencingConfigError(`${where}: unbalanced { or } in the key '${template}'.`);
  places.forEach(checkPlace);
  // What encodeURIComponent escapes never occurs in a value, so one such character between two places keeps them apart.
  if (texts.slice(1, -1).some((text) => !/[^\w.~!*'()%-]/.test(text))) {
    throw new FencingConfigError(
      `${where}: two places of the key '${template}' need a separator such as ":" or "/" between them.`,
    );
  }
  if (places.length === 0) checkKey(where, template);
  return {
    texts,
    places,
    fill: (at, valueOf) =>
      checkKey(
        at,
        texts.reduce((key, text, i) => key + escapePart(at, places[i - 1]!, valueOf(places[i - 1]!)) + text),
      ),
  };
}

function checkCallPlace(where: string, place: string): void {
  const [root = ''] = place.split('.');
  const fromRequest = REQUEST_PARTS.includes(root) && place.includes('.');
  if (fromRequest || /^\d+$/.test(root)) return;
  throw new FencingConfigError(
    `${where}: a key has no place {${place}}. Places are {0} or {0.id} for the arguments, and {params.id}, {body.x}, {query.x}, {headers.x} or ` +
      `{user.id} for the current request; names of arguments do not exist at run time. For anything else pass a function.`,
  );
}

function resolvePlace(
  where: string,
  place: string,
  args: readonly unknown[],
  request: RequestParts | undefined,
): unknown {
  const [root = '', ...path] = place.split('.');
  let value: unknown;
  if (REQUEST_PARTS.includes(root)) {
    if (!request)
      throw new LeaseKeyError(where, `{${place}} of the key needs a request, and there is none here.`);
    value = request[root as keyof RequestParts];
    if (root === 'headers' && path[0]) path[0] = path[0].toLowerCase();
  } else {
    value = args[Number(root)];
  }
  for (const name of path) {
    if (value === undefined || value === null) break;
    try {
      value = (value as Record<string, unknown>)[name];
    } catch (error) {
      throw new LeaseKeyError(where, `{${place}} of the key cannot be read (see cause).`, error);
    }
  }
  return value;
}

/**
 * One part of a key, percent-encoded: two different texts stay different, and none can pass for a separator. Numbers count by
 * their text: 1 and '1' are the same part, since a request brings as text what a job brings as a number.
 */
function escapePart(where: string, place: string, value: unknown): string {
  const text =
    typeof value === 'string' ||
    typeof value === 'bigint' ||
    typeof value === 'boolean' ||
    (typeof value === 'number' && Number.isFinite(value))
      ? String(value)
      : undefined;
  if (text === undefined)
    throw new LeaseKeyError(where, `{${place}} of the key must be text or a number, got ${kindOf(value)}.`);
  if (text.trim() === '') throw new LeaseKeyError(where, `{${place}} of the key is empty.`);
  if (!isWellFormed(text))
    throw new LeaseKeyError(where, `{${place}} of the key is not well-formed Unicode.`);
  return encodeURIComponent(text).replace(MISSING, escapeFirst);
}

/** So that a value that is really called "null" is not taken for a missing one. */
function escapeFirst(word: string): string {
  return `%${word.charCodeAt(0).toString(16).toUpperCase()}${word.slice(1)}`;
}

/**
 * Code builds a key with `${…}`, where a missing value becomes text and serialises strangers on `order:undefined`. Such texts
 * are refused; a value that may really be called "null" goes through a template or `leaseKey`, which escape it.
 * @throws LeaseKeyError
 */
export function checkBuiltKey(where: string, key: unknown, what = 'a lease key'): string {
  const text = checkKey(where, key, what);
  const missing = (text.match(MISSING) ?? text.match(UNREAD))?.[0];
  if (missing !== undefined)
    throw new LeaseKeyError(where, `a part of ${what} is missing: "${missing}" stands in its place.`);
  if (/(^|:)\s*(:|$)/.test(text)) throw new LeaseKeyError(where, `a part of ${what} is empty.`);
  return text;
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  return typeof (value as PromiseLike<unknown> | undefined)?.then === 'function';
}

function isWellFormed(text: string): boolean {
  return (text as string & { isWellFormed(): boolean }).isWellFormed();
}

function kindOf(value: unknown): string {
  return value === null
    ? 'null'
    : typeof value === 'number'
      ? String(value)
      : typeof value === 'object'
        ? 'an object'
        : typeof value;
}
