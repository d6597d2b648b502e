import { describeKey, type KeyDescription } from '../core/key-map.js';
import { decoratedMethods } from './wrapped-methods.js';

/** A `@Leased` method and the keys that it takes. */
export interface KeyMapEntry {
  /** `Class.method`. */
  readonly method: string;
  /** The instance of `FencingModule` that it takes its leases from. */
  readonly instance: string;
  /** In the order of the decorator. */
  readonly keys: readonly KeyDescription[];
}

/**
 * The key of every `@Leased` method of the classes that this process has loaded, by method; nothing is connected or made. For
 * a test that compares two services, which `npx nestjs-fencing keys` prints for: they exclude each other only where their keys
 * have one shape.
 *
 * ```ts
 * const { shape } = keyMap().find(({ method }) => method === 'ReportsService.rebuild')!.keys[0]!;   // 'report:{}'
 * ```
 * A key function is called once or more with stand-ins for its arguments; where it does something with them that text and plain
 * objects cannot do, `template` is `null` and `source` its text.
 */
export function keyMap(): KeyMapEntry[] {
  return decoratedMethods()
    .filter(({ lease }) => lease !== undefined)
    .map(({ where, instanceName, lease }) => ({
      method: where,
      instance: instanceName,
      keys: lease!.keys.map(describeKey),
    }))
    .sort((a, b) => (a.method < b.method ? -1 : 1));
}
