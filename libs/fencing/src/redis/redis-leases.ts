import { FencingConfigError } from '../core/errors.js';
import type { LeaseStore } from '../core/lease-store.js';
import { checkNames } from '../core/options.js';
import type { RedisClient } from './redis-client.js';
import { RedisLeaseStore } from './redis-lease-store.js';

export interface RedisLeasesOptions {
  /**
   * Begins the name of every Redis key of the package. Applications that protect the same resources must use the same one.
   * @default 'fencing'
   */
  prefix?: string;
}

/** Lets the package open (and close) its own connection; needs the package `ioredis`. */
export interface RedisConnectionOptions extends RedisLeasesOptions {
  /** `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS. */
  url: string;
}

/**
 * Leases in Redis 6.2 or newer (or Valkey), standalone or behind Sentinel.
 *
 * Takes the ioredis client (5 or 6) that the application already has, which stays the application's to close, or the URL of a
 * server. A second connection, for hints to waiting callers, is opened when somebody first waits.
 *
 * @throws FencingConfigError where an argument is wrong
 */
export function redisLeases(client: RedisClient, options?: RedisLeasesOptions): LeaseStore;
export function redisLeases(connection: RedisConnectionOptions): Promise<LeaseStore>;
export function redisLeases(
  clientOrConnection: RedisClient | RedisConnectionOptions,
  options: RedisLeasesOptions = {},
): LeaseStore | Promise<LeaseStore> {
  if (isClient(clientOrConnection)) {
    checkNames('redisLeases', options, ['prefix']);
    return new RedisLeaseStore(clientOrConnection, {
      prefix: checkPrefix(options.prefix),
      ownsClient: false,
    });
  }
  checkNames('redisLeases', clientOrConnection, ['url', 'prefix']);
  const { url } = clientOrConnection;
  const prefix = checkPrefix(clientOrConnection.prefix);
  if (typeof url !== 'string' || !/^rediss?:\/\//.test(url)) {
    throw new FencingConfigError(
      "redisLeases: give an ioredis client, or { url } with a text like 'redis://localhost:6379'.",
    );
  }
  return connect(url).then((client) => new RedisLeaseStore(client, { prefix, ownsClient: true }));
}

async function connect(url: string): Promise<RedisClient> {
  const { Redis } = await import('ioredis').catch((error: unknown) => {
    throw new FencingConfigError(
      "redisLeases({ url }) needs the package 'ioredis': npm install ioredis.",
      error,
    );
  });
  const client = new Redis(url);
  // ioredis reconnects by itself and every call has its own deadline; without a listener it prints each error.
  client.on('error', () => undefined);
  return client;
}

function isClient(value: unknown): value is RedisClient {
  return typeof (value as RedisClient | undefined)?.evalsha === 'function';
}

/** The prefix comes before the `{bucket}` that decides the slot of a key, so it must not contain braces itself. */
function checkPrefix(prefix = 'fencing'): string {
  if (typeof prefix === 'string' && /^[^{}\s]+$/.test(prefix)) return prefix;
  throw new FencingConfigError(
    `redisLeases: prefix must be text without spaces and braces, got ${JSON.stringify(prefix)}.`,
  );
}
