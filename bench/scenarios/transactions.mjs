// A fenced write against the plain TypeORM transaction with the same SQL, and the protections that may be added to it.
import { Column, Entity, PrimaryColumn } from 'typeorm';
import {
  FencedRepository,
  GenerationColumn,
  protectTable,
} from '../../libs/fencing/dist/esm/typeorm/index.js';
import { makeFencedApp, makeRows, UPDATE } from '../contenders/fenced-app.mjs';
import { interleaved } from '../harness/rounds.mjs';
import { row } from '../harness/rows.mjs';
import { median, short } from '../harness/stats.mjs';

/** @typedef {{ key: string, owner: string, generation: number, run<T>(work: () => Promise<T>): Promise<T>, release(): void }} Lease */
/** @typedef {import('typeorm').EntityManager} EntityManager */
/** @typedef {Awaited<ReturnType<typeof makeFencedApp>>} App */

/**
 * @typedef {object} Contender
 * @property {string} name
 * @property {(caller: number, work: () => Promise<void>) => Promise<void>} under
 * @property {(id: number) => Promise<unknown>} write one row
 */

/**
 * @typedef {object} Case
 * @property {string} id
 * @property {string} title
 * @property {string} against
 * @property {boolean} fsync
 * @property {number} connections
 * @property {boolean} [shared] one lease for all
 * @property {number} [atLeast]
 * @property {(app: App, leases: Lease[]) => [ours: Contender, reference: Contender]} contenders
 */

class GuardedRow {}
Entity('bench_guarded')(GuardedRow);
PrimaryColumn('int')(GuardedRow.prototype, 'id');
Column('int')(GuardedRow.prototype, 'value');
GenerationColumn({ trigger: false })(GuardedRow.prototype, 'generation');

const PLAIN_TRANSACTION = 'plain TypeORM transaction';
const PROTECTED_UPDATE = UPDATE.replace('bench_row', 'bench_protected');

/** @type {Case[]} */
const CASES = [
  fenced('fenced-tx-distinct', { fsync: true, connections: 10, atLeast: 0.9 }),
  fenced('fenced-tx-shared', { fsync: true, connections: 10, shared: true, atLeast: 0.9 }),
  fenced('fenced-tx-sequential', { fsync: true, connections: 1 }),
  guardAlone('guard-alone', { fsync: true, connections: 10 }),
  {
    id: 'row-guard-update',
    title: 'update through the row guard, 10 connections, fsync on',
    against: 'plain TypeORM update',
    fsync: true,
    connections: 10,
    atLeast: 0.95,
    contenders: ({ plain, fencedData }, leases) => {
      const guarded = new FencedRepository(fencedData.manager, GuardedRow);
      const repository = plain.getRepository(GuardedRow);
      const change = /** @type {any} */ ({ value: () => 'value + 1' });
      return [
        { name: 'row guard', under: underLease(leases), write: (id) => guarded.update(id, change) },
        { name: 'plain', under: alone, write: (id) => repository.update(id, change) },
      ];
    },
  },
  {
    id: 'trigger-update',
    title: 'fenced transaction on a protected table, 10 connections, fsync on',
    against: PLAIN_TRANSACTION,
    fsync: true,
    connections: 10,
    atLeast: 0.9,
    contenders: (app, leases) => [
      { name: 'protected', under: underLease(leases), write: fencedWrite(app, PROTECTED_UPDATE) },
      plainTransaction(app),
    ],
  },
  fenced('fenced-tx-sequential-no-fsync', { fsync: false, connections: 1, atLeast: 0.8 }),
  guardAlone('guard-alone-sequential-no-fsync', { fsync: false, connections: 1 }),
  guardAlone('guard-alone-no-fsync', { fsync: false, connections: 10 }),
  fenced('fenced-tx-distinct-no-fsync', { fsync: false, connections: 10 }),
  fenced('fenced-tx-shared-no-fsync', { fsync: false, connections: 10, shared: true }),
];

/** Of one statement, for what the trigger costs each of them. */
const BULK_ROWS = 1_000;

/** @type {import('../harness/scenario.mjs').Measure} */
export async function measure({ quick, redis, postgres, log }) {
  const redisUrl = (await redis()).url;
  const rows = [];
  for (const fsync of [true, false]) {
    const { url } = await postgres(fsync);
    const app = await makeFencedApp({ redisUrl, databaseUrl: url, entities: [GuardedRow] });
    await makeRows(app.plain, 'bench_guarded');
    await makeProtected(app, 'bench_protected');
    for (const one of CASES.filter((each) => each.fsync === fsync))
      rows.push(await compare(app, one, quick, log));
    if (!fsync) rows.push(await bulk(app, quick, log));
    await app.close();
  }
  return rows;
}

