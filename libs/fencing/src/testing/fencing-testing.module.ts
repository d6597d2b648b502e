import { type DynamicModule, Inject, Module, type OnModuleDestroy } from '@nestjs/common';
import { systemClock } from '../core/clock.js';
import { checkNames } from '../core/options.js';
import { FencingModule } from '../nest/fencing.module.js';
import type { FencingModuleExtras, FencingModuleOptions } from '../nest/fencing.module-definition.js';
import { MODULE_OPTION_NAMES } from '../nest/module-options.js';
import { FencingFaults } from './fencing-testing-faults.js';
import { MemoryFence } from './fencing-testing-fence.js';
import { StallingLeaseStore } from './fencing-testing-store.js';

/** Options of `FencingTestingModule.forRoot()`: those of `FencingModule` without its lease store and fence, and a manager. */
export interface FencingTestingOptions
  extends Omit<FencingModuleOptions, 'leases' | 'fence'>, FencingModuleExtras {
  /**
   * What the bodies of `FencingService.write` get instead of an EntityManager: a mock of the test.
   * @default none: to use it throws, and says so
   */
  manager?: unknown;
}

const OPTIONS = [...MODULE_OPTION_NAMES.filter((name) => name !== 'leases' && name !== 'fence'), 'manager'];

/**
 * `FencingModule` for unit tests: real exclusion, real generations and a real refusal of stale writes, all in memory, and
 * `FencingFaults` to bring a method into the situations that are hard to come by.
 *
 * ```ts
 * const module = await Test.createTestingModule({ imports: [FencingTestingModule.forRoot()], providers: [ReportsService] }).compile();
 * await module.init();
 * const faults = module.get(FencingFaults);
 * ```
 * There is no database: what a body did to the mocks of the test before it failed is not taken back.
 */
@Module({})
export class FencingTestingModule implements OnModuleDestroy {
  /** @internal */
  constructor(@Inject(FencingFaults) private readonly faults: FencingFaults) {}

  /** @throws FencingConfigError where an option is wrong */
  static forRoot(options: FencingTestingOptions = {}): DynamicModule {
    checkNames('FencingTestingModule.forRoot', options, OPTIONS);
    const { manager, ...rest } = options;
    const clock = options.clock ?? systemClock;
    const store = new StallingLeaseStore({ clock });
    const fence = new MemoryFence(clock, manager);
    return {
      module: FencingTestingModule,
      global: true,
      imports: [FencingModule.forRoot({ ...rest, leases: store, fence })],
      providers: [{ provide: FencingFaults, useValue: new FencingFaults(store, fence, clock) }],
      exports: [FencingFaults],
    };
  }

  onModuleDestroy(): void {
    this.faults.end();
  }
}
