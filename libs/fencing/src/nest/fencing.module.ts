import { type DynamicModule, Module, type Provider } from '@nestjs/common';
import { APP_FILTER, DiscoveryService, HttpAdapterHost, ModuleRef } from '@nestjs/core';
import { FencingExceptionFilter, NoExceptionFilter } from './fencing-exception.filter.js';
import {
  type ASYNC_OPTIONS_TYPE,
  ConfigurableModuleClass,
  type FencingModuleOptions,
  MODULE_OPTIONS_TOKEN,
  type OPTIONS_TYPE,
} from './fencing.module-definition.js';
import { FencingEvents } from './fencing-events.js';
import { FencingHealthIndicator } from './fencing-health.indicator.js';
import { FencingRuntime } from './fencing.runtime.js';
import { FencingService } from './fencing.service.js';
import { checkAsyncOptions, checkSyncOptions } from './module-options.js';
import type { LeaseTimes, NotNegative } from './times.js';
import {
  DEFAULT_INSTANCE,
  fencingEventsToken,
  fencingHealthToken,
  fencingServiceToken,
  runtimeToken,
} from './tokens.js';

/**
 * ```ts
 * FencingModule.forRoot({ leases: redisLeases(redis), fence: typeOrmFence() })
 * ```
 * Global by default: import it once, in the root module.
 */
@Module({})
export class FencingModule extends ConfigurableModuleClass {
  static override forRoot<
    Ttl extends number = number,
    Wait extends number = number,
    Hold extends number = number,
    Timeout extends number = number,
    Drain extends number = number,
  >(options: typeof OPTIONS_TYPE & ModuleTimes<Ttl, Wait, Hold, Timeout, Drain>): DynamicModule {
    checkSyncOptions(options);
    return withInstance(super.forRoot(options), options.name);
  }

  static override forRootAsync(options: typeof ASYNC_OPTIONS_TYPE): DynamicModule {
    checkAsyncOptions(options);
    return withInstance(super.forRootAsync(options), options.name);
  }
}

/** A negative literal does not compile. */
interface ModuleTimes<
  Ttl extends number,
  Wait extends number,
  Hold extends number,
  Timeout extends number,
  Drain extends number,
> {
  defaults?: LeaseTimes<Ttl, Wait, Hold>;
  storeTimeoutMs?: NotNegative<Timeout>;
  drainMs?: NotNegative<Drain>;
}

function withInstance(definition: DynamicModule, name = DEFAULT_INSTANCE): DynamicModule {
  const token = runtimeToken(name);
  const isDefault = name === DEFAULT_INSTANCE;
  const service = isDefault ? FencingService : fencingServiceToken(name);
  const events = isDefault ? FencingEvents : fencingEventsToken(name);
  const health = isDefault ? FencingHealthIndicator : fencingHealthToken(name);
  const providers: Provider[] = [
    {
      provide: token,
      inject: [MODULE_OPTIONS_TOKEN, ModuleRef, DiscoveryService],
      useFactory: (options: FencingModuleOptions, moduleRef: ModuleRef, discovery: DiscoveryService) =>
        new FencingRuntime(name, options, moduleRef, discovery),
    },
    {
      provide: service,
      inject: [token],
      useFactory: (runtime: FencingRuntime) => new FencingService(runtime),
    },
    {
      provide: events,
      inject: [token],
      useFactory: (runtime: FencingRuntime) => new FencingEvents(runtime.events),
    },
    {
      provide: health,
      inject: [token],
      useFactory: (runtime: FencingRuntime) => new FencingHealthIndicator(runtime),
    },
    // By a symbol as well, which the ESM and the CommonJS copy of the package share; the class is of one of them.
    ...(isDefault
      ? [
          { provide: fencingServiceToken(name), useExisting: service },
          { provide: fencingEventsToken(name), useExisting: events },
          { provide: fencingHealthToken(name), useExisting: health },
        ]
      : []),
    // One filter is enough for all instances: it goes by the kind of error.
    ...(isDefault
      ? [
          {
            provide: APP_FILTER,
            inject: [HttpAdapterHost, token],
            useFactory: (host: HttpAdapterHost, runtime: FencingRuntime) =>
              runtime.httpErrors ? new FencingExceptionFilter(host) : new NoExceptionFilter(),
          },
        ]
      : []),
  ];
  return {
    ...definition,
    providers: [...(definition.providers ?? []), ...providers],
    exports: [
      ...(definition.exports ?? []),
      token,
      service,
      fencingServiceToken(name),
      events,
      fencingEventsToken(name),
      health,
      fencingHealthToken(name),
    ],
  };
}
