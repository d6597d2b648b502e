// The least that a lease with a generation can cost over ioredis: one script to acquire, one to release, both awaited.
import { randomUUID } from 'node:crypto';
import { connect } from './client.mjs';
import { TTL_MS } from './contender.mjs';

const ACQUIRE = `
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end
return 0`;
const RELEASE = `
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`;

/** @type {import('./contender.mjs').MakeContender} */
async function makeFloor({ url }) {
  const redis = await connect(url);
  const acquire = /** @type {string} */ (await redis.script('LOAD', ACQUIRE));
  const release = /** @type {string} */ (await redis.script('LOAD', RELEASE));
  const unsupported = () => Promise.reject(new Error('the floor only cycles'));
  return {
    cycle: async (key) => {
      const owner = randomUUID();
      const generation = await redis.evalsha(
        acquire,
        2,
        `raw:${key}`,
        `raw:${key}:generation`,
        owner,
        TTL_MS,
      );
      if (generation === 0) throw new Error(`${key} is taken`);
      await redis.evalsha(release, 1, `raw:${key}`, owner);
    },
    section: unsupported,
    hold: unsupported,
    settle: async () => {},
    close: async () => redis.disconnect(),
  };
}

export const floor = { 'raw scripts': makeFloor };
