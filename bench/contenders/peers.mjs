// The peers, each through its own acquire and release, with its defaults or with the settings that served it best under contention.
import { Redlock as SesamecareRedlock } from '@sesamecare-oss/redlock';
import { Mutex } from 'redis-semaphore';
// @ts-expect-error its package.json hides its types
import Redlock from 'redlock';
import { createLock, IoredisAdapter } from 'redlock-universal';
import { connect } from './client.mjs';
import { TTL_MS, WAIT_MS } from './contender.mjs';

/** Tries until the wait is over, as often as the peer's own tests of contention bear. */
const TUNED_RETRY_MS = 2;

/** @type {import('./contender.mjs').MakeContender} */
async function makeRedlock({ url, tuned }) {
  return redlockLike('redlock', Redlock, { url, tuned });
}

/** @type {import('./contender.mjs').MakeContender} */
async function makeSesamecare({ url, tuned }) {
  return redlockLike('sesamecare redlock', SesamecareRedlock, { url, tuned });
}

/**
 * @param {string} name
 * @param {any} Class both packages have the same face
 * @param {import('./contender.mjs').ContenderOptions} options
 * @returns {Promise<import('./contender.mjs').Contender>}
 */
async function redlockLike(name, Class, { url, tuned }) {
  const redis = await connect(url);
  const settings = tuned
    ? { retryCount: -1, retryDelay: TUNED_RETRY_MS, retryJitter: TUNED_RETRY_MS }
    : undefined;
  const redlock = new Class([redis], settings);
  return {
    cycle: async (key) => {
      const lock = await redlock.acquire([`${name}:${key}`], TTL_MS);
      await lock.release();
    },
    section: async (key, body) => {
      const lock = await redlock.acquire([`${name}:${key}`], TTL_MS);
      try {
        await body();
      } finally {
        await lock.release();
      }
    },
    hold: (key, ttlMs, onLost) =>
      untilReleased((keep) =>
        redlock.using([`${name}:${key}`], ttlMs, async (/** @type {AbortSignal} */ signal) => {
          signal.addEventListener('abort', onLost);
          await keep();
        }),
      ),
    settle: async () => {},
    close: async () => redis.disconnect(),
  };
}

/** @type {import('./contender.mjs').MakeContender} */
async function makeRedisSemaphore({ url, tuned }) {
  const redis = await connect(url);
  const settings = {
    lockTimeout: TTL_MS,
    acquireTimeout: WAIT_MS,
    ...(tuned && { retryInterval: TUNED_RETRY_MS }),
  };
  return {
    cycle: async (key) => {
      const mutex = new Mutex(redis, key, settings);
      await mutex.acquire();
      await mutex.release();
    },
    section: async (key, body) => {
      const mutex = new Mutex(redis, key, settings);
      await mutex.acquire();
      try {
        await body();
      } finally {
        await mutex.release();
      }
    },
    hold: async (key, ttlMs, onLost) => {
      const mutex = new Mutex(redis, key, { ...settings, lockTimeout: ttlMs, onLockLost: onLost });
      await mutex.acquire();
      return mutex;
    },
    settle: async () => {},
    close: async () => redis.disconnect(),
  };
}

/**
 * @param {'standard' | 'lean'} performance
 * @returns {import('./contender.mjs').MakeContender}
 */
const makeRedlockUniversal =
  (performance) =>
  async ({ url, tuned }) => {
    const redis = await connect(url);
    const adapter = new IoredisAdapter(redis);
    const name = performance === 'lean' ? 'redlock-universal lean' : 'redlock-universal';
    const settings = tuned ? { retryAttempts: WAIT_MS / TUNED_RETRY_MS, retryDelay: TUNED_RETRY_MS } : {};
    /** @param {string} key @param {number} ttl */
    const lockOf = (key, ttl) =>
      createLock({
        adapter,
        key: `${name}:${key}`,
        ttl,
        ...(performance === 'lean' && { performance }),
        ...settings,
      });
    return {
      cycle: async (key) => {
        const lock = lockOf(key, TTL_MS);
        await lock.release(await lock.acquire());
      },
      section: async (key, body) => {
        const lock = lockOf(key, TTL_MS);
        const handle = await lock.acquire();
        try {
          await body();
        } finally {
          await lock.release(handle);
        }
      },
      hold: (key, ttlMs, onLost) =>
        untilReleased((keep) =>
          lockOf(key, ttlMs).using(async (signal) => {
            signal.addEventListener('abort', onLost);
            await keep();
          }),
        ),
      settle: async () => {},
      close: async () => redis.disconnect(),
    };
  };

/**
 * A lock of a peer that only renews inside `using()`.
 * @param {(keep: () => Promise<void>) => Promise<unknown>} using
 * @returns {Promise<import('./contender.mjs').Held>}
 */
function untilReleased(using) {
  return new Promise((resolve, reject) => {
    const ended = using(
      () =>
        new Promise((end) => {
          resolve({
            release: async () => {
              end();
              await ended;
            },
          });
        }),
    );
    ended.catch(reject);
  });
}

export const peers = {
  redlock: makeRedlock,
  'sesamecare redlock': makeSesamecare,
  'redis-semaphore': makeRedisSemaphore,
  'redlock-universal': makeRedlockUniversal('standard'),
  'redlock-universal lean': makeRedlockUniversal('lean'),
};
