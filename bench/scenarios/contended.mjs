// One lock that many want: in one process, across four, and for as long as it takes to starve somebody.
import { OURS, PEERS } from '../contenders/index.mjs';
import { bestOf, interleaved } from '../harness/rounds.mjs';
import { row } from '../harness/rows.mjs';
import { median, monotonicMs, quantile, short, sum } from '../harness/stats.mjs';
import { Worker } from '../harness/workers.mjs';

const PROCESSES = 4;
const CALLERS = 50;
const CALLERS_PER_PROCESS = 10;

/** @typedef {import('../harness/worker.mjs').Who} Who */
/** @typedef {{ totalMs: number, p50: number, p99: number, failed: number, requests: number }} Sample */

/** @type {Who} */
const us = { name: OURS };
const byDefault = PEERS.map((name) => ({ name, tuned: false }));
const tuned = PEERS.map((name) => ({ name, tuned: true }));

/** @param {Who} who */
const nameOf = ({ name, tuned }) => (tuned ? `${name}, tuned` : name);

/** @type {import('../harness/scenario.mjs').Measure} */
export async function measure({ quick, redis, log }) {
  const { url } = await redis();
  const workers = await Worker.startMany(url, PROCESSES);
  const rows = [
    ...(await oneProcess(workers.slice(0, 1), { quick, log })),
    ...(await fourProcesses(workers, { quick, log, workMs: 0 })),
    ...(quick ? [] : await fourProcesses(workers, { quick, log, workMs: 2 })),
    ...(await sustained(workers, { quick, log })),
  ];
  workers.forEach((worker) => worker.stop());
  return rows;
}

let rounds = 0;

/**
 * All callers at once, one section each.
 * @param {Worker[]} workers
 * @param {Who} who
 * @param {{ callers: number, workMs: number }} options of each process
 * @returns {Promise<Sample>}
 */
async function once(workers, who, { callers, workMs }) {
  const key = `contended:${rounds++}`;
  const startAt = monotonicMs() + 100;
  const answers = await Promise.all(
    workers.map((worker) => worker.do('contend', who, { key, callers, workMs, startAt })),
  );
  const times = answers.flatMap((answer) => answer.times).sort(([a], [b]) => a - b);
  const handOvers = times.slice(1).map(([begin], i) => begin - (times[i]?.[1] ?? NaN));
  const overlaps = handOvers.filter((ms) => ms < 0).length;
  if (overlaps > 0) throw new Error(`${nameOf(who)}: two callers were inside at once`);
  return {
    totalMs: Math.max(...answers.map(({ endedAt }) => endedAt)) - startAt,
    p50: median(handOvers),
    p99: quantile(handOvers, 0.99),
    failed: sum(answers.map(({ failed }) => failed)),
    requests: sum(answers.map(({ requests }) => requests)) / times.length,
  };
}

/**
 * @param {Worker[]} workers
 * @param {number} roundsOfEach
 * @param {{ callers: number, workMs: number }} options
 * @param {(line: string) => void} log
 */
async function compare(workers, roundsOfEach, options, log) {
  const everyone = [us, ...byDefault, ...tuned];
  const samples = await interleaved(everyone, roundsOfEach, (who) => once(workers, who, options));
  /** @param {Who} who @param {keyof Sample} what */
  const of = (who, what) => (samples.get(who) ?? []).map((sample) => sample[what]);
  const place = `${workers.length} × ${options.callers} callers, ${options.workMs} ms of work`;
  for (const who of everyone) {
    log(
      `${place}: ${nameOf(who)}: ${short(median(of(who, 'totalMs')))} ms in all, hand-over p50 ${short(median(of(who, 'p50')))} ` +
        `p99 ${short(median(of(who, 'p99')))} ms, ${short(median(of(who, 'requests')))} requests per section, ` +
        `${sum(of(who, 'failed'))} of ${roundsOfEach * options.callers * workers.length} turned away`,
    );
  }
  /** The best of those that served everyone. @param {Who[]} whom @param {keyof Sample} what */
  const best = (whom, what) => {
    const served = whom.filter((who) => sum(of(who, 'failed')) === 0);
    return bestOf(served.length > 0 ? served : whom, (who) => of(who, what), 'lowest');
  };
  return { of, best };
}

