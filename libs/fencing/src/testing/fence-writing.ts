import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { type FenceTest, newGrant, nextOf, TestAuthority } from './fence-case.js';

/** Writes and their guard. */
export function provesWriting(test: FenceTest): void {
  test('accepts a write under the grant that is active, and commits it', async (one) => {
    const grant = await one.activated();
    const outcome = await one.write(grant, async (manager) => {
      await one.note(manager, 'accepted');
      return 42;
    });
    assert.deepEqual(outcome, { result: 42, duplicate: false, committed: true });
    await one.assertNoted('accepted');
  });

  test('I1, I4: refuses a write of an older grant: its body does not run, nothing remains', async (one) => {
    const grant = await one.activated();
    await one.activate(nextOf(grant), one.other);
    await one.assertStale(grant);
  });

  test('demands equality: a newer grant that was not activated may not write', async (one) => {
    const grant = await one.activated();
    await one.assertStale(nextOf(grant));
    await one.write(grant, async () => undefined);
  });

  test('demands equality: the same generation of another owner may not write', async (one) => {
    const grant = await one.activated(4);
    await one.assertStale(newGrant(4, grant.key));
  });

  test('refuses a write where the key was never activated', async (one) => {
    const grant = newGrant();
    await one.assertStale(grant);
    assert.equal(await one.fence.inspect(grant.key), undefined, 'and does not activate it');
  });

  test('guards every key of a write, whichever is stale', async (one) => {
    const grants = [
      await one.activated(1, 'a'.concat(randomUUID())),
      await one.activated(1, 'b'.concat(randomUUID())),
    ];
    await one.write(new TestAuthority(grants), (manager) => one.note(manager, 'both'));
    await one.assertNoted('both');
    for (const [i, stale] of grants.entries()) {
      const next = nextOf(stale);
      await one.activate(next, one.other);
      await one.assertStale(new TestAuthority(grants));
      grants[i] = next;
      await one.write(new TestAuthority(grants), async () => undefined);
    }
  });

  test('I3: keeps every key of an open write from being activated anew, to its commit', async (one) => {
    const grants = [
      await one.activated(1, 'a'.concat(randomUUID())),
      await one.activated(1, 'b'.concat(randomUUID())),
    ];
    const { door, outcome } = await one.openWrite(new TestAuthority(grants), 'under both');
    for (const grant of grants)
      await assert.rejects(one.other.activate({ ...nextOf(grant), waitMs: 100 }), {
        code: 'STORE_UNAVAILABLE',
      });
    door.open();
    assert.equal((await outcome).committed, true);
    for (const grant of grants) await one.activate(nextOf(grant), one.other);
  });

  test('I4: takes back what a body did that failed, and gives its error', async (one) => {
    const grant = await one.activated();
    const mistake = new Error('of the body');
    const failed = one.write(grant, async (manager) => {
      await one.note(manager, 'failed');
      throw mistake;
    });
    await assert.rejects(failed, (error) => error === mistake);
    await one.assertNothingOf('failed');
    await one.activate(nextOf(grant), one.other);
  });

  test('starts nothing once the leases have ended, and gives their reason', async (one) => {
    const authority = new TestAuthority([await one.activated()]);
    const reason = new Error('lost');
    authority.end(reason);
    let ran = false;
    const refused = one.write(authority, async () => void (ran = true));
    await assert.rejects(refused, (error) => error === reason);
    assert.ok(!ran, 'the body does not run');
  });

  test('commits nothing of a write whose leases end while it is open', async (one) => {
    const grant = await one.activated();
    const authority = new TestAuthority([grant]);
    const { door, outcome } = await one.openWrite(authority, 'too late');
    authority.end(new Error('lost'));
    door.open();
    await assert.rejects(outcome);
    await one.activate(nextOf(grant), one.other);
    await one.assertNothingOf('too late');
  });

  test('joins the write that it is called in: one transaction, committed by the outer one', async (one) => {
    const grant = await one.activated();
    assert.equal(one.fence.inTransaction(), false);
    const undone = one.write(grant, async () => {
      assert.equal(one.fence.inTransaction(), true);
      const inner = await one.write(grant, (manager) => one.note(manager, 'inner'));
      assert.equal(inner.committed, false, 'it is not committed yet');
      throw new Error('of the outer body');
    });
    await assert.rejects(undone, /of the outer body/);
    await one.assertNothingOf('inner');
    assert.equal(one.fence.inTransaction(), false);
  });
}
