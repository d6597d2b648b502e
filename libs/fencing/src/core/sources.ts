import type { Fence } from './fence.js';

/** A fence that is made once the application's providers exist. */
export interface FenceSource {
  /** The provider that `create` is given, if it needs one. */
  readonly token: unknown;
  /** What to tell where there is no such provider. */
  readonly tokenHelp: string;
  create(provider: unknown): Fence;
}
