import 'reflect-metadata';
import type { LeaseStore } from '../core/lease-store.js';
import type { AdoptedMethod } from './adopt-instances.js';
import type { LeaseMark } from './wrapped-methods.js';

/** A `@Leased` method with the options that hold for it. */
export interface LeasedMethod {
  /** `Class.method`. */
  readonly where: string;
  readonly lease: LeaseMark;
  readonly ttlMs: number;
}

/** How many requests must fit into a ttl: a renewal is sent at a third of it, and one more try should have a chance. */
const LEAST_ROUND_TRIPS = 3;
/** Names nothing that an application leases. */
const PROBE_KEY = 'nestjs-fencing/boot';

/** Mistakes that run without an error and are wrong all the same, as sentences. What is certainly wrong stops the boot elsewhere. */
export async function reportMistakes(
  methods: readonly LeasedMethod[],
  defaultTtlMs: number,
  store: LeaseStore,
  now: () => number,
): Promise<string[]> {
  const tripMs = await roundTripMs(store, now, Math.min(defaultTtlMs, ...methods.map(({ ttlMs }) => ttlMs)));
  const [least, trip] = [Math.ceil(tripMs * LEAST_ROUND_TRIPS), tripMs.toFixed(1)];
  const tooShort = (where: string, ttlMs: number) =>
    ttlMs < least
      ? [
          `${where}: ttlMs is ${ttlMs}, and one request to the lease store took ${trip} ms at boot: one slow renewal loses the lease. ` +
            `Set ttlMs to ${least} at least, or bring the store nearer.`,
        ]
      : [];
  return [
    ...methods.flatMap(constantKey),
    ...methods.flatMap(({ where, ttlMs }) => tooShort(`@Leased on ${where}`, ttlMs)),
    ...tooShort('FencingModule defaults', defaultTtlMs),
  ];
}

/** What a decorated method cannot return, as `emitDecoratorMetadata` notes it: a caller gets a promise of it. */
const PLAIN: readonly unknown[] = [String, Number, Boolean, BigInt, Array, Date];

/** Methods that say that they are synchronous, as sentences. The compiler refuses them; a builder that strips types does not. */
export function reportSynchronous(methods: readonly AdoptedMethod[]): string[] {
  const mistakes = methods.flatMap(({ constructor, name, where, decorator }) => {
    const { prototype } = constructor as { prototype: object };
    const returns = Reflect.getMetadata('design:returntype', prototype, name) as { name: string } | undefined;
    return PLAIN.includes(returns)
      ? [
          `${decorator} on ${where}: the method returns a ${returns!.name}, and its callers get a promise of one, since a lease has to be asked ` +
            'for. Make the method async, and await it.',
        ]
      : [];
  });
  // Descendants bring the methods of their ancestors again.
  return [...new Set(mistakes)];
}

/** A text without places on a method with parameters: all calls exclude each other, whatever they are about. */
function constantKey({ where, lease }: LeasedMethod): string[] {
  const [first] = lease.keys;
  const isConstant = lease.keys.every((key) => typeof key === 'string' && !key.includes('{'));
  if (!isConstant || lease.parameters === 0) return [];
  return [
    `@Leased on ${where}: the key '${String(first)}' names no parameter, and the method has ${lease.parameters}: all calls exclude ` +
      `each other. Name one, e.g. '${String(first)}:{0}'; where one key for all is meant, say so by a function: () => '${String(first)}'.`,
  ];
}

/** The quickest of up to three requests, so that one slow answer accuses nobody; one, where that settles it. */
async function roundTripMs(store: LeaseStore, now: () => number, smallestTtlMs: number): Promise<number> {
  let quickest = Infinity;
  for (let i = 0; i < 3 && quickest * LEAST_ROUND_TRIPS > smallestTtlMs; i++) {
    const sentAt = now();
    await store.inspect(PROBE_KEY);
    quickest = Math.min(quickest, now() - sentAt);
  }
  return quickest;
}
