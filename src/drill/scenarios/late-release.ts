import { eventually } from '../../../test/support/gate.js';
import type { Published } from '../events.js';
import { sameGrant, type Scenario } from './scenario.js';

const customerId = 'customer-2';

export const lateRelease: Scenario = {
  id: '2',
  title: "A's release arrives late, while B holds the lease",
  async play(stage, scene) {
    const { A, B } = await stage.cast();
    const { network } = stage;
    await stage.openAccount(customerId);

    const operations = { A: 'publish-2-A', B: 'publish-2-B' };
    const first = A.order({
      method: 'rebuild',
      customerId,
      operationId: operations.A,
      pauseAt: 'after the write',
    });
    const grant = await first.granted();
    const accepted = await first.wrote<Published>();
    const facts = { operation: operations.A, ...grant };
    scene.step('A', 'takes the lease, reads and publishes', { ...facts, accepted });
    await first.pausedAt('after the write');

    const releases = (request: string) => {
      const words = request.split(' ');
      return words.includes(grant.owner) && words.includes('release');
    };
    network.stall('requests');
    // Its reply is lost too, so that A sends the release again: that must not hurt either.
    const arrived = network.swallowReplyOnce(releases);
    scene.step('network', 'holds back everything that A sends to Redis');
    first.passOn('after the write');
    const ended = await first.ended();
    await eventually(() => network.requests.some(({ text }) => releases(text)));
    scene.step('A', 'its call ends; its release is on the way', facts);
    scene.claim('a release that is under way does not change the result', ended.error === undefined);

    const second = B.order({
      method: 'rebuild',
      customerId,
      operationId: operations.B,
      pauseAt: 'before the write',
    });
    const taken = await second.granted();
    await second.pausedAt('before the write');
    scene.step('B', "takes over once A's ttl has passed", { operation: operations.B, ...taken });
    network.resume();
    await arrived;
    scene.step('network', "delivers A's release; Redis has answered it", { owner: grant.owner });

    const holder = await stage.lease(customerId);
    scene.step('Redis', 'is asked who holds the lease', {
      owner: holder?.owner,
      generation: holder?.generation,
    });
    scene.claim(
      "A's late release left B's lease alone: same owner, same generation",
      sameGrant(holder, taken),
    );
    second.passOn('before the write');
    const published = await second.wrote<Published>();
    scene.step('B', 'publishes', { operation: operations.B, ...taken, accepted: published });
    const { error } = await second.ended();
    scene.claim("B's publication was accepted", error === undefined, error?.code);
  },
};
