// A fenced write against the plain TypeORM transaction with the same SQL.
import { makeFencedApp, UPDATE } from '../contenders/fenced-app.mjs';
import { interleaved } from '../harness/rounds.mjs';
import { row } from '../harness/rows.mjs';
import { median, short } from '../harness/stats.mjs';

/** @typedef {{ run(work: () => Promise<void>): Promise<void>, release(): void }} Lease */
/** @typedef {import('typeorm').EntityManager} EntityManager */

const CASES = [
  { id: 'fenced-tx-distinct', fsync: true, connections: 10, shared: false, atLeast: 0.9 },
  { id: 'fenced-tx-shared', fsync: true, connections: 10, shared: true, atLeast: 0.9 },
  { id: 'fenced-tx-sequential', fsync: true, connections: 1, shared: false },
  { id: 'fenced-tx-sequential-no-fsync', fsync: false, connections: 1, shared: false, atLeast: 0.8 },
  { id: 'fenced-tx-distinct-no-fsync', fsync: false, connections: 10, shared: false },
  { id: 'fenced-tx-shared-no-fsync', fsync: false, connections: 10, shared: true },
];

/** @type {import('../harness/scenario.mjs').Measure} */
export async function measure({ quick, redis, postgres, log }) {
  const redisUrl = (await redis()).url;
  const rows = [];
  for (const fsync of [true, false]) {
    const { url } = await postgres(fsync);
    const app = await makeFencedApp({ redisUrl, databaseUrl: url });
    for (const { id, connections, shared, atLeast } of CASES.filter((one) => one.fsync === fsync)) {
      const title =
        `fenced transaction, ${connections === 1 ? 'one after the other' : `${connections} connections`}, fsync ${fsync ? 'on' : 'off'}` +
        (connections === 1 ? '' : shared ? ', one lease for all' : ', a lease each');
      const leases = await takeLeases(app.fencing, shared ? 1 : connections);
      const contenders = [
        {
          name: 'fenced',
          /** @param {number} caller @param {() => Promise<void>} work */
          under: (caller, work) => /** @type {Lease} */ (leases[shared ? 0 : caller]).run(work),
          /** @param {number} id */
          transaction: (id) =>
            app.fencing.write({}, (/** @type {EntityManager} */ m) => m.query(UPDATE, [id])),
        },
        {
          name: 'plain',
          /** @param {number} _caller @param {() => Promise<void>} work */
          under: (_caller, work) => work(),
          /** @param {number} id */
          transaction: (id) => app.plain.transaction((m) => m.query(UPDATE, [id])),
        },
      ];
      const rounds = (atLeast === undefined ? 7 : 15) * (quick ? 1 : 2);
      const samples = await interleaved(contenders, rounds, async ({ under, transaction }, warmUp) => {
        let done = 0;
        const start = performance.now();
        const end = start + (warmUp ? 1_000 : quick ? 200 : 400);
        await Promise.all(
          Array.from({ length: connections }, (_, caller) =>
            under(caller, async () => {
              for (; performance.now() < end; done++) await transaction(caller + 1);
            }),
          ),
        );
        return (done / (performance.now() - start)) * 1000;
      });
      leases.forEach((lease) => lease.release());
      const [fenced = [], plain = []] = contenders.map((contender) => samples.get(contender) ?? []);
      log(`${title}: ${short(median(fenced))} against ${short(median(plain))} a second`);
      rows.push(
        row({
          id,
          title,
          unit: '1/s',
          ours: fenced,
          reference: plain,
          referenceName: 'plain TypeORM transaction',
          target: atLeast === undefined ? undefined : { atLeast },
        }),
      );
    }
    await app.close();
  }
  return rows;
}

/**
 * @param {any} fencing
 * @param {number} count
 * @returns {Promise<Lease[]>}
 */
function takeLeases(fencing, count) {
  return Promise.all(Array.from({ length: count }, (_, i) => fencing.acquire(`row:${i}`, { ttlMs: 60_000 })));
}
