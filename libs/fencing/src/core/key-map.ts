import { checkBuiltKey, type KeySource } from './key.js';

/** A key of a decorated method, as far as it can be known without a call. */
export interface KeyDescription {
  /** The key with a place for each argument it is built of, e.g. `report:{0}`; `null` where the function does not show it. */
  readonly template: string | null;
  /** The template with its places emptied, e.g. `report:{}`: what two services can compare, whatever their arguments are called. */
  readonly shape: string | null;
  /** The text of the key function, where there is no template. */
  readonly source?: string;
}

/** More arguments than any key function looks at. */
const MOST_ARGUMENTS = 16;
const PLACE = /\{[^{}]*\}/g;

/** A key function is called with stand-ins for its arguments, which show up in the key as places. */
export function describeKey(source: KeySource): KeyDescription {
  const template = typeof source === 'string' ? source : (templateOf(source) ?? drawnFrom(source));
  if (template === undefined) return { template: null, shape: null, source: String(source) };
  return { template, shape: template.replaceAll(PLACE, '{}') };
}

/** A `leaseKey()` that is the key function itself brings its template. */
function templateOf(source: object): string | undefined {
  const { template } = source as { template?: unknown };
  return typeof template === 'string' ? template : undefined;
}

function drawnFrom(source: Exclude<KeySource, string>): string | undefined {
  const build = source as (...args: unknown[]) => unknown;
  for (const standIn of [textStandIn, fieldsStandIn, deepStandIn]) {
    const args = Array.from({ length: MOST_ARGUMENTS }, (_, i) => standIn(String(i)));
    try {
      const key = build(...args);
      // An asynchronous key function asks somebody, who is not to be asked here.
      Promise.resolve(key).catch(() => undefined);
      const template = checkBuiltKey('a key', key).replaceAll(/%7B([\w.]+)%7D/g, '{$1}');
      if (PLACE_OF_ARGUMENT.test(template) || source.length === 0) return template;
    } catch {
      // These stand-ins do not do what the arguments of this function do; the next may.
    }
  }
  return undefined;
}

const PLACE_OF_ARGUMENT = /\{\d+(\.[\w.]+)?\}/;

/** For `(id) => …`. */
function textStandIn(path: string): unknown {
  return `{${path}}`;
}

/** For `(order) => … order.id`, where `id` must be text. */
function fieldsStandIn(path: string): unknown {
  return standInObject(path, textStandIn);
}

/** For `(order) => … order.customer.id`. */
function deepStandIn(path: string): unknown {
  return standInObject(path, deepStandIn);
}

function standInObject(path: string, field: (path: string) => unknown): unknown {
  return new Proxy(Object.create(null) as object, {
    get(_, name) {
      if (name === Symbol.toPrimitive || name === 'toString') return () => `{${path}}`;
      return typeof name === 'symbol' || name === 'then' ? undefined : field(`${path}.${name}`);
    },
  });
}
