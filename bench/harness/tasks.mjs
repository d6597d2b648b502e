// What a contender can be told to do in a worker process; plain data in, plain data out.
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { requestsSent } from '../contenders/client.mjs';
import { monotonicMs } from './stats.mjs';

/** @typedef {import('../contenders/contender.mjs').Contender} Contender */

/**
 * Takes and releases free locks: `keys` callers at a time, each with a key of its own.
 * @param {Contender} contender
 * @param {{ keys: number, ms: number, atLeast?: number }} options for `ms`, and until `atLeast` cycles were done
 */
export async function cycle(contender, { keys, ms, atLeast = 0 }) {
  let cycles = 0;
  const cpuBefore = process.cpuUsage();
  const start = performance.now();
  const end = start + ms;
  await Promise.all(
    Array.from({ length: keys }, async (_, i) => {
      const key = `cycle:${i}`;
      do {
        await contender.cycle(key);
        cycles++;
      } while (performance.now() < end || cycles < atLeast);
    }),
  );
  await contender.settle();
  const tookMs = performance.now() - start;
  const { user, system } = process.cpuUsage(cpuBefore);
  return { perSecond: (cycles / tookMs) * 1000, cpuMicros: (user + system) / cycles };
}

/**
 * One free lock for each of `count` keys that were never used before, 100 at a time; then what is left in memory.
 * @param {Contender} contender
 * @param {{ from: number, count: number }} options
 */
export async function cycleNewKeys(contender, { from, count }) {
  let next = from;
  const end = from + count;
  const start = performance.now();
  await Promise.all(
    Array.from({ length: 100 }, async () => {
      while (next < end) await contender.cycle(`customer:${next++}:report`);
    }),
  );
  await contender.settle();
  const microsPerCycle = ((performance.now() - start) / count) * 1000;
  await sleep(50); // the last timers and promises are let go
  globalThis.gc?.();
  globalThis.gc?.();
  return { microsPerCycle, heapBytes: process.memoryUsage().heapUsed };
}

/**
 * `callers` want one lock, once each. `times` are the beginnings and ends of the bodies, on the clock that all processes share.
 * @param {Contender} contender
 * @param {{ key: string, callers: number, workMs: number, startAt?: number }} options
 */
export async function contend(contender, { key, callers, workMs, startAt = 0 }) {
  globalThis.gc?.();
  /** @type {[number, number][]} */
  const times = [];
  let failed = 0;
  while (monotonicMs() < startAt) await sleep(1);
  const requestsBefore = requestsSent();
  await Promise.all(
    Array.from({ length: callers }, () =>
      contender
        .section(key, async () => {
          const begin = monotonicMs();
          if (workMs > 0) await sleep(workMs);
          times.push([begin, monotonicMs()]);
        })
        .catch(() => failed++),
    ),
  );
  await contender.settle();
  return { times, failed, requests: requestsSent() - requestsBefore, endedAt: monotonicMs() };
}

/**
 * `callers` want one lock again and again for `ms`; one that is turned away asks again. Answers each wait for it.
 * @param {Contender} contender
 * @param {{ key: string, callers: number, workMs: number, startAt: number, ms: number }} options
 */
export async function sustain(contender, { key, callers, workMs, startAt, ms }) {
  /** @type {number[]} */
  const waits = [];
  while (monotonicMs() < startAt) await sleep(1);
  const end = startAt + ms;
  let sections = 0;
  await Promise.all(
    Array.from({ length: callers }, async () => {
      while (monotonicMs() < end) {
        const since = monotonicMs();
        for (let served = false; !served;) {
          await contender
            .section(key, async () => {
              served = true;
              waits.push(monotonicMs() - since);
              if (monotonicMs() < end) sections++;
              await sleep(workMs);
            })
            .catch(() => {});
          if (!served && monotonicMs() >= end) {
            waits.push(monotonicMs() - since);
            break;
          }
        }
      }
    }),
  );
  return { waits, sections };
}

/** Locks that this process holds, and how many of them were reported lost. */
/** @type {{ locks: import('../contenders/contender.mjs').Held[], lost: number }} */
const holding = { locks: [], lost: 0 };

/**
 * Takes `count` locks, evenly over `overMs` or as fast as 50 at a time can be had, and keeps them.
 * @param {Contender} contender
 * @param {{ count: number, ttlMs: number, overMs: number }} options
 */
export async function hold(contender, { count, ttlMs, overMs }) {
  const start = performance.now();
  let taken = 0;
  await Promise.all(
    Array.from({ length: 50 }, async () => {
      while (taken < count) {
        const i = taken++;
        const dueIn = start + (i / count) * overMs - performance.now();
        if (dueIn > 0) await sleep(dueIn);
        holding.locks.push(await contender.hold(`held:${i}`, ttlMs, () => holding.lost++));
      }
    }),
  );
}

/**
 * What this process spends on doing nothing but holding its locks.
 * @param {Contender} _contender
 * @param {{ ms: number }} options
 */
export async function observe(_contender, { ms }) {
  globalThis.gc?.();
  const delay = monitorEventLoopDelay({ resolution: 5 });
  const requestsBefore = requestsSent();
  const start = performance.now();
  const cpuBefore = process.cpuUsage();
  delay.enable();
  await sleep(ms);
  delay.disable();
  const { user, system } = process.cpuUsage(cpuBefore);
  const seconds = (performance.now() - start) / 1000;
  return {
    cpuPercent: (user + system) / 1e4 / seconds,
    requestsPerSecond: (requestsSent() - requestsBefore) / seconds,
    delayP99Ms: delay.percentile(99) / 1e6,
    delayMaxMs: delay.max / 1e6,
    lost: holding.lost,
    rssMb: process.memoryUsage.rss() / 2 ** 20,
  };
}
