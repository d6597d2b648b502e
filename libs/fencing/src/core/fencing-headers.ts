import { FencingHeadersError } from './errors.js';
import { checkKey } from './key.js';
import { heldLease, leaseOfCall } from './lease-of-call.js';
import type { Lease } from './lease.js';
import type { Grant } from './lease-store.js';

const KEY = 'Fencing-Key';
const GENERATION = 'Fencing-Generation';
const OWNER = 'Fencing-Owner';

/** A grant as texts that any transport carries; key and owner are percent-encoded. */
export type FencingHeaders = Readonly<Record<typeof KEY | typeof GENERATION | typeof OWNER, string>>;

/** Owners are random; a longer one is an attack on somebody's memory. */
const LONGEST_OWNER = 256;

/**
 * The lease of the current call for another service, whose `@AcceptFencing` handler takes it up:
 *
 * ```ts
 * await fetch(url, { method: 'POST', headers: { ...fencingHeaders() } });
 * await firstValueFrom(http.post(url, body, { headers: { ...fencingHeaders() } }));     // HttpService, axios
 * await firstValueFrom(client.send('charge', { ...order, ...fencingHeaders() }));       // microservice clients: in the message
 * ```
 * The other service learns that the caller held the lease, not for how long: send it once, with each request.
 * @param lease where the call stands on several
 * @throws NoLeaseError, FencingConfigError where several leases leave it open which one, or why the lease has ended
 */
export function fencingHeaders(lease?: Lease): FencingHeaders {
  const { key, generation, owner } =
    lease === undefined
      ? leaseOfCall('fencingHeaders()', 'fencingHeaders(lease)')
      : heldLease('fencingHeaders()', lease);
  return {
    [KEY]: encodeURIComponent(key),
    [GENERATION]: String(generation),
    [OWNER]: encodeURIComponent(owner),
  };
}

/**
 * The grant in headers, or in a message; `undefined` where there is none.
 * @throws FencingHeadersError where it cannot be read
 */
export function readFencingHeaders(source: Readonly<Record<string, unknown>>): Grant | undefined {
  const [key, generation, owner] = [KEY, GENERATION, OWNER].map(
    (name) => source[name] ?? source[name.toLowerCase()],
  );
  if (key === undefined && generation === undefined && owner === undefined) return undefined;
  return { key: readKey(key), generation: readGeneration(generation), owner: readOwner(owner) };
}

/** `source` without a grant's fields. */
export function withoutFencingHeaders(source: Readonly<Record<string, unknown>>): Record<string, unknown> {
  const names = [KEY, GENERATION, OWNER].flatMap((name) => [name, name.toLowerCase()]);
  return Object.fromEntries(Object.entries(source).filter(([name]) => !names.includes(name)));
}

function readKey(value: unknown): string {
  const key = decode(KEY, value);
  try {
    return checkKey(KEY, key);
  } catch {
    throw malformed(`${KEY} is no lease key`);
  }
}

function readGeneration(value: unknown): number {
  // One text for one number: no sign, no leading zero, no exponent.
  if (typeof value === 'string' && /^[1-9]\d{0,15}$/.test(value) && Number.isSafeInteger(Number(value)))
    return Number(value);
  throw malformed(`${GENERATION} is no generation (a whole number from 1 to 2^53 - 1)`);
}

function readOwner(value: unknown): string {
  const owner = decode(OWNER, value);
  if (owner !== '' && owner.length <= LONGEST_OWNER && !owner.includes('\0')) return owner;
  throw malformed(`${OWNER} is no owner`);
}

/** Only what `encodeURIComponent` makes: a header that came twice, which HTTP joins with a comma, is none. */
function decode(name: string, value: unknown): string {
  if (value === undefined) throw malformed(`${name} is missing`);
  try {
    const text = typeof value === 'string' ? decodeURIComponent(value) : undefined;
    if (text !== undefined && encodeURIComponent(text) === value) return text;
  } catch {
    // Said below.
  }
  throw malformed(`${name} is not percent-encoded text`);
}

function malformed(problem: string): FencingHeadersError {
  return new FencingHeadersError('malformed', `${problem}.`);
}