/** @param {App} app @param {Case} of @param {boolean} quick @param {(line: string) => void} log */
async function compare(
  app,
  { id, title, against, connections, shared, atLeast, contenders: make },
  quick,
  log,
) {
  const leases = await takeLeases(app.fencing, shared ? 1 : connections);
  const contenders = make(app, leases);
  const rounds = (atLeast === undefined ? 7 : 15) * (quick ? 1 : 2);
  const samples = await interleaved(contenders, rounds, async ({ under, write }, warmUp) => {
    let done = 0;
    const start = performance.now();
    const end = start + (warmUp ? 1_000 : quick ? 200 : 400);
    await Promise.all(
      Array.from({ length: connections }, (_, caller) =>
        under(caller, async () => {
          for (; performance.now() < end; done++) await write(caller + 1);
        }),
      ),
    );
    return (done / (performance.now() - start)) * 1000;
  });
  leases.forEach((lease) => lease.release());
  const [ours = [], reference = []] = contenders.map((contender) => samples.get(contender) ?? []);
  log(`${title}: ${short(median(ours))} against ${short(median(reference))} a second`);
  const target = atLeast === undefined ? undefined : { atLeast };
  return row({ id, title, unit: '1/s', ours, reference, referenceName: against, target });
}

/** @param {App} app @param {boolean} quick @param {(line: string) => void} log */
async function bulk(app, quick, log) {
  await makeProtected(app, 'bench_bulk_protected', BULK_ROWS);
  await makeRows(app.plain, 'bench_bulk', BULK_ROWS);
  const [lease] = /** @type {[Lease]} */ (await takeLeases(app.fencing, 1));
  const tables = ['bench_bulk_protected', 'bench_bulk'];
  const samples = await interleaved(tables, quick ? 15 : 30, (table) =>
    lease.run(async () => {
      const start = performance.now();
      await app.fencing.write({}, (/** @type {EntityManager} */ m) =>
        m.query(`UPDATE ${table} SET value = value + 1`),
      );
      return ((performance.now() - start) * 1000) / BULK_ROWS;
    }),
  );
  lease.release();
  const [ours = [], reference = []] = tables.map((table) => samples.get(table) ?? []);
  const title = `fenced write of ${BULK_ROWS} rows of a protected table, each row`;
  log(`${title}: ${median(ours).toFixed(1)} against ${median(reference).toFixed(1)} µs`);
  return row({
    id: 'trigger-per-row',
    title,
    unit: 'µs',
    ours,
    reference,
    referenceName: 'the same without its trigger',
  });
}

/**
 * The floor of a fenced transaction: the guard in the message of BEGIN and nothing else of the package, over bare pg.
 * @param {string} id
 * @param {{ fsync: boolean, connections: number }} options
 * @returns {Case}
 */
function guardAlone(id, { fsync, connections }) {
  return {
    id,
    title: `the guard alone, over bare pg, ${connections === 1 ? 'one after the other' : `${connections} connections`}, fsync ${fsync ? 'on' : 'off'}`,
    against: 'BEGIN, UPDATE, COMMIT over bare pg',
    fsync,
    connections,
    contenders: ({ plain }, leases) => {
      const pool = /** @type {any} */ (plain.driver).master;
      /** @param {(id: number) => string} begin */
      const transaction = (begin) => async (/** @type {number} */ id) => {
        const client = await pool.connect();
        await client.query(begin(id));
        await client.query(UPDATE, [id]);
        await client.query('COMMIT');
        client.release();
      };
      const guards = leases.map(
        ({ key, owner, generation }) =>
          `START TRANSACTION; CALL fencing_guard('${key}', ${generation}, '${owner}', 50000, NULL)`,
      );
      return [
        { name: 'guarded', under: alone, write: transaction((id) => guards[id - 1] ?? '') },
        { name: 'plain', under: alone, write: transaction(() => 'START TRANSACTION') },
      ];
    },
  };
}

/**
 * @param {string} id
 * @param {{ fsync: boolean, connections: number, shared?: boolean, atLeast?: number }} options
 * @returns {Case}
 */
function fenced(id, options) {
  const { fsync, connections, shared } = options;
  const title =
    `fenced transaction, ${connections === 1 ? 'one after the other' : `${connections} connections`}, fsync ${fsync ? 'on' : 'off'}` +
    (connections === 1 ? '' : shared ? ', one lease for all' : ', a lease each');
  return {
    id,
    title,
    against: PLAIN_TRANSACTION,
    ...options,
    contenders: (app, leases) => [
      { name: 'fenced', under: underLease(leases), write: fencedWrite(app, UPDATE) },
      plainTransaction(app),
    ],
  };
}

/** @param {Lease[]} leases @returns {Contender['under']} */
function underLease(leases) {
  return (caller, work) => /** @type {Lease} */ (leases[caller % leases.length]).run(work);
}

/** @type {Contender['under']} */
function alone(_caller, work) {
  return work();
}

/** @param {App} app @param {string} statement @returns {Contender['write']} */
function fencedWrite({ fencing }, statement) {
  return (id) => fencing.write({}, (/** @type {EntityManager} */ m) => m.query(statement, [id]));
}

/** @param {App} app @returns {Contender} */
function plainTransaction({ plain }) {
  return { name: 'plain', under: alone, write: (id) => plain.transaction((m) => m.query(UPDATE, [id])) };
}

/** @param {App} app @param {string} table @param {number} [rows] */
async function makeProtected({ plain }, table, rows) {
  await makeRows(plain, table, rows);
  const runner = plain.createQueryRunner();
  await protectTable(runner, table);
  await runner.release();
}

/**
 * @param {any} fencing
 * @param {number} count
 * @returns {Promise<Lease[]>}
 */
function takeLeases(fencing, count) {
  return Promise.all(Array.from({ length: count }, (_, i) => fencing.acquire(`row:${i}`, { ttlMs: 60_000 })));
}
