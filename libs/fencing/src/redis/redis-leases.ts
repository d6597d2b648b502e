import { FencingConfigError } from '../core/errors.js';
import type { LeaseStore } from '../core/lease-store.js';
import { checkNames } from '../core/options.js';
import { isCluster, type RedisClient, type RedisClusterClient } from './redis-client.js';
import { checkPrefix, connectTo, isClient, isRedisUrl } from './redis-connection.js';
import { RedisLeaseStore } from './redis-lease-store.js';
import { checkReplicas, type ReplicasOptions } from './replica-acks.js';

const WHO = 'redisLeases';

/** Options of `redisLeases`. */
export interface RedisLeasesOptions {
  /**
   * Begins the name of every Redis key of the package. Applications that protect the same resources must use the same one.
   * @default 'fencing'
   */
  prefix?: string;
  /**
   * Waits until replicas have a grant before it is given (WAIT); otherwise it is given back and the call is *unavailable*. A failover
   * then loses fewer running leases. It makes nothing safer: that is the fence's.
   * @default nobody is waited for
   */
  replicas?: ReplicasOptions;
}

/** Lets the package open (and close) its own connection; needs the package `ioredis`. */
export interface RedisConnectionOptions extends RedisLeasesOptions {
  /** `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS. */
  url: string;
}

/**
 * Leases in Redis 6.2 or newer (or Valkey), standalone or behind Sentinel, or in a Redis Cluster (7.0 or newer).
 *
 * Takes the ioredis client (5 or 6; `Redis` or `Cluster`) that the application already has, which stays the application's to close,
 * or the URL of a server. A second connection, for hints to waiting callers, is opened when somebody first waits; on a cluster one to
 * each master that somebody waits at.
 *
 * ```ts
 * FencingModule.forRoot({ leases: redisLeases(new Redis(url)) })
 * ```
 * @throws FencingConfigError where an argument is wrong
 */
export function redisLeases(
  client: RedisClient | RedisClusterClient,
  options?: RedisLeasesOptions,
): LeaseStore;
export function redisLeases(connection: RedisConnectionOptions): Promise<LeaseStore>;
export function redisLeases(
  clientOrConnection: RedisClient | RedisClusterClient | RedisConnectionOptions,
  options: RedisLeasesOptions = {},
): LeaseStore | Promise<LeaseStore> {
  if (isClient(clientOrConnection) || isCluster(clientOrConnection)) {
    checkNames('redisLeases', options, ['prefix', 'replicas']);
    return new RedisLeaseStore(clientOrConnection, {
      prefix: checkPrefix(WHO, options.prefix),
      ownsClient: false,
      replicas: checkReplicas(options.replicas, clientOrConnection),
    });
  }
  checkNames('redisLeases', clientOrConnection, ['url', 'prefix', 'replicas']);
  const { url } = clientOrConnection;
  const prefix = checkPrefix(WHO, clientOrConnection.prefix);
  const replicas = checkReplicas(clientOrConnection.replicas);
  if (!isRedisUrl(url)) {
    throw new FencingConfigError(
      "redisLeases: give an ioredis client, or { url } with a text like 'redis://localhost:6379'.",
    );
  }
  return connectTo(url, WHO).then(
    (client) => new RedisLeaseStore(client, { prefix, ownsClient: true, replicas }),
  );
}
