export { quorumLeases, type QuorumLeasesOptions, type QuorumNodeAddress } from './quorum/quorum-leases.js';
export { redisLeases, type RedisConnectionOptions, type RedisLeasesOptions } from './redis-leases.js';
export type {
  RedisClient,
  RedisClusterClient,
  RedisClusterNode,
  RedisSubscriber,
  ScriptClient,
} from './redis-client.js';
export type { ReplicasOptions } from './replica-acks.js';
