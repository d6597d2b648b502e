import { beforeAll, describe, expect, it } from '@jest/globals';
import { leaseStoreContract } from 'nestjs-fencing/testing';
import { MUTANT_STORES, RightStore } from './contract/mutant-stores.js';
import { ContractRun } from './contract/run-contract.js';

const contractOf = (Store: new () => RightStore) =>
  new ContractRun((tools) =>
    leaseStoreContract(tools, () => {
      const store = new Store();
      return { open: () => store, lose: () => store.forget() };
    }),
  );

/** So many at a time, since most of them wait for a time to pass; more would disturb each other. */
const AT_ONCE = 6;
/** A mistake in time, or in the order of things, shows only where the machine is not too busy to look in time. */
const MOST_TRIES = 5;

describe('the contract of lease stores', () => {
  const failures = new Map<readonly unknown[], Error | undefined>();

  beforeAll(async () => {
    const waiting = [...MUTANT_STORES];
    const runSome = async () => {
      for (let mutant; (mutant = waiting.shift());) {
        const [Store, title] = mutant;
        let failure: Error | undefined;
        for (let tries = 0; tries < MOST_TRIES && !failure; tries++)
          failure = await contractOf(Store).failure(title);
        failures.set(mutant, failure);
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, runSome));
  }, 300_000);

  it.each([...new Set(MUTANT_STORES.map(([, title]) => title))])(
    'passes with the same store without a mistake (%s)',
    async (title) => {
      expect(await contractOf(RightStore).failure(title)).toBeUndefined();
    },
  );

  it.each(MUTANT_STORES.map((mutant) => [mutant[0].name, mutant[1], mutant] as const))(
    'fails on the mistake %s (%s)',
    (_name, _title, mutant) => {
      expect(failures.get(mutant)?.message).toEqual(expect.any(String));
    },
  );
});
