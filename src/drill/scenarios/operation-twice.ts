import type { Booked } from '../events.js';
import { sameGrant, type Scenario } from './scenario.js';

const customerId = 'customer-6';
const amountCents = 750;

export const operationTwice: Scenario = {
  id: '6',
  title: 'One operation is sent twice: by A, which is stopped before it can tell, and by B after taking over',
  async play(stage, scene) {
    const { A, B } = await stage.cast();
    const operationId = 'fee-6';
    const order = { method: 'bookFee', customerId, operationId, amountCents } as const;
    await stage.openAccount(customerId);

    const call = A.order({ ...order, pauseAt: 'after the write' });
    const grant = await call.granted();
    const booked = await call.wrote<Booked>();
    await call.pausedAt('after the write');
    const facts = { operation: operationId, ...grant };
    scene.step('A', 'takes the lease and books the fee', { ...facts, accepted: booked });
    A.stop();
    scene.step('drill', `SIGSTOP to A (process ${A.pid}): its caller has no answer`);

    const second = B.order(order);
    const taken = await second.granted();
    const again = await second.wrote<Booked>();
    const { error } = await second.ended();
    scene.step('B', 'takes over and sends the same operation', {
      operation: operationId,
      ...taken,
      accepted: again,
    });
    const effects = await stage.countEntries(customerId, amountCents);
    scene.claim('the effect is there once', effects === 1, `${effects} in the ledger`);
    scene.claim(
      'both got one result',
      error === undefined && again.entryId === booked.entryId,
      again.entryId,
    );
    const receipt = await stage.receipt(operationId);
    scene.step('Postgres', receipt ? 'keeps one receipt' : 'has no receipt', {
      operation: operationId,
      owner: receipt?.owner,
      generation: receipt?.generation,
    });
    scene.claim("the receipt names A's grant, under which it was accepted", sameGrant(receipt, grant));

    const other = B.order({ ...order, amountCents: amountCents + 1 });
    const otherGrant = await other.granted();
    const { error: refusal, result } = await other.ended();
    const conflict = refusal?.code;
    scene.step('B', 'sends the same operation with another amount', {
      operation: operationId,
      ...otherGrant,
      refused: conflict,
      accepted: result as Booked | undefined,
    });
    scene.claim(
      'another payload under the same id is refused',
      conflict === 'OPERATION_CONFLICT',
      conflict ?? 'accepted',
    );

    call.passOn('after the write');
    A.goOn();
    const late = await call.ended();
    scene.step('drill', 'SIGCONT to A');
    scene.step(
      'A',
      `its call ends as ${late.error?.code}: ${late.error?.acceptedWrites} write accepted`,
      facts,
    );
    scene.claim(
      "A's call ends as lost and says that its write was accepted",
      late.error?.code === 'LEASE_LOST' && late.error.acceptedWrites === 1,
      `${late.error?.code}, ${late.error?.acceptedWrites} accepted`,
    );
  },
};
