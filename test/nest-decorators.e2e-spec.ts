import { afterAll, afterEach, beforeAll, describe, expect, it } from '@jest/globals';
import { Inject, Injectable, mixin, Module, Scope, type Type } from '@nestjs/common';
import { ContextIdFactory, LazyModuleLoader, ModuleRef, REQUEST } from '@nestjs/core';
import {
  CurrentLease,
  FencedWrite,
  FencingConfigError,
  FencingService,
  type Lease,
  Leased,
} from 'nestjs-fencing';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { Stage } from './support/stage.js';

const stage = new Stage();
const once = { waitMs: 0 } as const;

interface Protected {
  run(lease?: Lease): Promise<unknown>;
}

@Injectable()
class Singleton implements Protected {
  @Leased('singleton', once)
  async run(@CurrentLease() lease?: Lease): Promise<unknown> {
    return stage.enter(lease);
  }

  async viaThis(): Promise<unknown> {
    return this.run();
  }
}

@Injectable({ scope: Scope.REQUEST })
class PerRequest implements Protected {
  @Leased('per-request', once)
  async run(@CurrentLease() lease?: Lease): Promise<unknown> {
    return stage.enter(lease);
  }
}

@Injectable({ scope: Scope.TRANSIENT })
class Transient implements Protected {
  @Leased('transient', once)
  async run(@CurrentLease() lease?: Lease): Promise<unknown> {
    return stage.enter(lease);
  }
}

@Injectable()
class UserOfTransient {
  constructor(readonly transient: Transient) {}
}

@Injectable()
class BecameRequestScoped implements Protected {
  constructor(@Inject(REQUEST) readonly request: unknown) {}

  @Leased('became-request-scoped', once)
  async run(@CurrentLease() lease?: Lease): Promise<unknown> {
    return stage.enter(lease);
  }
}

@Injectable()
class Inheriting extends Singleton {}

class Plain implements Protected {
  @Leased('plain', once)
  async run(@CurrentLease() lease?: Lease): Promise<unknown> {
    return stage.enter(lease);
  }
}
class ByFactory extends Plain {}
class ByRequestFactory extends Plain {}
class ByTransientFactory extends Plain {}
class ByValue extends Plain {}
class ByClass extends Plain {}

@Injectable()
class UserOfTransientFactory {
  constructor(@Inject('transient factory') readonly plain: ByTransientFactory) {}
}

@Injectable()
class OverridingDecorated extends Singleton {
  readonly generations: unknown[] = [];

  @Leased('singleton', once)
  override async run(@CurrentLease() lease?: Lease): Promise<unknown> {
    this.generations.push(lease?.generation);
    return super.run();
  }
}

const lock = Symbol('lock');

@Injectable()
class SymbolNamed {
  @Leased('symbol-named', once)
  async [lock](@CurrentLease() lease?: Lease): Promise<unknown> {
    return stage.enter(lease);
  }
}

function Locked(key: string): Type<Protected> {
  class Mixin implements Protected {
    @Leased(key, once)
    async run(@CurrentLease() lease?: Lease): Promise<unknown> {
      return stage.enter(lease);
    }
  }
  return mixin(Mixin);
}
const Mixed = Locked('mixed');

abstract class Template implements Protected {
  @Leased('template', once)
  async run(@CurrentLease() lease?: Lease): Promise<unknown> {
    return this.body(lease!);
  }
  protected abstract body(lease: Lease): Promise<unknown>;
}

@Injectable()
class FromTemplate extends Template {
  constructor(readonly other: Singleton) {
    super();
  }
  protected body(lease: Lease): Promise<unknown> {
    return stage.enter(lease);
  }
}

@Injectable({ scope: Scope.REQUEST, durable: true })
class Durable implements Protected {
  @Leased('durable', once)
  async run(@CurrentLease() lease?: Lease): Promise<unknown> {
    return stage.enter(lease);
  }
}

