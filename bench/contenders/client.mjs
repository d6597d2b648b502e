import { Redis } from 'ioredis';

let requests = 0;
// On the prototype, so that the connections which a contender opens by itself are counted too.
/** @type {Redis['sendCommand']} */
const send = Object.getOwnPropertyDescriptor(Redis.prototype, 'sendCommand')?.value;
Redis.prototype.sendCommand = function count(/** @type {any[]} */ ...args) {
  requests++;
  return Reflect.apply(send, this, args);
};

/** For requests that are not sent by ioredis. */
export function countRequest() {
  requests++;
}

/** Requests that all clients of this process have sent. (INFO commandstats also counts what scripts call inside the server.) */
export const requestsSent = () => requests;

/**
 * The same client, with the same settings, for every contender.
 * @param {string} url
 */
export async function connect(url) {
  const redis = new Redis(url, { lazyConnect: true });
  redis.on('error', () => {});
  await redis.connect();
  return redis;
}
