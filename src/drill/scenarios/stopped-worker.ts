import type { Scene } from '../claims.js';
import type { Published } from '../events.js';
import type { PausePoint } from '../orders.js';
import type { Stage } from '../stage.js';
import { claimReportIsOf, type Scenario, takeOver } from './scenario.js';

interface Variant {
  readonly id: string;
  readonly title: string;
  readonly pauseAt: PausePoint;
  /** Whether its clock stands still with it, so that it cannot tell. */
  readonly suspended: boolean;
  /** The error that ends A's call. */
  readonly endsWith: string;
}

const variants: Variant[] = [
  {
    id: '1a',
    title: 'A worker is stopped before its write, for longer than its lease lasts',
    pauseAt: 'before the write',
    suspended: false,
    endsWith: 'LEASE_LOST',
  },
  {
    id: '1b',
    title: 'The same with its whole machine suspended: its clock stood still too, so it cannot tell',
    pauseAt: 'before the write',
    suspended: true,
    endsWith: 'STALE_GENERATION',
  },
  {
    id: '1c',
    title: 'A worker is stopped inside its write: its transaction is open, the row not yet touched',
    pauseAt: 'inside the write',
    suspended: false,
    endsWith: 'LEASE_LOST',
  },
];

export const stoppedWorker: Scenario[] = variants.map((variant) => ({
  id: variant.id,
  title: variant.title,
  play: (stage, scene) => play(stage, scene, variant),
}));

async function play(stage: Stage, scene: Scene, variant: Variant): Promise<void> {
  const { id, pauseAt, suspended, endsWith } = variant;
  const customerId = `customer-${id}`;
  const workers = await stage.cast();
  const A = suspended ? workers.suspendable : workers.A;
  const operation = `publish-${id}-A`;
  await stage.openAccount(customerId);

  const call = A.order({ method: 'rebuild', customerId, operationId: operation, pauseAt });
  const grant = await call.granted();
  await call.pausedAt(pauseAt);
  const facts = { operation, ...grant };
  scene.step('A', `takes the lease and reads the ledger: 3 entries; stands ${pauseAt}`, facts);
  A.stop();
  scene.step('drill', `SIGSTOP to A (process ${A.pid})`);
  await stage.addEntry(customerId, 400);
  scene.step('drill', 'adds a fourth entry to the ledger');

  const takenOver = await takeOver(stage, scene, workers.B, {
    customerId,
    operationId: `publish-${id}-B`,
    former: grant,
  });
  if (pauseAt === 'inside the write') {
    const open = await stage.idleTransactions(A);
    scene.step('Postgres', open === 0 ? "has ended A's transaction" : "still keeps A's transaction open");
    scene.claim("the server itself ended the stopped writer's transaction with its lease", open === 0);
  }

  call.passOn(pauseAt);
  A.goOn();
  scene.step('drill', 'SIGCONT to A, which goes on with its write');
  const ended = await call.ended();
  const { code = 'no error', acceptedWrites = 0 } = ended.error ?? {};
  if (!ended.error) {
    scene.step('A', 'its call ends as if all were well', { ...facts, accepted: ended.result as Published });
  } else if (acceptedWrites > 0) {
    scene.step('A', `its call ends as ${code}, after its write has landed`, facts);
  } else {
    scene.step('A', 'its call ends', { ...facts, refused: code });
  }
  scene.claim(
    suspended
      ? 'A did not know, and the database refused its write'
      : "A's call ends as lost, with no write accepted",
    code === endsWith && acceptedWrites === 0,
    `${code}, ${acceptedWrites} accepted`,
  );
  scene.claim("A's signal is aborted", ended.abortedWith !== undefined, ended.abortedWith ?? 'not aborted');
  await claimReportIsOf(stage, scene, customerId, takenOver);
  await takenOver.call.ended();
}
