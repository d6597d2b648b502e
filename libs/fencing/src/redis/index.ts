export { quorumLeases, type QuorumLeasesOptions, type QuorumNodeAddress } from './quorum-leases.js';
export { redisLeases, type RedisConnectionOptions, type RedisLeasesOptions } from './redis-leases.js';
export type { RedisClient, RedisSubscriber } from './redis-client.js';
export type { ReplicasOptions } from './replica-acks.js';
