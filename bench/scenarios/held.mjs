// Many leases, held and renewed: what it costs to do nothing. All contenders at the same time, each with a Redis of its own.
import { setTimeout as sleep } from 'node:timers/promises';
import { connect } from '../contenders/client.mjs';
import { OURS } from '../contenders/index.mjs';
import { bestOf } from '../harness/rounds.mjs';
import { row } from '../harness/rows.mjs';
import { median, short } from '../harness/stats.mjs';
import { Worker } from '../harness/workers.mjs';

const TTL_MS = 6_000;
/** The cheapest of the peers at this. More of them at once would leave the machine no time for any. */
const RIVALS = ['redlock', 'redis-semaphore'];

/** @type {import('../harness/scenario.mjs').Measure} */
export async function measure({ quick, redis, log }) {
  const rows = [];
  for (const count of quick ? [10_000] : [1_000, 10_000]) {
    rows.push(...(await holdMany(count, { quick, redis, log })));
  }
  return rows;
}

/** @param {number} count @param {Omit<import('../harness/scenario.mjs').Context, 'postgres'>} context */
async function holdMany(count, { quick, redis, log }) {
  const holders = await Promise.all(
    [OURS, ...RIVALS].map(async (name) => {
      const { url } = await redis();
      return { name, url, worker: await Worker.start(url) };
    }),
  );
  /** @param {number} ms */
  const observe = (ms) =>
    Promise.all(holders.map(({ name, worker }) => worker.do('observe', { name }, { ms })));

  await observe(500);
  const idle = await observe(3_000);
  await Promise.all(
    holders.map(({ name, worker }) => worker.do('hold', { name }, { count, ttlMs: TTL_MS, overMs: TTL_MS })),
  );
  await sleep(TTL_MS / 2);
  /** @type {Awaited<ReturnType<typeof observe>>[]} */
  const windows = [];
  for (let i = 0; i < (quick ? 2 : 5); i++) windows.push(await observe(TTL_MS));
  const kept = await Promise.all(holders.map(({ url }) => keysOf(url)));
  holders.forEach(({ worker }) => worker.stop());

  /** @typedef {Exclude<keyof (typeof idle)[number], undefined>} Figure */
  /** @param {string} name @param {Figure} figure */
  const samples = (name, figure) => {
    const at = holders.findIndex((one) => one.name === name);
    return windows.map((window) => window[at]?.[figure] ?? NaN);
  };
  /** @param {string} name */
  const netCpu = (name) => {
    const at = holders.findIndex((one) => one.name === name);
    // Below a tenth of a percent the clock of the kernel counts nothing.
    return samples(name, 'cpuPercent').map((percent) => Math.max(0.1, percent - (idle[at]?.cpuPercent ?? 0)));
  };
  holders.forEach(({ name }, at) =>
    log(
      `${count} held: ${name}: CPU ${short(median(netCpu(name)))} % (net of ${short(idle[at]?.cpuPercent ?? NaN)} %), ` +
        `${short(median(samples(name, 'requestsPerSecond')))} requests/s, event loop p99 ${short(median(samples(name, 'delayP99Ms')))} ms, ` +
        `max ${short(median(samples(name, 'delayMaxMs')))} ms, ${median(samples(name, 'lost'))} reported lost, ` +
        `${kept[at]} keys in Redis, RSS ${short(median(samples(name, 'rssMb')))} MB`,
    ),
  );
  /** @param {string} what @param {string} title @param {string} unit @param {(name: string) => number[]} of @param {number} atMost @param {string} [text] */
  const compared = (what, title, unit, of, atMost, text) => {
    // One that lost leases has less to do.
    const whole = RIVALS.filter((name) => median(samples(name, 'lost')) === 0);
    if (whole.length === 0) throw new Error('no peer kept its leases: this machine is too busy to compare');
    const peer = bestOf(whole, of, 'lowest');
    return row({
      id: `held-${count}-${what}`,
      title: `${count.toLocaleString('en').replace(',', ' ')} held leases, ttl ${TTL_MS / 1000} s: ${title}`,
      unit,
      ours: of(OURS),
      reference: of(peer),
      referenceName: peer,
      target: count === 10_000 ? { atMost, text } : undefined,
    });
  };
  return [
    compared('cpu', 'CPU net of the idle process', '%', netCpu, 1 / 3),
    compared('requests', 'Redis requests', '1/s', (name) => samples(name, 'requestsPerSecond'), 1 / 50),
    compared(
      'loop',
      'event-loop delay, p99',
      'ms',
      (name) => samples(name, 'delayP99Ms'),
      1.1,
      '≤ 1 × (within 10 %)',
    ),
    row({
      id: `held-${count}-lost`,
      title: `${count.toLocaleString('en').replace(',', ' ')} held leases, ttl ${TTL_MS / 1000} s: lost`,
      unit: 'leases',
      ours: [Math.max(median(samples(OURS, 'lost')), count - (kept[0] ?? 0), 0)],
      target: { atMost: 0, of: 'ours' },
    }),
  ];
}

/** @param {string} url */
async function keysOf(url) {
  const redis = await connect(url);
  const leases = (await redis.keys('*')).filter((key) => key.includes('held:'));
  redis.disconnect();
  return leases.length;
}
