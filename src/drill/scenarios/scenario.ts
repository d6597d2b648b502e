import type { Scene } from '../claims.js';
import type { Published } from '../events.js';
import type { Granted } from '../orders.js';
import type { Stage } from '../stage.js';
import { resultText } from '../table.js';
import type { Call, DrillWorker } from '../worker-process.js';

export interface Scenario {
  readonly id: string;
  readonly title: string;
  readonly play: (stage: Stage, scene: Scene) => Promise<void>;
}

export interface TakeOver {
  readonly grant: Granted;
  readonly published: Published;
  readonly call: Call;
}

/** B waits for the key until the former owner's lease is over, rebuilds the report and publishes it. */
export async function takeOver(
  stage: Stage,
  scene: Scene,
  B: DrillWorker,
  { customerId, operationId, former }: { customerId: string; operationId: string; former: Granted },
): Promise<TakeOver> {
  const call = B.order({ method: 'rebuild', customerId, operationId, pauseAt: 'before the write' });
  const grant = await call.granted();
  await call.pausedAt('before the write');
  scene.step('B', 'takes over and reads the ledger', { operation: operationId, ...grant });
  const activated = await stage.activated(customerId);
  const above = grant.generation > former.generation;
  scene.claim("B's generation is above A's", above, grant.generation - former.generation);
  scene.claim(
    'the database knew B before B read',
    sameGrant(activated, grant),
    activated?.generation ?? 'nobody',
  );
  call.passOn('before the write');
  const published = await call.wrote<Published>();
  scene.step('B', 'publishes', { operation: operationId, ...grant, accepted: published });
  return { grant, published, call };
}

/** Looks at what stands in the database after A's late attempt. */
export async function claimReportIsOf(
  stage: Stage,
  scene: Scene,
  customerId: string,
  { grant, published }: TakeOver,
): Promise<void> {
  const report = (await stage.report(customerId))!;
  const { entries, totalCents, generation } = report;
  const holds = generation === grant.generation && entries === published.entries;
  scene.step('drill', holds ? "reads the report: it is B's" : "reads the report: it is not B's any more", {
    generation,
    accepted: { entries, totalCents },
    overwritten: holds ? undefined : published,
  });
  scene.claim("the report is B's", holds, resultText(report));
}

export function sameGrant(one: Granted | undefined, other: Granted): boolean {
  return one?.owner === other.owner && one.generation === other.generation;
}
