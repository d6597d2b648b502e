import type { Redis } from 'ioredis';
import { systemClock } from '../core/clock.js';
import { FencingConfigError } from '../core/errors.js';
import { failureCode } from '../core/failure-code.js';
import { within } from '../core/timing.js';
import type { RedisClient } from './redis-client.js';

/** A connection of the package's own, opened when it is first used; `who` is named in messages. */
export async function connectTo(url: string, who: string): Promise<RedisClient> {
  const { Redis } = await import('ioredis').catch((error: unknown) => {
    throw new FencingConfigError(`${who}({ url }) needs the package 'ioredis': npm install ioredis.`, error);
  });
  // The call stands in the decorator of a module: whoever only loads that file (a unit test, a script) must not hang on a socket.
  const client = new Redis(url, { lazyConnect: true });
  // ioredis reconnects by itself and every call has its own deadline; without a listener it prints each error.
  client.on('error', (error) => lastErrors.set(client, error));
  return client;
}

/** Of connections of the package's own. */
const lastErrors = new WeakMap<object, Error>();

/** Why a client may be silent: what its connection is doing, and what it failed of last. */
export function silenceOf(client: { readonly status: string }): string | undefined {
  if (client.status === 'ready') return undefined;
  const error = lastErrors.get(client);
  return `its connection is ${client.status}${error ? `: ${failureCode(error)}` : ''}`;
}

/** Ends a connection of the package's own. Only one that has ended can be opened again. */
export async function disconnected(client: object, withinMs: number): Promise<void> {
  const own = client as Redis;
  // Without a socket nothing tells of its end.
  const hasSocket = own.status !== 'end' && own.status !== 'reconnecting';
  const ended = new Promise<void>((resolve) => own.once('end', resolve));
  own.disconnect();
  if (hasSocket) await within(systemClock, withinMs, ended, () => new Error('no end')).catch(() => undefined);
}

/** Opens it again. */
export function reopen(client: object): void {
  // Closed without a socket, ioredis would take the first loss of the new one for that end, and not connect again.
  Object.assign(client, { manuallyClosing: false });
  void (client as Redis).connect().catch(() => undefined);
}

export function isRedisUrl(url: unknown): url is string {
  return typeof url === 'string' && /^rediss?:\/\//.test(url);
}

export function isClient(value: unknown): value is RedisClient {
  return typeof (value as RedisClient | undefined)?.evalsha === 'function';
}

/** The prefix comes before the `{bucket}` that decides the slot of a key, so it must not contain braces itself. */
export function checkPrefix(who: string, prefix: unknown = 'fencing'): string {
  if (typeof prefix === 'string' && /^[^{}\s]+$/.test(prefix)) return prefix;
  throw new FencingConfigError(
    `${who}: prefix must be text without spaces and braces, got ${JSON.stringify(prefix)}.`,
  );
}
