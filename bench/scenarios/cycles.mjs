// Taking and releasing free leases: one at a time, and many different keys at once.
import { FLOOR, OURS, PEERS } from '../contenders/index.mjs';
import { bestOf, interleaved } from '../harness/rounds.mjs';
import { row } from '../harness/rows.mjs';
import { median, short } from '../harness/stats.mjs';
import { Worker } from '../harness/workers.mjs';

/** Ids, titles, and what must be reached; levels without a target are measured in fewer rounds. */
const LEVELS = [
  { keys: 1, id: 'uncontended', title: 'free lease, one cycle after the other', floor: 1.2, peer: 1.3 },
  { keys: 10, id: 'distinct-10', title: 'free leases, 10 keys at a time' },
  { keys: 100, id: 'distinct-100', title: 'free leases, 100 keys at a time', floor: 0.9, peer: 1.5 },
  { keys: 1000, id: 'distinct-1000', title: 'free leases, 1 000 keys at a time' },
];

/** @type {import('../harness/scenario.mjs').Measure} */
export async function measure({ quick, redis, log }) {
  const { url } = await redis();
  const workers = await Promise.all(
    [OURS, FLOOR, ...PEERS].map(async (name) => ({ name, worker: await Worker.start(url) })),
  );
  const rows = [];
  for (const { keys, id, title, floor, peer } of LEVELS) {
    // Short and many: what disturbs the machine then disturbs all contenders of a round alike.
    const rounds = (floor ? 21 : 9) * (quick ? 1 : 2);
    const samples = await interleaved(workers, rounds, ({ name, worker }, warmUp) =>
      // The compiler goes by how often code ran, not by how long.
      worker.do(
        'cycle',
        { name },
        warmUp ? { keys, ms: 300, atLeast: 5_000 } : { keys, ms: quick ? 100 : 250 },
      ),
    );
    const rates = Object.fromEntries(
      workers.map((one) => [one.name, samples.get(one)?.map((s) => s.perSecond) ?? []]),
    );
    const cpu = Object.fromEntries(
      workers.map((one) => [one.name, samples.get(one)?.map((s) => s.cpuMicros) ?? []]),
    );
    for (const { name } of workers) {
      log(
        `${title}: ${name}: ${short(median(rates[name] ?? []))} cycles/s, ${short(median(cpu[name] ?? []))} µs CPU`,
      );
    }
    const best = bestOf(PEERS, (name) => rates[name] ?? [], 'highest');
    const against = [
      { suffix: 'vs-floor', name: FLOOR, least: floor },
      { suffix: 'vs-peer', name: best, least: peer },
    ];
    for (const { suffix, name, least } of against) {
      rows.push(
        row({
          id: `${id}-${suffix}`,
          title,
          unit: 'cycles/s',
          ours: rates[OURS] ?? [],
          reference: rates[name],
          referenceName: name,
          target: least === undefined ? undefined : { atLeast: least },
        }),
      );
    }
    if (floor) {
      rows.push(
        row({
          id: `${id}-cpu`,
          title: `${title}: CPU of the Node process`,
          unit: 'µs/cycle',
          ours: cpu[OURS] ?? [],
          reference: cpu[FLOOR],
          referenceName: FLOOR,
        }),
      );
    }
  }
  workers.forEach(({ worker }) => worker.stop());
  return rows;
}
