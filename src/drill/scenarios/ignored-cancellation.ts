import type { Published } from '../events.js';
import type { LateWrites } from '../orders.js';
import { claimReportIsOf, type Scenario, takeOver } from './scenario.js';

const customerId = 'customer-4';

export const ignoredCancellation: Scenario = {
  id: '4',
  title: 'A worker loses its lease, never looks at its signal, and keeps writing',
  async play(stage, scene) {
    const { A, B } = await stage.cast();
    const { network } = stage;
    const operationId = 'publish-4-A';
    await stage.openAccount(customerId);

    const call = A.order({ method: 'keepWriting', customerId, operationId, pauseAt: 'after the write' });
    const grant = await call.granted();
    const accepted = await call.wrote<Published>();
    const facts = { operation: operationId, ...grant };
    scene.step('A', 'takes the lease, reads and publishes', { ...facts, accepted });
    await call.pausedAt('after the write');
    network.refuse();
    network.cutAll();
    scene.step('network', 'cuts A off from Redis');
    await call.aborted();
    scene.step('A', 'its signal is aborted, and it does not look', facts);
    await stage.addEntry(customerId, 400);

    const takenOver = await takeOver(stage, scene, B, {
      customerId,
      operationId: 'publish-4-B',
      former: grant,
    });
    call.passOn('after the write');
    const ended = await call.ended();
    await network.accept();
    const { landed, refusals } = ended.result as LateWrites;
    const codes = Object.entries(refusals);
    for (const [code, times] of codes)
      scene.step('A', `writes ${times} more times`, { ...facts, refused: code });
    if (landed > 0) scene.step('A', `writes ${landed} more times`, { ...facts, accepted });
    scene.claim(
      'every late write is refused',
      landed === 0 && codes.length > 0,
      codes.map(([code, times]) => `${times} x ${code}`).join(', '),
    );
    scene.claim('no late write left a receipt', (await stage.countReceipts(`${operationId}-`)) === 0);
    const { code, acceptedWrites } = ended.error ?? {};
    scene.claim(
      "A's call ends as lost although its method returned, and says how much had been accepted before",
      code === 'LEASE_LOST' && acceptedWrites === 1,
      `${code}, ${acceptedWrites} accepted`,
    );
    await claimReportIsOf(stage, scene, customerId, takenOver);
    await takenOver.call.ended();
  },
};
