import { readFileSync } from 'node:fs';
import { afterEach, describe, expect, it, jest } from '@jest/globals';
import {
  type CallHandler,
  Controller,
  type ExecutionContext,
  Get,
  Injectable,
  Logger,
  type NestInterceptor,
  Post,
  type Provider,
  SetMetadata,
  type Type,
  UseInterceptors,
} from '@nestjs/common';
import { APP_INTERCEPTOR, ModuleRef } from '@nestjs/core';
import { EventPattern, MessagePattern } from '@nestjs/microservices';
import { Cron, Interval, Timeout } from '@nestjs/schedule';
import { Test } from '@nestjs/testing';
import {
  AcceptFencing,
  CurrentLease,
  type Fence,
  FencedWrite,
  FencingConfigError,
  FencingModule,
  type FencingModuleOptions,
  FencingService,
  type Lease,
  Leased,
  type LeaseStore,
  memoryLeases,
  StoreUnavailableError,
} from 'nestjs-fencing';

const closing: (() => Promise<void>)[] = [];
afterEach(async () => {
  jest.restoreAllMocks();
  for (const close of closing.splice(0)) await close();
});

/** Boots an application, and answers what it warned of. */
async function boot(
  services: Type | Provider[],
  options: Partial<FencingModuleOptions> = {},
  leases: LeaseStore = memoryLeases(),
  controllers: Type[] = [],
): Promise<string[]> {
  const warnings = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => undefined);
  const module = await Test.createTestingModule({
    imports: [FencingModule.forRoot({ leases, ...options })],
    providers: [services].flat(),
    controllers,
  }).compile();
  await module.init();
  closing.push(() => module.close());
  return warnings.mock.calls.map(([message]) => String(message));
}

/** A lease store whose answers take `ms`, by the clock of the process. */
function slowLeases(ms: () => number) {
  const store = memoryLeases();
  let asked = 0;
  jest.spyOn(store, 'inspect').mockImplementation(async () => {
    asked++;
    for (const end = performance.now() + ms(); performance.now() < end;);
    return undefined;
  });
  return { store, asked: () => asked };
}

@Injectable()
class Constant {
  @Leased('rebuild')
  async rebuild(_customerId: string): Promise<void> {}
}

class Inherited extends Constant {}

@Injectable()
class Fine {
  @Leased('nightly')
  async withoutParameters(@CurrentLease() _lease?: Lease): Promise<void> {}

  @Leased('report:{0}')
  async withPlace(_id: string): Promise<void> {}

  @Leased(['all', 'report:{0}'])
  async oneOfSeveral(_id: string): Promise<void> {}

  @Leased(() => 'rebuild')
  async saidSo(_event: object): Promise<void> {}

  @Leased('nightly')
  async withDefault(_now = new Date()): Promise<void> {}
}

/** As a builder that strips types lets it through. */
class Synchronous {
  count(): number {
    return 1;
  }

  async counted(): Promise<number> {
    return 1;
  }
}
for (const [name, type] of [
  ['count', Number],
  ['counted', Promise],
] as const) {
  const descriptor = Object.getOwnPropertyDescriptor(Synchronous.prototype, name)!;
  Reflect.defineMetadata('design:returntype', type, Synchronous.prototype, name);
  Leased(() => 'count')(Synchronous.prototype, name, descriptor as never);
  Object.defineProperty(Synchronous.prototype, name, descriptor);
}

@Injectable()
class Short {
  @Leased('short:{0}', { ttlMs: 100 })
  async run(_id: string): Promise<void> {}
}

