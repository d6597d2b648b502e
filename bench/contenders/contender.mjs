// What every contender can do. Each one is used as its own documentation shows.

/** How long a lock is asked for, ms, and how long a caller may wait for it; the same for all. */
export const TTL_MS = 10_000;
export const WAIT_MS = 120_000;

/**
 * @typedef {object} Held a lock that is kept until `release`
 * @property {() => Promise<unknown>} release
 * @property {{ readonly state: string }} [lease] where the contender has one to look at
 */

/**
 * @typedef {object} Contender
 * @property {(key: string) => Promise<unknown>} cycle takes a free lock and releases it
 * @property {(key: string, body: () => Promise<void>) => Promise<unknown>} section waits for the lock, runs the body under it, releases
 * @property {(key: string, ttlMs: number, onLost: () => void) => Promise<Held>} hold takes a lock and keeps it renewed
 * @property {() => Promise<void>} settle resolves when everything that was sent has been answered
 * @property {() => Promise<void>} close
 */

/** @typedef {{ url: string, tuned?: boolean }} ContenderOptions */
/** @typedef {(options: ContenderOptions) => Promise<Contender>} MakeContender */
