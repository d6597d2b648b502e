import { describe } from '@jest/globals';
import { itKeepsTheContract } from '../../../../test/support/lease-store-contract.js';
import { memoryLeases } from './memory-lease-store.js';

describe('the memory lease store', () => {
  itKeepsTheContract(() => memoryLeases());
});
