import type { ContractTools } from './contract-tools.js';
import { provesActivating } from './fence-activating.js';
import { type FencedDatabase, fenceTests } from './fence-case.js';
import { provesOperating } from './fence-operating.js';
import { provesWriting } from './fence-writing.js';

/**
 * The contract of a `Fence`, as tests. Registers them with the test runner's `describe` and `it` (Jest, Vitest, `node:test`):
 *
 * ```ts
 * fenceContract<MyManager>({ describe, it }, async () => {
 *   const pool = await openPool();
 *   return {
 *     open: () => new MyFence(pool),
 *     note: (manager, text) => manager.query('INSERT INTO noted VALUES ($1)', [text]),
 *     noted: async () => (await pool.query('SELECT text FROM noted')).rows.map(({ text }) => text),
 *     close: () => pool.end(),
 *   };
 * });
 * ```
 * Each fence must be able to have two transactions open at once. Keys are random, but for a few hostile ones, so the database may
 * have been used before.
 *
 * They cover activation (equality, retries, older and newer grants, the wait for open writes), the guard (equality, no row, several
 * keys, kept to the commit), leases that end, joined writes, and operations with their receipts. They do not cover failures of
 * the database or the network.
 */
export function fenceContract<Manager>(
  tools: ContractTools,
  make: () => FencedDatabase<Manager> | Promise<FencedDatabase<Manager>>,
): void {
  const test = fenceTests(tools, make);
  tools.describe('activates', () => provesActivating(test));
  tools.describe('guards writes', () => provesWriting(test));
  tools.describe('accepts operations once', () => provesOperating(test));
}
