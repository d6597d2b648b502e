import type { Fence } from './fence.js';
import type { LeaseStore } from './lease-store.js';

/** A fence that is made once the application's providers exist. */
export interface FenceSource {
  /** The provider that `create` is given, if it needs one. */
  readonly token: unknown;
  /** What to tell where there is no such provider. */
  readonly tokenHelp: string;
  create(provider: unknown): Fence;
}

/** A lease store that is made once the application's providers exist. */
export interface LeaseStoreSource {
  /** The provider that `createStore` is given, if it needs one. */
  readonly token: unknown;
  /** What to tell where there is no such provider. */
  readonly tokenHelp: string;
  createStore(provider?: unknown): LeaseStore;
}
