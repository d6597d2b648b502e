import assert from 'node:assert/strict';
import type { ContractTools } from './contract-tools.js';
import { provesActivating } from './lease-store-activating.js';
import { type LeaseAuthority, storeTests } from './lease-store-case.js';
import { provesEnding } from './lease-store-ending.js';
import { provesItUnderLoad } from './lease-store-fuzz.js';
import { provesGranting } from './lease-store-granting.js';
import { provesHostileKeys } from './lease-store-hostile-keys.js';
import { provesWaiting } from './lease-store-waiting.js';

/**
 * The contract of a `LeaseStore`, as tests. Registers them with the test runner's `describe` and `it` (Jest, Vitest, `node:test`):
 *
 * ```ts
 * import { describe, it } from 'node:test';
 * import { leaseStoreContract } from 'nestjs-fencing/testing';
 *
 * leaseStoreContract({ describe, it }, () => {
 *   const server = new MyServer();
 *   return { open: () => new MyLeaseStore(server), lose: () => server.clear() };
 * });
 * ```
 * `make` is called for each test and gives an authority that has issued nothing yet: one of the tests drives its counter to the
 * end. A prefix or a schema of its own will do.
 *
 * The tests take real time (a ttl passes): about ten seconds in all. They cover the atomicity of each step, repeated requests (I6),
 * owners (I5), generations (I1), the loss of all data (I7), expiry (I8), waiting and hints (I9), and a random load of several
 * workers whose history is checked. With `activates`, for a store that raises the fence in the request of a grant, the authority has a
 * `fence`, every test activates as well, and there are tests of that. They do not cover failures of the server or the network.
 */
export function leaseStoreContract(
  tools: ContractTools,
  make: () => LeaseAuthority | Promise<LeaseAuthority>,
  { activates = false }: { activates?: boolean } = {},
): void {
  const test = storeTests(tools, async () => {
    const authority = await make();
    assert.equal(authority.fence !== undefined, activates, 'an authority with a fence is one that activates');
    return authority;
  });
  tools.describe('grants', () => provesGranting(test));
  tools.describe('renews, releases and lets expire', () => provesEnding(test));
  tools.describe('those who wait', () => provesWaiting(test));
  tools.describe('hostile keys', () => provesHostileKeys(test));
  if (activates) tools.describe('activates what it grants', () => provesActivating(test));
  tools.describe('under load', () => provesItUnderLoad(test));
}