describe('the boot reports', () => {
  it('what the lease store found, also where the store then does not answer', async () => {
    const leases: LeaseStore = memoryLeases();
    const found = {
      problem: 'Keys are evicted.',
      consequence: 'A lease may vanish.',
      fix: 'Set noeviction.',
    };
    jest.spyOn(leases, 'check').mockResolvedValue([found]);
    jest
      .spyOn(leases, 'inspect')
      .mockRejectedValue(new StoreUnavailableError('lease store', 'no answer.', {}));
    const warnings = (await boot(Short, {}, leases)).join('\n');
    expect(warnings).toContain('Keys are evicted. A lease may vanish. Set noeviction.');
    expect(warnings).toContain('The application starts');
  });

  it('a key that names no parameter of a method that has some', async () => {
    expect(await boot(Constant)).toEqual([
      "@Leased on Constant.rebuild: the key 'rebuild' names no parameter, and the method has 1: all calls exclude each other. " +
        "Name one, e.g. 'rebuild:{0}'; where one key for all is meant, say so by a function: () => 'rebuild'.",
    ]);
  });

  it('it once, also where a descendant inherits the method', async () => {
    expect(await boot([Constant, Inherited])).toHaveLength(1);
  });

  it('a method whose callers expect a value and get a promise, once', async () => {
    class Descendant extends Synchronous {}
    expect(await boot([Synchronous, Descendant])).toEqual([
      '@Leased on Synchronous.count: the method returns a Number, and its callers get a promise of one, since a lease has to be asked for. ' +
        'Make the method async, and await it.',
    ]);
    await expect(boot(Synchronous, { strict: true })).rejects.toThrow('returns a Number');
  });

  it('nothing of keys that are constant for a reason', async () => {
    expect(await boot(Fine)).toEqual([]);
  });

  it('a ttl that is shorter than three requests to the lease store, by the quickest of three', async () => {
    const { store, asked } = slowLeases(() => 50);
    const [warning, ...others] = await boot(Short, {}, store);
    expect(warning).toMatch(
      /^@Leased on Short\.run: ttlMs is 100, and one request to the lease store took \d+\.\d ms at boot: .* Set ttlMs to \d+ at least/,
    );
    expect(others).toEqual([]);
    expect(asked()).toBe(3);
  });

  it('a default ttl that is, for what FencingService takes', async () => {
    const { store } = slowLeases(() => 50);
    expect(await boot(Fine, { defaults: { ttlMs: 100 } }, store)).toContainEqual(
      expect.stringMatching(/^FencingModule defaults: ttlMs is 100/),
    );
  });

  it('nothing after one slow answer, and asks once where that settles it', async () => {
    let answers = 0;
    const { store } = slowLeases(() => (answers++ === 0 ? 50 : 0));
    expect(await boot(Short, {}, store)).toEqual([]);

    const quick = slowLeases(() => 0);
    expect(await boot(Short, {}, quick.store)).toEqual([]);
    expect(quick.asked()).toBe(1);
  });
});

/** A fence that is not asked for more than the boot asks: these applications are not called. */
const fence: Fence = {
  activate: () => undefined,
  check: async () => [],
  close: async () => undefined,
} as never;