/** As many decorators do: the method that it makes has nothing of the one that it calls. */
function plainWrapper(_: object, __: string, descriptor: PropertyDescriptor): void {
  const method = descriptor.value as (...args: unknown[]) => unknown;
  descriptor.value = function (this: unknown, ...args: unknown[]) {
    return method.apply(this, args);
  };
}

@Injectable()
class Hidden implements Protected {
  @plainWrapper
  @Leased('hidden', once)
  async run(@CurrentLease() lease?: Lease): Promise<unknown> {
    return stage.enter(lease);
  }
}

@Module({ providers: [{ provide: 'lazy', useClass: ByClass }] })
class LazyModule {}

/** How an application comes by an instance. */
const INSTANCES: Record<string, (app: FencedApp) => Promise<Protected> | Protected> = {
  'a provider of the default scope': (app) => app.get(Singleton),
  'a REQUEST-scoped provider': (app) =>
    app.module.resolve(PerRequest, ContextIdFactory.create(), { strict: false }),
  'a TRANSIENT provider': (app) => app.get(UserOfTransient).transient,
  'a TRANSIENT provider that is resolved': (app) => app.module.resolve(Transient),
  'a singleton that became request-scoped through a dependency': (app) =>
    app.module.resolve(BecameRequestScoped),
  'a class that inherits the method': (app) => app.get(Inheriting),
  'a class that overrides it, decorated, and calls super': (app) => app.get(OverridingDecorated),
  'a method whose name is a symbol': (app) => ({ run: () => app.get(SymbolNamed)[lock]() }),
  'a mixin': (app) => app.get(Mixed),
  'an abstract class': (app) => app.get(FromTemplate),
  'a durable provider': (app) => app.module.resolve(Durable, ContextIdFactory.create()),
  'a method under a decorator that hides it': (app) => app.get(Hidden),
  'a provider made by useFactory': (app) => app.get('factory'),
  'a provider made by an async useFactory': (app) => app.get('async factory'),
  'a provider made by a REQUEST-scoped useFactory': (app) => app.module.resolve('request factory'),
  'a provider made by a TRANSIENT useFactory': (app) => app.get(UserOfTransientFactory).plain,
  'an alias of a provider (useExisting)': (app) => app.get('alias'),
  'a useValue': (app) => app.get('value'),
  'a useClass': (app) => app.get('class'),
  'an instance by moduleRef.create': (app) => app.get<ModuleRef>(ModuleRef as never).create(ByClass),
  'a provider of a lazily loaded module': async (app) =>
    (await app.get(LazyModuleLoader).load(() => LazyModule)).get('lazy'),
};

const PROVIDERS = [
  Singleton,
  PerRequest,
  Transient,
  UserOfTransient,
  BecameRequestScoped,
  Inheriting,
  OverridingDecorated,
  UserOfTransientFactory,
  SymbolNamed,
  Mixed,
  FromTemplate,
  Durable,
  Hidden,
  { provide: 'factory', useFactory: () => new ByFactory() },
  { provide: 'async factory', useFactory: async () => new ByFactory() },
  { provide: 'request factory', scope: Scope.REQUEST, useFactory: () => new ByRequestFactory() },
  { provide: 'transient factory', scope: Scope.TRANSIENT, useFactory: () => new ByTransientFactory() },
  { provide: 'alias', useExisting: Singleton },
  { provide: 'value', useFactory: () => new ByValue() },
  { provide: 'class', useClass: ByClass },
];