/** @param {Worker[]} workers @param {{ quick: boolean, log: (line: string) => void }} options */
async function oneProcess(workers, { quick, log }) {
  const { of, best } = await compare(workers, quick ? 5 : 15, { callers: CALLERS, workMs: 0 }, log);
  const title = `contended hand-over, one process, ${CALLERS} callers, p50`;
  const sets = /** @type {const} */ ([
    ['default', byDefault, 1 / 15],
    ['tuned', tuned, 1 / 5],
  ]);
  return [
    ...sets.map(([settings, peers, atMost]) => {
      const peer = best(peers, 'p50');
      return row({
        id: `handover-vs-${settings}`,
        title,
        unit: 'ms',
        ours: of(us, 'p50'),
        reference: of(peer, 'p50'),
        referenceName: nameOf(peer),
        target: { atMost },
      });
    }),
    row({
      id: 'requests-per-section',
      title: `Redis requests per critical section, ${CALLERS} callers in one process`,
      unit: 'requests',
      ours: of(us, 'requests'),
      reference: of(best(byDefault, 'requests'), 'requests'),
      referenceName: nameOf(best(byDefault, 'requests')),
      target: { atMost: 1.2, of: 'ours' },
    }),
  ];
}

/** @param {Worker[]} workers @param {{ quick: boolean, log: (line: string) => void, workMs: number }} options */
async function fourProcesses(workers, { quick, log, workMs }) {
  const { of, best } = await compare(workers, quick ? 5 : 15, { callers: CALLERS_PER_PROCESS, workMs }, log);
  const id = workMs === 0 ? 'four-processes' : `four-processes-${workMs}ms`;
  const title = `contended, ${PROCESSES} processes of ${CALLERS_PER_PROCESS} callers, ${workMs} ms of work: total time`;
  const sets = /** @type {const} */ ([
    ['default', byDefault, 1 / 5],
    ['tuned', tuned, 1 / 2],
  ]);
  return sets.map(([settings, peers, atMost]) => {
    const peer = best(peers, 'totalMs');
    return row({
      id: `${id}-vs-${settings}`,
      title,
      unit: 'ms',
      ours: of(us, 'totalMs'),
      reference: of(peer, 'totalMs'),
      referenceName: nameOf(peer),
      target: workMs === 0 ? { atMost } : undefined,
    });
  });
}

/** @param {Worker[]} workers @param {{ quick: boolean, log: (line: string) => void }} options */
async function sustained(workers, { quick, log }) {
  const rivals = byDefault.filter(({ name }) => ['redlock', 'redis-semaphore'].includes(name));
  const everyone = [us, ...rivals];
  const samples = await interleaved(everyone, quick ? 2 : 5, async (who, warmUp) => {
    const key = `sustained:${rounds++}`;
    const startAt = monotonicMs() + 100;
    const ms = warmUp ? 300 : quick ? 2_500 : 10_000;
    const answers = await Promise.all(
      workers.map((worker) =>
        worker.do('sustain', who, { key, callers: CALLERS_PER_PROCESS, workMs: 2, startAt, ms }),
      ),
    );
    const waits = answers.flatMap((answer) => answer.waits);
    const shares = answers.map(
      ({ sections }) => sections / (sum(answers.map((one) => one.sections)) / PROCESSES),
    );
    return { longest: Math.max(...waits) / median(waits), shares };
  });
  /** @param {Who} who */
  const longest = (who) => (samples.get(who) ?? []).map((sample) => sample.longest);
  /** How far from its fair share the worst process is, as a factor. @param {Who} who */
  const unfair = (who) =>
    (samples.get(who) ?? []).map(({ shares }) =>
      Math.max(...shares.map((share) => Math.max(share, 1 / share))),
    );
  for (const who of everyone) {
    log(
      `sustained, ${PROCESSES} processes: ${nameOf(who)}: longest wait ${short(median(longest(who)))} × the median, ` +
        `a process up to ${short(median(unfair(who)))} × off its fair share`,
    );
  }
  const calmest = bestOf(rivals, longest, 'lowest');
  const fairest = bestOf(rivals, unfair, 'lowest');
  const title = `contended, sustained, ${PROCESSES} processes of ${CALLERS_PER_PROCESS} callers, 2 ms of work`;
  return [
    row({
      id: 'four-processes-fairness',
      title: `${title}: how far the worst process is from its fair share`,
      unit: '×',
      ours: unfair(us),
      reference: unfair(fairest),
      referenceName: nameOf(fairest),
      target: { atMost: 2, of: 'ours' },
    }),
    row({
      id: 'longest-wait',
      title: `${title}: longest wait against the median`,
      unit: '×',
      ours: longest(us),
      reference: longest(calmest),
      referenceName: nameOf(calmest),
      target: { atMost: 2, of: 'ours' },
    }),
  ];
}
