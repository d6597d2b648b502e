import type { Published } from '../events.js';
import type { Stage } from '../stage.js';
import { claimReportIsOf, type Scenario, takeOver } from './scenario.js';

const customerId = 'customer-5';
const HOUR_US = 3_600_000_000;

export const redisLost: Scenario = {
  id: '5',
  title:
    'Redis is killed and comes back empty, while A works under a lease that it has every reason to trust',
  async play(stage, scene) {
    const { A, B } = await stage.cast();
    await stage.openAccount(customerId);

    const first = B.order({
      method: 'rebuild',
      customerId,
      operationId: 'publish-5-0',
      pauseAt: 'after the write',
    });
    const early = await first.granted();
    const accepted = await first.wrote<Published>();
    scene.step('B', 'publishes a first report', { operation: 'publish-5-0', ...early, accepted });
    await first.pausedAt('after the write');
    // The clock of a Redis helps its successor; here it must not.
    await setCounterAhead(stage, early.generation);
    scene.step('Redis', 'turns out to have a clock that is an hour fast');
    first.passOn('after the write');
    await first.ended();

    const call = A.order({
      method: 'rebuildSlowly',
      customerId,
      operationId: 'publish-5-A',
      pauseAt: 'before the write',
    });
    const grant = await call.granted();
    await call.pausedAt('before the write');
    const facts = { operation: 'publish-5-A', ...grant };
    scene.step('A', 'takes the lease and reads the ledger: 3 entries', facts);
    await stage.addEntry(customerId, 400);

    await stage.servers.killRedis();
    scene.step('Redis', 'is killed (SIGKILL)');
    await stage.servers.startEmptyRedis();
    scene.step('Redis', 'comes back empty, with the right time: below the generations that it had given');
    const takenOver = await takeOver(stage, scene, B, {
      customerId,
      operationId: 'publish-5-B',
      former: grant,
    });
    const { error } = await takenOver.call.ended();
    scene.claim("B's first write was accepted", error === undefined, error?.code);

    call.passOn('before the write');
    const ended = await call.ended();
    const code = ended.error?.code;
    if (code) scene.step('A', 'tries to publish', { ...facts, refused: code });
    else scene.step('A', 'publishes', { ...facts, accepted });
    scene.claim(
      'A did not know, and the database refused its write',
      code === 'STALE_GENERATION',
      code ?? 'accepted',
    );
    await claimReportIsOf(stage, scene, customerId, takenOver);
  },
};

async function setCounterAhead(stage: Stage, generation: number): Promise<void> {
  const [lease] = await stage.redis.keys(`*:lease:report:${customerId}`);
  await stage.redis.set(lease!.replace(/:lease:.*/, ':generation'), generation + HOUR_US);
}
