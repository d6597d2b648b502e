// Our lease stores beside each other: a key that four processes want, and free keys. For information: no targets.
import { interleaved } from '../harness/rounds.mjs';
import { row } from '../harness/rows.mjs';
import { median, monotonicMs, short, sum } from '../harness/stats.mjs';
import { Worker } from '../harness/workers.mjs';

const PROCESSES = 4;
const CALLERS_PER_PROCESS = 10;
const REDIS = 'one Redis';
const QUORUM = 'a quorum of three';
const POSTGRES = 'PostgreSQL';
const ACTIVATED = 'PostgreSQL, activated in one request';
const ACTIVATED_LATER = 'PostgreSQL, activated in a second request';

/** @type {import('../harness/scenario.mjs').Measure} */
export async function measure({ quick, redis, postgres, log }) {
  const nodes = await Promise.all([redis(), redis(), redis()]);
  const places = { nodes: nodes.map(({ url }) => url), postgres: (await postgres(true)).url };
  const workers = await Worker.startMany(JSON.stringify(places), PROCESSES);
  const rows = [
    ...(await contended(workers, quick ? 3 : 7, log)),
    ...(await cycles(/** @type {Worker} */ (workers[0]), quick ? 5 : 11, log)),
  ];
  workers.forEach((worker) => worker.stop());
  return rows;
}

/** @param {Worker[]} workers @param {number} rounds @param {(line: string) => void} log */
async function contended(workers, rounds, log) {
  let round = 0;
  const samples = await interleaved([REDIS, QUORUM, POSTGRES], rounds, async (name) => {
    const key = `contended:${round++}`;
    const startAt = monotonicMs() + 50;
    const options = { key, callers: CALLERS_PER_PROCESS, workMs: 0, startAt };
    const answers = await Promise.all(workers.map((worker) => worker.do('contend', { name }, options)));
    const failed = sum(answers.map((answer) => answer.failed));
    if (failed > 0) throw new Error(`${name}: ${failed} callers were turned away`);
    return {
      totalMs: Math.max(...answers.map(({ endedAt }) => endedAt)) - startAt,
      requests: sum(answers.map(({ requests }) => requests)) / (PROCESSES * CALLERS_PER_PROCESS),
    };
  });
  /** @param {string} name @param {'totalMs' | 'requests'} what */
  const of = (name, what) => (samples.get(name) ?? []).map((sample) => sample[what]);
  const title = `contended, ${PROCESSES} processes of ${CALLERS_PER_PROCESS} callers, 0 ms of work: total time`;
  for (const name of [REDIS, QUORUM, POSTGRES])
    log(
      `${title}: ${name}: ${short(median(of(name, 'totalMs')))} ms, ${short(median(of(name, 'requests')))} requests per section`,
    );
  return [
    { id: 'contended-quorum', name: QUORUM },
    { id: 'contended-postgres', name: POSTGRES },
  ].map(({ id, name }) =>
    row({
      id,
      title: `${title}, leases at ${name}`,
      unit: 'ms',
      ours: of(name, 'totalMs'),
      reference: of(REDIS, 'totalMs'),
      referenceName: `our ${REDIS}`,
    }),
  );
}

/** @param {Worker} worker @param {number} rounds @param {(line: string) => void} log */
async function cycles(worker, rounds, log) {
  const names = [REDIS, QUORUM, POSTGRES, ACTIVATED, ACTIVATED_LATER];
  const samples = await interleaved(names, rounds, (name, warmUp) =>
    worker.do('cycle', { name }, { keys: 1, ms: warmUp ? 300 : 150 }),
  );
  /** @param {string} name */
  const of = (name) => (samples.get(name) ?? []).map(({ perSecond }) => perSecond);
  const title = 'free lease, one cycle after the other';
  for (const name of names) log(`${title}: ${name}: ${short(median(of(name)))} cycles/s`);
  return [
    { id: 'cycle-quorum', name: QUORUM, reference: REDIS },
    { id: 'cycle-postgres', name: POSTGRES, reference: REDIS },
    { id: 'cycle-postgres-activated', name: ACTIVATED, reference: ACTIVATED_LATER },
  ].map(({ id, name, reference }) =>
    row({
      id,
      title: `${title}, leases at ${name}`,
      unit: 'cycles/s',
      ours: of(name),
      reference: of(reference),
      referenceName: `our ${reference}`,
    }),
  );
}
