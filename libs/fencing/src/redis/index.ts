export { redisLeases, type RedisConnectionOptions, type RedisLeasesOptions } from './redis-leases.js';
export type { RedisClient, RedisSubscriber } from './redis-client.js';
