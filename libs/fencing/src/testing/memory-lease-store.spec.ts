import { describe, it } from '@jest/globals';
import { leaseStoreContract } from './lease-store-contract.js';
import { memoryLeases } from './memory-lease-store.js';

describe('the memory lease store', () => {
  leaseStoreContract({ describe, it }, () => {
    const store = memoryLeases();
    return { open: () => store, lose: () => store.forget() };
  });
});
