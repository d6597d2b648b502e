import { FencingConfigError } from '../../core/errors.js';
import type { LeaseStore } from '../../core/lease-store.js';
import { checkMs, checkNames, show } from '../../core/options.js';
import { QuorumLeaseStore } from './quorum-lease-store.js';
import type { ServerIdentity } from './quorum-poll.js';
import type { RedisClient } from '../redis-client.js';
import { checkPrefix, connectTo, isClient, isRedisUrl } from '../redis-connection.js';
import { RedisLeaseStore } from '../redis-lease-store.js';

/** Options of `quorumLeases`. */
export interface QuorumLeasesOptions {
  /**
   * Begins the name of every Redis key of the package. Applications that protect the same resources must use the same one.
   * @default 'fencing'
   */
  prefix?: string;
  /**
   * How long one node may take to answer before the others go on without it, ms; a whole acquisition takes at most four times
   * this. Far above the usual answer, far below the smallest ttlMs; four times it should fit into the module's `storeTimeoutMs`.
   * Whole number, 10 or more.
   * @default 400
   */
  nodeTimeoutMs?: number;
}

/** A node that the package connects to itself; needs the package `ioredis`. */
export interface QuorumNodeAddress {
  /** `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS. */
  url: string;
}

const WHO = 'quorumLeases';

/**
 * Leases at a majority of three, five, … **independent** Redis servers (not replicas of each other): the Redlock algorithm, with a
 * generation on every grant. More nodes buy availability: leases are granted, kept and released while a majority answers. They
 * buy no safety; that is the fence's, with one node as with five.
 *
 * Each node is the ioredis client (5 or 6) of the application, which stays the application's to close, or `{ url }`: a connection
 * that the package opens, and closes. All applications must name the same nodes.
 *
 * ```ts
 * FencingModule.forRoot({ leases: quorumLeases([{ url: a }, { url: b }, { url: c }]) })
 * ```
 * @throws FencingConfigError where there are fewer than three nodes, one is named twice, or an option is wrong
 */
export function quorumLeases(clients: readonly RedisClient[], options?: QuorumLeasesOptions): LeaseStore;
export function quorumLeases(
  nodes: readonly (RedisClient | QuorumNodeAddress)[],
  options?: QuorumLeasesOptions,
): Promise<LeaseStore>;
export function quorumLeases(
  nodes: readonly (RedisClient | QuorumNodeAddress)[],
  options: QuorumLeasesOptions = {},
): LeaseStore | Promise<LeaseStore> {
  checkNames(WHO, options, ['prefix', 'nodeTimeoutMs']);
  const prefix = checkPrefix(WHO, options.prefix);
  const { nodeTimeoutMs = 400 } = options;
  checkMs(WHO, 'nodeTimeoutMs', nodeTimeoutMs, 10);
  checkAddresses(nodes);
  const storeOf = (node: RedisClient, ownsClient: boolean) => ({
    store: new RedisLeaseStore(node, { prefix, ownsClient }),
    identify: () => identityOf(node),
  });
  if (nodes.every(isClient))
    return new QuorumLeaseStore(
      nodes.map((node) => storeOf(node, false)),
      { nodeTimeoutMs },
    );
  const opened = nodes.map(async (node) =>
    isClient(node) ? storeOf(node, false) : storeOf(await connectTo(node.url, WHO), true),
  );
  return Promise.all(opened).then((members) => new QuorumLeaseStore(members, { nodeTimeoutMs }));
}

function checkAddresses(
  nodes: readonly unknown[],
): asserts nodes is readonly (RedisClient | QuorumNodeAddress)[] {
  if (!Array.isArray(nodes))
    throw new FencingConfigError(
      `${WHO}: give it an array of ioredis clients or { url }, got ${show(nodes)}.`,
    );
  if (nodes.length < 3)
    throw new FencingConfigError(
      `${WHO}: ${nodes.length} ${nodes.length === 1 ? 'node is' : 'nodes are'} too few: a majority of two is both, so either failure stops it. ` +
        'Give it three or five independent servers, or use redisLeases with one.',
    );
  const places = new Map<unknown, number>();
  nodes.forEach((node, at) => {
    const address = isClient(node) ? node : (node as QuorumNodeAddress | undefined)?.url;
    if (!isClient(address) && !isRedisUrl(address))
      throw new FencingConfigError(
        `${WHO}: node ${at + 1} must be an ioredis client, or { url } with a text like 'redis://localhost:6379', got ${show(node)}.`,
      );
    const id = serverOf(address);
    const before = places.get(id);
    if (before !== undefined)
      throw new FencingConfigError(
        `${WHO}: nodes ${before} and ${at + 1} are the same server, so one failure takes both. Give it different servers.`,
      );
    places.set(id, at + 1);
  });
}

/** Two databases of one server are one server. Another name of the same server is found at boot. */
function serverOf(address: RedisClient | string): unknown {
  if (typeof address !== 'string') return address;
  const { hostname, port } = new URL(address);
  return `${hostname}:${port || 6379}`;
}

/** Managed servers may forbid INFO; then nothing is known. */
async function identityOf(client: RedisClient): Promise<ServerIdentity> {
  const info = async (section: string) => String(await client.call('INFO', section).catch(() => ''));
  const [server, replication] = await Promise.all([info('server'), info('replication')]);
  return {
    runId: /^run_id:(\S+)/m.exec(server)?.[1],
    isReplica: /^role:slave/m.test(replication),
  };
}
