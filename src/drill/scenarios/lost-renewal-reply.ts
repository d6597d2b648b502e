import type { Published } from '../events.js';
import type { Granted, Order } from '../orders.js';
import { resultText } from '../table.js';
import type { Call } from '../worker-process.js';
import type { Scenario } from './scenario.js';

interface Case {
  readonly policy: string;
  readonly operation: string;
  readonly customerId: string;
  readonly call: Call;
  readonly grant: Granted;
}

export const lostRenewalReply: Scenario = {
  id: '3',
  title:
    'The reply to a renewal is lost and Redis out of reach: what each policy for an uncertain lease does',
  async play(stage, scene) {
    const { A } = await stage.cast();
    const { network } = stage;
    const begin = async (method: Order['method'], policy: string): Promise<Case> => {
      const customerId = `customer-3-${policy}`;
      const operation = `3-${policy}`;
      await stage.openAccount(customerId);
      const call = A.order({ method, customerId, operationId: operation });
      return { policy, operation, customerId, call, grant: await call.granted() };
    };
    const cases = await Promise.all([
      begin('orStop', 'stop'),
      begin('orWithhold', 'withhold'),
      begin('orReconcile', 'reconcile'),
    ]);
    const [stop, withhold, reconcile] = cases;
    for (const { policy, operation, grant } of cases) {
      scene.step('A', `takes a lease with the policy '${policy}'`, { operation, ...grant });
    }

    await network.swallowReplyOnce((request) => cases.some(({ grant }) => request.includes(grant.owner)));
    network.refuse();
    network.cutAll();
    scene.step('network', 'swallows the reply to a renewal and lets nothing through');
    const states = await Promise.all(cases.map(({ call }) => call.state()));
    scene.step('A', 'is in doubt about all three leases, whose validity is not over');
    scene.claim(
      'an unconfirmed renewal is uncertain, neither held nor lost',
      states.every((state) => state === 'uncertain'),
      states.join(', '),
    );

    for (const { call } of cases) {
      await call.pausedAt('write 1');
      call.passOn('write 1');
    }
    scene.step('drill', 'lets all three try to publish');
    await stop.call.aborted();
    const stopped = await stop.call.ended();
    const refusedStop = stopped.error?.code;
    scene.step('A', "'stop': its method is aborted", {
      operation: stop.operation,
      ...stop.grant,
      refused: refusedStop,
    });
    scene.claim(
      "'stop': the signal is aborted and the write refused while the lease may still be held",
      refusedStop === 'LEASE_UNCERTAIN' && stopped.abortedWith === 'LEASE_UNCERTAIN',
      refusedStop ?? 'not refused',
    );
    scene.claim("'stop': nothing was published", (await stage.report(stop.customerId)) === undefined);

    const { code } = await reconcile.call.refused();
    scene.step('A', "'reconcile': the write asks Redis first, and gets no answer", {
      operation: reconcile.operation,
      ...reconcile.grant,
      refused: code,
    });
    scene.claim(
      "'reconcile': without an answer the write is refused, and the method goes on",
      code === 'LEASE_UNCERTAIN',
      code,
    );
    const early = await stage.report(withhold.customerId);
    scene.step('A', "'withhold': its write waits", { operation: withhold.operation, ...withhold.grant });
    scene.claim("'withhold': nothing is published while the lease is uncertain", early === undefined);

    await network.accept();
    scene.step('network', 'is whole again');
    for (const { policy, operation, call, grant, customerId } of [withhold, reconcile]) {
      // That of 'withhold' shows that Redis answers again.
      if (policy === 'reconcile') call.passOn('write 2');
      const accepted = await call.wrote<Published>();
      scene.step('A', `'${policy}': publishes`, { operation, ...grant, accepted });
      const { error } = await call.ended();
      const report = await stage.report(customerId);
      scene.claim(
        `'${policy}': confirmed under the same generation, and accepted`,
        error === undefined && report?.generation === grant.generation,
        error?.code ?? (report && resultText(report)),
      );
    }
  },
};