describe('of fenced writes that no leased path reaches, the boot reports', () => {
  const reportOf = (where: string, entry: string) =>
    `@FencedWrite on ${where}: it is ${entry}, and takes no lease: when Nest calls it, it is refused with NoLeaseError. ` +
    'Put @Leased(key) above it, or @AcceptFencing(…) where its caller sends a lease; or move the write to a method that a leased one calls.';

  it('a route, a message handler and a job of the clock that is a fenced write and takes no lease', async () => {
    @Controller()
    class Routes {
      @Post()
      @FencedWrite()
      async publish(): Promise<void> {}

      @FencedWrite()
      @MessagePattern('publish')
      async answer(): Promise<void> {}

      @EventPattern('published')
      @FencedWrite()
      async hear(_event: object): Promise<void> {}
    }
    @Injectable()
    class Jobs {
      @Cron('0 0 * * *')
      @FencedWrite()
      async nightly(): Promise<void> {}

      @FencedWrite()
      @Interval(1_000)
      async often(): Promise<void> {}

      @Timeout(1_000)
      @FencedWrite()
      async once(): Promise<void> {}
    }
    expect(await boot(Jobs, { fence }, memoryLeases(), [Routes])).toEqual([
      reportOf('Jobs.nightly', 'a cron job'),
      reportOf('Jobs.often', 'an interval'),
      reportOf('Jobs.once', 'a timeout'),
      reportOf('Routes.publish', 'a route'),
      reportOf('Routes.answer', 'a message handler'),
      reportOf('Routes.hear', 'a message handler'),
    ]);
  });

  it('one whose @Leased stands below it, where the write would begin before its lease', async () => {
    @Controller()
    class Upside {
      @Get()
      @FencedWrite()
      @Leased('upside')
      async down(): Promise<void> {}
    }
    expect(await boot([], { fence }, memoryLeases(), [Upside])).toEqual([
      '@FencedWrite on Upside.down: it is a route, and its @Leased stands below: the write would begin before its lease, so it is ' +
        'refused when Nest calls it. Put @Leased above @FencedWrite.',
    ]);
  });

  it('one that a class inherits, once, and stops at it with strict: true', async () => {
    abstract class Publishing {
      @Post()
      @FencedWrite()
      async publish(): Promise<void> {}
    }
    @Controller('one')
    class One extends Publishing {}
    @Controller('other')
    class Other extends Publishing {}
    expect(await boot([], { fence }, memoryLeases(), [One, Other])).toEqual([
      reportOf('Publishing.publish', 'a route'),
    ]);
    await expect(boot([], { fence, strict: true }, memoryLeases(), [One])).rejects.toThrow(
      'FencingModule is strict, and found at boot: \n- @FencedWrite on Publishing.publish: it is a route',
    );
  });
});

