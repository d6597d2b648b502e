export { ManualClock } from './manual-clock.js';
export { memoryLeases, MemoryLeaseStore, type MemoryLeasesOptions } from './memory-lease-store.js';
