import { ConfigurableModuleBuilder } from '@nestjs/common';
import { DiscoveryModule } from '@nestjs/core';
import type { Clock } from '../core/clock.js';
import type { Fence } from '../core/fence.js';
import type { LeaseStore } from '../core/lease-store.js';
import type { LeaseOptions } from '../core/options.js';
import type { FenceSource, LeaseStoreSource } from '../core/sources.js';

/** Options of `FencingModule.forRoot()`. */
export interface FencingModuleOptions {
  /** Who hands out leases: `redisLeases(…)`, `postgresLeases(…)`, `memoryLeases()`, or a `LeaseStore` of your own. */
  leases: LeaseStore | LeaseStoreSource | Promise<LeaseStore>;
  /** Where writes are fenced: `typeOrmFence()`, or a `Fence` of your own. Without it `@FencedWrite()` is refused at boot. */
  fence?: FenceSource | Fence;
  /**
   * Lease options for every method that does not set its own.
   * @default ttlMs 30_000, waitMs 5_000, onBusy 'fail', holdAtLeastMs 0, onUncertain 'reconcile', activate 'start'
   */
  defaults?: LeaseOptions;
  /**
   * How long one request to the lease store may take before it counts as unanswered, ms.
   * @default 2_000
   */
  storeTimeoutMs?: number;
  /**
   * How long a stopping application waits for running leased methods before it aborts them and releases, ms.
   * @default 10_000
   */
  drainMs?: number;
  /**
   * Whether errors of this package become HTTP answers (423, 409, 503, …) as problem details.
   * @default true
   */
  httpErrors?: boolean;
  /**
   * Whether what the boot would only warn about stops it: a key that names no parameter, a ttl that is too short for the lease
   * store, a lease store that is set up wrongly, a fenced write that certainly has no lease. Not a lease store that is down.
   * @default false
   */
  strict?: boolean;
  /**
   * Whether log lines name keys in full. Keys often carry personal data; as a rule lines have a short hash (`keyLabel(key)`).
   * @default false
   */
  logKeys?: boolean;
  /**
   * Whether writes that were refused, or whose outcome is unknown, leave a row in the audit (`FencingService.audit`), beside the work.
   * @default true
   */
  audit?: boolean;
  /**
   * Where time comes from: for tests, a `ManualClock` of `nestjs-fencing/testing`. It moves what this process waits for, not
   * the clock of a lease store on a server.
   * @default the monotonic clock of the process
   */
  clock?: Clock;
}

/** Options that shape the module itself, beside those above. */
export interface FencingModuleExtras {
  /** Whether other modules can inject `FencingService` without importing this one. @default true */
  isGlobal?: boolean;
  /** For several databases or Redis deployments: names the instance that `@Leased(…, { name })` means. @default the one without a name */
  name?: string;
}

export const { ConfigurableModuleClass, MODULE_OPTIONS_TOKEN, OPTIONS_TYPE, ASYNC_OPTIONS_TYPE } =
  new ConfigurableModuleBuilder<FencingModuleOptions>({ moduleName: 'Fencing' })
    .setClassMethodName('forRoot')
    .setExtras<FencingModuleExtras>({ isGlobal: true, name: undefined }, (definition, { isGlobal }) => ({
      ...definition,
      global: isGlobal,
      imports: [...(definition.imports ?? []), DiscoveryModule],
    }))
    .build();
