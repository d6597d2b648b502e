import assert from 'node:assert/strict';
import type { Fence, WriteAuthority } from '../core/fence.js';
import {
  type AcquireAnswer,
  type AcquireRequest,
  type Grant,
  LeaseStore,
  type ReleaseAnswer,
  type ReleaseRequest,
  type RenewRequest,
  type WakeHint,
} from '../core/lease-store.js';
import { eventually } from './contract-tools.js';
import type { LeaseStoreCase, StoreTest } from './lease-store-case.js';

/**
 * A store that is asked to activate whatever it grants, and whose word is checked: what it calls activated, the fence must
 * name, or something newer. So each test of the contract, and the random load, is one of activations as well.
 */
export class CheckedActivations extends LeaseStore {
  readonly kind: string;

  constructor(
    private readonly inner: LeaseStore,
    private readonly fence: Fence,
  ) {
    super();
    this.kind = inner.kind;
    assert.ok('joinFence' in inner, 'a store that activates has joinFence');
    inner.joinFence!(fence);
  }

  async acquire(request: AcquireRequest): Promise<AcquireAnswer> {
    const answer = await this.inner.acquire({ activate: true, ...request });
    if (answer.granted && answer.activated) await this.assertRaised({ ...request, ...answer });
    return answer;
  }

  async release(request: ReleaseRequest): Promise<ReleaseAnswer> {
    const { key, successor } = request;
    const answer = await this.inner.release({
      ...request,
      successor: successor && { activate: true, ...successor },
    });
    if (answer.successor && 'generation' in answer.successor && answer.successor.activated)
      await this.assertRaised({ key, owner: successor!.owner, generation: answer.successor.generation });
    return answer;
  }

  check() {
    return this.inner.check();
  }
  renew(requests: readonly RenewRequest[]): Promise<boolean[]> {
    return this.inner.renew(requests);
  }
  withdraw(key: string, waiterId: string): Promise<void> {
    return this.inner.withdraw(key, waiterId);
  }
  inspect(key: string) {
    return this.inner.inspect(key);
  }
  watch(key: string, listener: (hint: WakeHint) => void, since: number) {
    return this.inner.watch(key, listener, since);
  }
  close(): Promise<void> {
    return this.inner.close();
  }

  private async assertRaised({ key, owner, generation }: Grant): Promise<void> {
    const fence = await this.fence.inspect(key);
    const isRaised =
      fence && (fence.generation > generation || (fence.generation === generation && fence.owner === owner));
    assert.ok(isRaised, `the fence names ${generation} or a newer one: the store said it is activated`);
  }
}

/** Activation in the request that grants. */
export function provesActivating(test: StoreTest): void {
  const fenceOf = (one: LeaseStoreCase) => one.fence!;
  /** The generation of a grant that must have been activated with it. */
  const activated = async (one: LeaseStoreCase, owner: string, more: Partial<AcquireRequest> = {}) => {
    const answer = await one.acquire(owner, more);
    assert.ok(answer.granted && answer.activated, `the grant of ${owner} must be activated`);
    const { generation } = answer;
    const { generation: named, owner: by } = (await fenceOf(one).inspect(one.key))!;
    assert.deepEqual([named, by], [generation, owner]);
    return generation;
  };

  test('raises the fence to what it grants, in the same request', async (one) => {
    const first = await activated(one, 'a');
    await one.release('a');
    assert.ok((await activated(one, 'b')) > first);
  });

  test('leaves the fence alone where it is not asked to, and where the key is busy', async (one) => {
    // Asked for together, since they may share a request.
    const [answer, other] = await Promise.all([
      one.acquire('a', { activate: false }),
      one.acquire('a', { key: `${one.key} other` }),
    ]);
    assert.ok(answer.granted && !answer.activated);
    assert.equal(await fenceOf(one).inspect(one.key), undefined);
    assert.ok(other.granted && other.activated);
    await one.busy('b');
    assert.equal(await fenceOf(one).inspect(one.key), undefined);
  });

  test('I6: a repeated acquisition is activated again, and changes nothing', async (one) => {
    const first = await activated(one, 'a');
    assert.equal(await activated(one, 'a'), first);
    const crossing = await Promise.all([one.acquire('a'), one.acquire('a', {}, await one.another())]);
    assert.deepEqual(
      crossing.map((answer) => answer.granted && [answer.generation, answer.activated]),
      [
        [first, true],
        [first, true],
      ],
    );
  });

  test('raises the fence to a successor that is granted the key', async (one) => {
    const first = await activated(one, 'a');
    const { successor } = await one.release('a', {
      successor: { owner: 's', ttlMs: 20_000, waiterId: 'w', forMs: 1_000 },
    });
    assert.ok(successor && 'generation' in successor && successor.generation > first);
    assert.equal(successor.activated, true);
    const { generation, owner } = (await fenceOf(one).inspect(one.key))!;
    assert.deepEqual([generation, owner], [successor.generation, 's']);
  });

  test('I1: never lowers a fence that is ahead; a grant above it is activated', async (one) => {
    const ahead = (await one.granted('a', { activate: false })) + 10 ** 12;
    const newest = { key: one.key, generation: ahead, owner: 'of a store that was lost' };
    assert.ok((await fenceOf(one).activate({ ...newest, waitMs: 1_000 })).activated);
    const answer = await one.acquire('a');
    assert.ok(answer.granted && !answer.activated);
    assert.equal((await fenceOf(one).inspect(one.key))!.generation, ahead);
    assert.ok((await activated(one, 'a', { floor: ahead })) > ahead);
  });

  test('I2, I3: does not pass a write of the previous owner that is open, and waits for none either', async (one) => {
    const generation = await activated(one, 'a');
    const write = await openWrite(fenceOf(one), { key: one.key, owner: 'a', generation });
    try {
      await one.release('a');
      const answer = await one.acquire('b');
      assert.ok(answer.granted, 'the grant does not wait for it');
      assert.ok(!answer.activated, 'the fence does not pass it');
      assert.equal((await fenceOf(one).inspect(one.key))!.generation, generation);
      // Nor does what other callers ask for meanwhile.
      assert.ok((await one.acquire('c', { key: `${one.key} other` })).granted);
    } finally {
      await write.end();
    }
    await eventually('the row is free', async () => {
      const answer = await one.acquire('b');
      return answer.granted && answer.activated;
    });
  });
}

/** A write whose guard has passed, and that has not committed. */
async function openWrite(fence: Fence, grant: Grant): Promise<{ end(): Promise<void> }> {
  const authority: WriteAuthority = {
    grants: [grant],
    remainingMs: () => 20_000,
    ended: () => undefined,
    onEnd: () => () => undefined,
    onRenewed: () => () => undefined,
  };
  let end!: () => void;
  const over = new Promise<void>((resolve) => (end = resolve));
  let written!: Promise<unknown>;
  await new Promise<void>((resolve, reject) => {
    const body = () => (resolve(), over);
    written = fence.write({ authority, retries: 0, body });
    written.catch(reject);
  });
  return { end: async () => void (end(), await written) };
}