describe('docs/operations.md', () => {
  it('lists each of these, and no other', async () => {
    @Controller()
    class Careless {
      @Post()
      @FencedWrite()
      async unleased(): Promise<void> {}

      @Get()
      @FencedWrite()
      @Leased('upside down')
      async upsideDown(): Promise<void> {}
    }
    const { store } = slowLeases(() => 50);
    const warnings = await boot([Constant, Short, Synchronous], { fence }, store, [Careless]);
    const page = readFileSync(new URL('../docs/operations.md', import.meta.url), 'utf8');
    const section = page.split(/^## /m).find((part) => part.startsWith('What the boot reports'))!;
    const rows = [...section.matchAll(/^\| (?:`([^`]+)`|(what [^|]+?)) \|/gm)].map(
      ([, text, said]) => text ?? said!,
    );
    const fits = (row: string, warning: string) =>
      new RegExp(
        row
          .split('…')
          .map((part) => part.replaceAll(/[^\w ]/g, '\\$&'))
          .join('.*'),
      ).test(warning);

    expect(rows.filter((row) => !warnings.some((warning) => fits(row, warning)))).toEqual([
      'what the lease store or the fence says about its own set-up',
    ]);
    expect(warnings.filter((warning) => !rows.some((row) => fits(row, warning)))).toEqual([]);
    expect(warnings).toHaveLength(5);
  });
});

describe('of fenced writes, the boot reports nothing where a lease may come from somewhere', () => {
  const silent = async (controllers: Type[], providers: Provider[] = []) =>
    expect(await boot(providers, { fence, strict: true }, memoryLeases(), controllers)).toEqual([]);

  @Controller()
  class Route {
    @Post()
    @FencedWrite()
    async publish(): Promise<void> {}
  }

  class Interceptor implements NestInterceptor {
    intercept(_context: ExecutionContext, next: CallHandler) {
      return next.handle();
    }
  }

  it('@Leased above it, at any distance, or @AcceptFencing', async () => {
    @Controller()
    class Fine {
      @Leased('a')
      @Post('a')
      @FencedWrite()
      async leased(): Promise<void> {}

      @Post('b')
      @FencedWrite()
      @AcceptFencing({ trust: () => true })
      async accepting(): Promise<void> {}
    }
    await silent([Fine]);
  });

  it('a method that nothing but other methods call, also beside leased ones of its class', async () => {
    @Injectable()
    class Reports {
      @Leased('nightly')
      async rebuild(): Promise<void> {}

      @FencedWrite()
      async publish(): Promise<void> {}

      // No controller: nobody makes a route of it.
      @Post()
      @FencedWrite()
      async almost(): Promise<void> {}

      // Listeners run inside the call that emits.
      @SetMetadata('EVENT_LISTENER_METADATA', [{ event: 'rebuilt' }])
      @FencedWrite()
      async hear(_event: object): Promise<void> {}
    }
    await silent([], [Reports]);
  });

  it('an interceptor of the method or of the class, and a decorator of the application that wraps the method', async () => {
    @Controller()
    class OfMethod {
      @Post()
      @UseInterceptors(Interceptor)
      @FencedWrite()
      async publish(): Promise<void> {}
    }
    @Controller()
    @UseInterceptors(Interceptor)
    class OfClass extends Route {}

    const wrapped = (_target: object, _name: string, descriptor: PropertyDescriptor): void => {
      const method = descriptor.value as (...args: unknown[]) => unknown;
      const wrapper = (...args: unknown[]) => method(...args);
      for (const key of Reflect.getOwnMetadataKeys(method) as unknown[])
        Reflect.defineMetadata(key, Reflect.getOwnMetadata(key, method), wrapper);
      descriptor.value = wrapper;
    };
    @Controller()
    class Wrapped {
      @Post()
      @wrapped
      @FencedWrite()
      async publish(): Promise<void> {}
    }
    await silent([OfMethod, OfClass, Wrapped]);
  });

  it('a global interceptor that can reach FencingService, near or far; not one that cannot', async () => {
    @Injectable()
    class Leasing extends Interceptor {
      constructor(readonly fencing: FencingService) {
        super();
      }
    }
    @Injectable()
    class Leases {
      constructor(readonly modules: ModuleRef) {}
    }
    const useFactory = () => new Interceptor();
    await silent([Route], [{ provide: APP_INTERCEPTOR, useClass: Leasing }]);
    await silent([Route], [Leases, { provide: APP_INTERCEPTOR, inject: [Leases], useFactory }]);

    const others = [{ provide: APP_INTERCEPTOR, useFactory }];
    expect(await boot(others, { fence }, memoryLeases(), [Route])).toHaveLength(1);
  });
});

describe('strict: true', () => {
  it('makes of all that the boot reports a failure that names it', async () => {
    const { store } = slowLeases(() => 50);
    jest
      .spyOn(store, 'check')
      .mockResolvedValue([{ problem: 'Wrong.', consequence: 'Bad.', fix: 'Do.' }] as never);
    const failed = boot(Constant, { strict: true, defaults: { ttlMs: 100 } }, store);
    await expect(failed).rejects.toThrow(FencingConfigError);
    const { message } = (await failed.catch((error: unknown) => error)) as Error;
    expect(message).toContain('FencingModule is strict, and found at boot:');
    for (const part of [
      '- Wrong. Bad. Do.',
      "- @Leased on Constant.rebuild: the key 'rebuild'",
      'ttlMs is 100',
    ]) {
      expect(message).toContain(part);
    }
  });

  it('boots where there is nothing to report', async () => {
    expect(await boot(Fine, { strict: true })).toEqual([]);
  });

  it('boots where the lease store is down: that is no mistake', async () => {
    const store = memoryLeases();
    jest.spyOn(store, 'check').mockRejectedValue(new StoreUnavailableError('lease store', 'down.'));
    expect(await boot(Constant, { strict: true }, store)).toEqual([
      expect.stringContaining('The application starts; calls that need a lease fail until it answers.'),
    ]);
  });

  it('is true or false', async () => {
    await expect(boot(Fine, { strict: 'yes' as never })).rejects.toThrow(
      "FencingModule: strict must be true or false, got 'yes'.",
    );
  });
});

it('a clock must be one', async () => {
  await expect(boot(Fine, { clock: Date as never })).rejects.toThrow(
    'FencingModule: clock must be a Clock (now, setTimer), got a function.',
  );
  for (const clock of [{ now: () => 0 }, { setTimer: () => () => undefined }, null])
    await expect(boot(Fine, { clock: clock as never })).rejects.toThrow('clock must be a Clock');
});
