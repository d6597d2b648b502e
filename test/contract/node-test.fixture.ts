import { describe, it } from 'node:test';
import { leaseStoreContract } from 'nestjs-fencing/testing';
import { MUTANT_STORES, RightStore } from './mutant-stores.js';

/* The contract under another test runner: of the right store, or of the first mutant of the name given. */

const [, , name] = process.argv;
const Store = MUTANT_STORES.find(([Mutant]) => Mutant.name === name)?.[0] ?? RightStore;

void describe(`the contract of ${Store.name}`, () => {
  leaseStoreContract({ describe, it }, () => {
    const store = new Store();
    return { open: () => store, lose: () => store.forget() };
  });
});