describe('field report 15: @Leased excludes overlapping calls and gives each a generation, on', () => {
  let app: FencedApp;
  /** A second application in the process: nothing may depend on being the only one. */
  let other: FencedApp;

  beforeAll(async () => {
    const providers = [...PROVIDERS, { provide: 'value', useValue: new ByValue() }];
    app = await startFencedApp({ fence: false, providers });
    other = await startFencedApp({ fence: false, providers: PROVIDERS });
  });
  afterAll(async () => {
    await app.close();
    await other.close();
  });

  it.each(Object.entries(INSTANCES))('%s', async (_, get) => {
    const instance = await get(app);
    await stage.provesExclusion(() => instance.run());
  });

  it('two instances of one class', async () => {
    const instances = [await app.module.resolve(Transient), await app.module.resolve(Transient)];
    expect(instances[0]).not.toBe(instances[1]);
    let calls = 0;
    await stage.provesExclusion(() => instances[calls++ % 2]!.run());
  });

  it('a call of the class itself (this.method())', () =>
    stage.provesExclusion(() => app.get(Singleton).viaThis()));

  it('a bound method that was taken off its instance', () => {
    const run = app.get(Singleton).run.bind(app.get(Singleton));
    return stage.provesExclusion(() => run());
  });

  it('an override that calls super joins the lease: one generation, no wait for itself', async () => {
    const overriding = app.get(OverridingDecorated);
    overriding.generations.length = 0;
    await stage.provesExclusion(() => overriding.run());
    expect(overriding.generations).toEqual(stage.generations);
  });
});

describe('a method that cannot be protected says so', () => {
  let app: FencedApp;
  let other: FencedApp | undefined;
  beforeAll(async () => {
    app = await startFencedApp({ fence: false, providers: [Singleton] });
  });
  afterEach(async () => {
    await other?.close();
    other = undefined;
  });
  afterAll(() => app.close());

  it('a detached method has no instance, and still the only application there is', async () => {
    const { run } = app.get(Singleton);
    await stage.provesExclusion(() => run.call(undefined as never));
  });

  it('an instance that Nest did not make is refused while several applications run', async () => {
    other = await startFencedApp({ fence: false });
    await expect(new Singleton().run()).rejects.toMatchObject({
      code: 'INVALID_CONFIG',
      message: expect.stringMatching(/Singleton\.run .*several applications run in this process/),
    });
    await other.close();
    await stage.provesExclusion(() => new Singleton().run());
  });

  it('a call without any application is refused', async () => {
    await app.close();
    await expect(new Singleton().run()).rejects.toMatchObject({
      code: 'INVALID_CONFIG',
      message: expect.stringMatching(/Singleton\.run was called without FencingModule: import/),
    });
    app = await startFencedApp({ fence: false });
  });
});

describe('the wrapper has the face of the method', () => {
  class Face {
    @Leased('face')
    async withThree(_a: string, _b: number, _c = 1): Promise<void> {}

    @FencedWrite()
    async none(): Promise<void> {}
  }

  it('name and length are those of the method, and calls with a missing runtime reject', async () => {
    expect(Face.prototype.withThree).toHaveLength(2);
    expect(Face.prototype.withThree.name).toBe('withThree');
    expect(Face.prototype.none.name).toBe('none');
    const promise = new Face().none();
    await expect(promise).rejects.toBeInstanceOf(FencingConfigError);
  });

  it('the runtime does not show among the properties of an instance', async () => {
    const app = await startFencedApp({ fence: false, providers: [Singleton] });
    expect(Reflect.ownKeys({ ...app.get(Singleton) })).toEqual([]);
    await app.close();
  });

  it('FencingService.current() is the lease of the first key', async () => {
    const app = await startFencedApp({ fence: false });
    const { fencing } = app;
    await fencing.run(['b', 'a'], {}, async (first, second) => {
      expect([first.key, second.key]).toEqual(['b', 'a']);
      expect(fencing.current()).toBe(first);
      await fencing.run('c', {}, (inner) => expect(fencing.current()).toBe(inner));
      await fencing.run('a', {}, (joined) => {
        expect(joined).toBe(second);
        expect(fencing.current()).toBe(second);
      });
      expect(fencing.current()).toBe(first);
    });
    expect(app.get(FencingService as Type<FencingService>).current()).toBeUndefined();
    await app.close();
  });
});
