import assert from 'node:assert/strict';
import type { LeaseStore, WakeHint } from '../core/lease-store.js';
import { eventually } from './contract-tools.js';
import { type LeaseStoreCase, type StoreTest, waiter } from './lease-store-case.js';

const successor = (owner: string, more = {}) => ({
  owner,
  ttlMs: 20_000,
  waiterId: 'mine',
  forMs: 60_000,
  ...more,
});

/** Within a try that is repeated, ms. */
const SOON_MS = 500;

/** Those who wait: hand-over, the order of processes, hints. */
export function provesWaiting(test: StoreTest): void {
  test('hands the key over to a named successor in the same step, under a higher generation', async (one) => {
    const first = await one.granted('a');
    const answer = await one.release('a', { successor: successor('b') });
    assert.ok(answer.successor && 'generation' in answer.successor);
    const { generation } = answer.successor;
    assert.ok(generation > first, `${generation} is above ${first}`);
    await one.held('b', generation);
    assert.equal(
      await one.granted('b'),
      generation,
      'its own request, sent because the answer was lost, is a retry',
    );
    assert.equal(await one.renew('a'), false);
  });

  test('I6: a hand-over that is sent again changes nothing', async (one) => {
    await one.granted('a');
    const { successor: granted } = await one.release('a', { successor: successor('b') });
    assert.deepEqual(await one.release('a', { successor: successor('b') }), { held: false });
    await one.held('b', (granted as { generation: number }).generation);
    await one.release('b');
    assert.deepEqual(await one.release('a', { successor: successor('b') }), { held: false });
    await one.free();
  });

  test('refuses the hand-over in favour of another process that waits, and puts the successor behind it', async (one) => {
    await one.promptly(async (fromNow) => {
      await one.granted('a');
      await one.busy('their head', { waiter: waiter('theirs') });
      fromNow();
      const answer = await one.release('a', { successor: successor('b') });
      assert.ok(answer.successor && 'waitMs' in answer.successor, 'the other process goes first');
      assert.ok(answer.successor.waitMs > 0);
      await one.busy('b', { waiter: waiter('mine') });
      await one.busy('somebody');
      await one.granted('their head', { waiter: waiter('theirs') });
      fromNow();
      await one.release('their head');
      await one.busy('somebody');
      await one.granted('b', { waiter: waiter('mine') });
    });
  });

  test('lets the successor overtake where it may', async (one) => {
    await one.granted('a');
    await one.busy('their head', { waiter: waiter('theirs') });
    const answer = await one.release('a', { successor: successor('b', { mayOvertake: true }) });
    assert.ok(answer.successor && 'generation' in answer.successor);
    await one.held('b', answer.successor.generation);
    await one.promptly(async (fromNow) => {
      await one.granted('a');
      await one.busy('their head', { waiter: waiter('theirs') });
      await one.release('a', { successor: successor('b', { mayOvertake: true }) });
      fromNow();
      await one.release('b');
      await one.busy('somebody');
      await one.granted('their head', { waiter: waiter('theirs') });
    });
  });

  test('forgets nobody who waits over hand-overs inside another process', async (one) => {
    await one.promptly(async (fromNow) => {
      await one.granted('a');
      await one.busy('their head', { waiter: waiter('theirs') });
      for (const [owner, next] of ['ab', 'bc', 'cd'])
        await one.release(owner!, { successor: successor(next!, { mayOvertake: true }) });
      fromNow();
      await one.release('d');
      await one.busy('somebody');
      await one.granted('their head', { waiter: waiter('theirs') });
    });
  });

  test('a process that gets its key leaves the line, however the key became free', async (one) => {
    await one.granted('a', { ttlMs: 100 });
    await one.busy('head', { waiter: waiter('w') });
    await eventually('its turn', async () => (await one.acquire('head', { waiter: waiter('w') })).granted);
    await one.release('head');
    await one.granted('somebody');
  });

  test('serves waiting processes first come, first served', async (one) => {
    await one.promptly(async (fromNow) => {
      const ids = ['1', '2', '3'];
      await one.granted('first');
      for (const id of ids) await one.busy(`head ${id}`, { waiter: waiter(id) });
      await one.busy('head 1', { waiter: waiter('1') });
      let holder = 'first';
      for (const id of ids) {
        fromNow();
        await one.release(holder);
        for (const later of ids.filter((other) => other > id))
          await one.busy(`head ${later}`, { waiter: waiter(later) });
        await one.granted(`head ${id}`, { waiter: waiter(id) });
        holder = `head ${id}`;
      }
    });
  });

  test('frees a key that is kept for a waiter that does not come, soon', async (one) => {
    await one.granted('a');
    await one.busy('head', { waiter: waiter('gone') });
    await one.release('a');
    await one.free();
    await one.comesFree('after the time that it was kept for the waiter');
  });

  test('a key that is kept for a waiter belongs to nobody: neither renewal nor release touches it', async (one) => {
    await one.promptly(async (fromNow) => {
      await one.granted('a');
      await one.busy('head', { waiter: waiter('w') });
      fromNow();
      await one.release('a');
      for (const owner of ['a', 'w', 'head', '']) {
        assert.equal(await one.renew(owner), false);
        assert.deepEqual(await one.release(owner), { held: false });
      }
      await one.busy('w');
      await one.granted('head', { waiter: waiter('w') });
    });
  });

  test('passes what was kept for a waiter on to the next when it withdraws, and frees it after the last', async (one) => {
    await one.promptly(async (fromNow) => {
      await one.granted('a');
      for (const id of ['1', '2']) await one.busy(`head ${id}`, { waiter: waiter(id) });
      fromNow();
      await one.release('a');
      await one.store.withdraw(one.key, '1');
      await one.busy('somebody');
      await one.busy('head 1', { waiter: waiter('1') });
      await one.store.withdraw(one.key, '1');
      await one.store.withdraw(one.key, '2');
      await one.granted('somebody');
    });
  });

  test('forgets a waiter that withdraws while the key is held', async (one) => {
    await one.granted('a');
    await one.busy('head', { waiter: waiter('w') });
    await one.store.withdraw(one.key, 'w');
    await one.release('a');
    const generation = await one.granted('somebody');
    await one.store.withdraw(one.key, 'w');
    await one.store.withdraw(one.key, 'never seen');
    await one.held('somebody', generation);
  });

  test('a waiter that withdraws while others wait takes nothing from the holder', async (one) => {
    const generation = await one.granted('a');
    for (const id of ['1', '2', '3']) await one.busy(`head ${id}`, { waiter: waiter(id) });
    for (const id of ['2', '1']) await one.store.withdraw(one.key, id);
    await one.held('a', generation);
    assert.equal(await one.renew('a'), true);
    await one.promptly(async (fromNow) => {
      await one.granted('a');
      for (const id of ['1', '2', '3']) await one.busy(`head ${id}`, { waiter: waiter(id) });
      await one.store.withdraw(one.key, '1');
      fromNow();
      await one.release('a');
      await one.busy('head 3', { waiter: waiter('3') });
      await one.granted('head 2', { waiter: waiter('2') });
    });
  });

  test('wakes a waiting process when the key is released: on its own connection, by a hint for its waiter', async (one) => {
    const theirs = await one.another();
    await one.granted('a');
    const hints = await watching(one, theirs);
    await one.busy('head', { waiter: waiter('w') }, theirs);
    await one.release('a');
    await eventually('a hint for w', () => hints.some(isFor('w')));
    await eventually(
      'its turn',
      async () => (await one.acquire('head', { waiter: waiter('w') }, theirs)).granted,
    );
  });

  test('wakes the next waiting process when the one before it withdraws', async (one) => {
    const theirs = await one.another();
    await one.granted('a');
    const hints = await watching(one, theirs);
    await one.promptly(async (fromNow) => {
      const more = await watching(one, theirs);
      await one.granted('a');
      for (const id of ['1', '2']) await one.busy(`head ${id}`, { waiter: waiter(id) }, theirs);
      fromNow();
      await one.release('a');
      await one.store.withdraw(one.key, '1');
      await eventually('a hint for 2', () => more.some(isFor('2')), SOON_MS);
    });
    assert.deepEqual(
      hints.filter(({ waiterId }) => waiterId === '2'),
      [],
      'hints are about one key',
    );
  });

  test('tells those who wait how long a released key stays taken', async (one) => {
    const theirs = await one.another();
    await one.granted('a');
    const hints = await watching(one, theirs);
    await one.busy('head', { waiter: waiter('w') }, theirs);
    await one.release('a', { holdMs: 200 });
    await eventually('a hint', () => hints.length > 0);
    await eventually(
      'its turn',
      async () => (await one.acquire('head', { waiter: waiter('w') }, theirs)).granted,
    );
  });

  test('a hint that came before the watch began is heard all the same, where it came since the time named', async (one) => {
    // Another watch, so that the connection is live: a store may hear nothing before that.
    await one.promptly(async (fromNow) => {
      const early = await watching(one, one.store);
      await one.granted('a');
      const since = performance.now();
      await one.busy('head', { waiter: waiter('w') });
      fromNow();
      await one.release('a');
      await eventually('a hint for w', () => early.some(isFor('w')), SOON_MS);
      const late: WakeHint[] = [];
      const watch = one.store.watch(one.key, (hint) => late.push(hint), since);
      await eventually('the same hint', () => late.some(isFor('w')), SOON_MS);
      watch.stop();
    });
  });

  test('a watch that was stopped hears nothing more', async (one) => {
    await one.granted('a');
    const hints: WakeHint[] = [];
    const stopped = one.store.watch(one.key, (hint) => hints.push(hint), performance.now());
    await stopped.live;
    const heard = await watching(one, one.store);
    await one.busy('head', { waiter: waiter('w') });
    stopped.stop();
    const before = hints.length;
    await one.release('a');
    await eventually('a hint', () => heard.some(isFor('w')));
    assert.equal(hints.length, before);
  });
}

async function watching(one: LeaseStoreCase, store: LeaseStore): Promise<WakeHint[]> {
  const hints: WakeHint[] = [];
  await store.watch(one.key, (hint) => hints.push(hint), performance.now()).live;
  return hints;
}

/** A hint that makes this waiter look: one for it, or one for everybody. */
function isFor(waiterId: string): (hint: WakeHint) => boolean {
  return (hint) => hint.waiterId === waiterId || hint.waiterId === undefined;
}
