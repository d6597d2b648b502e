import assert from 'node:assert/strict';
import type { WakeHint } from '../core/lease-store.js';
import { eventually } from './contract-tools.js';
import { type StoreTest, waiter } from './lease-store-case.js';

/** Keys that would break a store that builds names, patterns or statements of them without care: `it.each(HOSTILE_KEYS)`. */
export const HOSTILE_KEYS: readonly string[] = [
  ' spaces  inside ',
  'line\nbreak\r\n',
  '{braces}',
  '}{',
  '{a}{b}',
  '*',
  '> waiter',
  '- 100 key',
  'trailing:',
  'quote\' " \\ $1 $$ --',
  'null',
  '\u00e9\u0065\u0301',
  '\u{1f600}',
  'a'.repeat(1_024),
];

/** Every step, on each of those keys. */
export function provesHostileKeys(test: StoreTest): void {
  for (const key of HOSTILE_KEYS) {
    test(`treats the key ${JSON.stringify(key.length > 40 ? `${key.slice(0, 40)}…` : key)} like any other`, async (one) => {
      one.key = key;
      const first = await one.granted('a');
      await one.busy('b', { waiter: waiter('w') });
      assert.equal(await one.renew('a'), true);
      await one.held('a', first);
      const hints: WakeHint[] = [];
      const watch = one.store.watch(key, (hint) => hints.push(hint), performance.now());
      await watch.live;
      assert.deepEqual(await one.release('a'), { held: true });
      await eventually('a hint', () =>
        hints.some(({ waiterId }) => waiterId === 'w' || waiterId === undefined),
      );
      watch.stop();
      await eventually('its turn', async () => (await one.acquire('b', { waiter: waiter('w') })).granted);
      const answer = await one.release('b', {
        successor: { owner: 'c', ttlMs: 20_000, waiterId: 'w', forMs: 1_000 },
      });
      assert.ok(answer.successor);
      await one.store.withdraw(key, 'w');
      await one.release('c');
      await one.free();
    });
  }
}
