import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { type FenceTest, newGrant, nextOf } from './fence-case.js';
import { HOSTILE_KEYS } from './lease-store-hostile-keys.js';

const LAST = Number.MAX_SAFE_INTEGER;
/** Long enough for an activation that does not wait to have returned. */
const SOON_MS = 300;

/** Activation. */
export function provesActivating(test: FenceTest): void {
  test('knows nothing of a key that was never activated', async (one) => {
    assert.equal(await one.fence.inspect(`key ${randomUUID()}`), undefined);
  });

  test('raises the fence to a grant, for every process', async (one) => {
    const grant = newGrant(7);
    await one.activate(grant);
    const seen = await one.other.inspect(grant.key);
    assert.equal(seen?.generation, 7);
    assert.equal(seen?.owner, grant.owner);
    assert.ok(seen?.activatedAt instanceof Date);
    const next = nextOf(grant);
    await one.activate(next, one.other);
    assert.equal((await one.fence.inspect(grant.key))?.owner, next.owner);
  });

  test('I6: is content with the same grant again, and changes nothing', async (one) => {
    const grant = await one.activated(3);
    const before = await one.fence.inspect(grant.key);
    await one.activate(grant, one.other);
    assert.deepEqual(await one.fence.inspect(grant.key), before);
  });

  test('refuses a lower generation, and answers the one of the fence', async (one) => {
    const newer = await one.activated(9);
    const answer = await one.other.activate({ ...newGrant(8, newer.key), waitMs: 1_000 });
    assert.deepEqual(answer, { activated: false, generation: 9 });
    assert.equal((await one.fence.inspect(newer.key))?.owner, newer.owner);
  });

  test('refuses the same generation of another owner', async (one) => {
    const grant = await one.activated(5);
    const answer = await one.fence.activate({ ...newGrant(5, grant.key), waitMs: 1_000 });
    assert.deepEqual(answer, { activated: false, generation: 5 });
    assert.equal((await one.fence.inspect(grant.key))?.owner, grant.owner);
  });

  test('keeps the largest generation exactly', async (one) => {
    const grant = await one.activated(LAST);
    const answer = await one.fence.activate({ ...newGrant(LAST - 1, grant.key), waitMs: 1_000 });
    assert.deepEqual(answer, { activated: false, generation: LAST });
  });

  test('ends at the highest of many that are activated at once, and tells the others what is above them', async (one) => {
    const first = newGrant(1);
    const grants = Array.from({ length: 12 }, (_, i) => newGrant(1 + ((i * 7) % 12), first.key));
    const answers = await Promise.all(
      grants.map((grant, i) => (i % 2 ? one.fence : one.other).activate({ ...grant, waitMs: 20_000 })),
    );
    const highest = grants.find(({ generation }) => generation === 12)!;
    const seen = await one.fence.inspect(first.key);
    assert.deepEqual([seen?.generation, seen?.owner], [12, highest.owner]);
    answers.forEach((answer, i) => {
      if (!answer.activated) assert.ok(answer.generation > grants[i]!.generation);
    });
  });

  test('I2: waits for open writes of the previous owner: when it returns, they are committed', async (one) => {
    const grant = await one.activated();
    const { door, outcome } = await one.openWrite(grant, 'before the next');
    let returned = false;
    const activation = one.activate(nextOf(grant), one.other).then(() => (returned = true));
    await Promise.race([activation, new Promise((resolve) => setTimeout(resolve, SOON_MS))]);
    assert.ok(!returned, 'an activation must not pass an open write');
    door.open();
    await activation;
    await one.assertNoted('before the next');
    assert.equal((await outcome).committed, true);
  });

  test('is unavailable when its wait is over, and leaves the fence as it was', async (one) => {
    const grant = await one.activated();
    const { door, outcome } = await one.openWrite(grant, 'slow');
    const next = nextOf(grant);
    await assert.rejects(one.other.activate({ ...next, waitMs: 100 }), { code: 'STORE_UNAVAILABLE' });
    assert.equal((await one.fence.inspect(grant.key))?.owner, grant.owner);
    door.open();
    await outcome;
    await one.activate(next, one.other);
  });

  test('of a grant that is active waits for nobody, nor does that of another key', async (one) => {
    const grant = await one.activated();
    const { door, outcome } = await one.openWrite(grant, 'open');
    const answers = [grant, newGrant()].map((each) => one.other.activate({ ...each, waitMs: 100 }));
    assert.deepEqual(await Promise.all(answers), [{ activated: true }, { activated: true }]);
    door.open();
    await outcome;
  });

  test('treats hostile keys and owners like any other', async (one) => {
    for (const key of HOSTILE_KEYS) {
      const { generation = 0 } = (await one.fence.inspect(key)) ?? {};
      const grant = { key, generation: generation + 1, owner: `o'"\\ $1 ${key.slice(0, 30)}` };
      await one.activate(grant);
      await one.write(grant, async () => undefined);
      await one.assertStale({ ...grant, owner: `${grant.owner} ` });
    }
  });
}
