import { afterEach, describe, expect, it } from '@jest/globals';
import { type DynamicModule, Inject, Injectable, Module, type Provider, Scope } from '@nestjs/common';
import { LazyModuleLoader, ModuleRef } from '@nestjs/core';
import { Test } from '@nestjs/testing';
import {
  CurrentLease,
  FencedWrite,
  FencingConfigError,
  FencingModule,
  FencingService,
  fencingServiceToken,
  type Lease,
  Leased,
  memoryLeases,
} from 'nestjs-fencing';
import { typeOrmFence } from 'nestjs-fencing/typeorm';
import { DataSource } from 'typeorm';
import { type FencedApp, type FencedAppOptions, startFencedApp } from './support/fenced-app.js';
import { Stage } from './support/stage.js';

const once = { waitMs: 0 } as const;

const apps: FencedApp[] = [];
const start = async (options: FencedAppOptions): Promise<FencedApp> => {
  const app = await startFencedApp({ fence: false, ...options });
  apps.push(app);
  return app;
};
afterEach(async () => {
  for (const app of apps.splice(0)) await app.close();
});

@Injectable()
class Reports {
  @Leased('report:{0}', once)
  async rebuild(_id: string, @CurrentLease() lease?: Lease): Promise<Lease> {
    return lease!;
  }
}

@Injectable()
class Writing extends Reports {
  @FencedWrite()
  async publish(): Promise<void> {}
}

class Forgetful extends Reports {
  override async rebuild(): Promise<Lease> {
    return undefined as never;
  }
}

class DeeplyForgetful extends Forgetful {}

/** Leased still, and yet its writes would no longer be fenced. */
class HalfForgetful extends Writing {
  @Leased('other')
  override async publish(): Promise<void> {}
}

const fencing = () => FencingModule.forRoot({ leases: memoryLeases() });

/** What the boot of an application with these parts rejects with. */
async function bootError(providers: Provider[], imports: DynamicModule[] = [fencing()]): Promise<Error> {
  const boot = async () => {
    const module = await Test.createTestingModule({ imports, providers }).compile();
    await module.init();
    await module.close();
  };
  return boot().then(
    () => new Error('it booted'),
    (error: Error) => error,
  );
}

describe('an application does not boot', () => {
  it('without FencingModule; the message says what to import', async () => {
    const { message } = await bootError([Reports], []);
    expect(message).toContain('import FencingModule.forRoot() in the root module');
    expect(message).toContain('Reports');
  });

  it('unprotected with a mock in the place of FencingModule: each call says what is missing', async () => {
    const module = await Test.createTestingModule({ providers: [Reports] })
      .useMocker(() => ({}))
      .compile();
    await module.init();
    await expect(module.get(Reports).rebuild('1')).rejects.toThrow('was called without FencingModule');
    await module.close();
  });

  it('without the named FencingModule that a decorator means', async () => {
    class Named {
      @Leased('x', { name: 'ledger' })
      async run(): Promise<void> {}
    }
    const { message } = await bootError([Named]);
    expect(message).toContain("import FencingModule.forRoot({ name: 'ledger' }) in the root module");
  });

  it.each<[string, Provider]>([
    ['a class', { provide: Reports, useClass: Forgetful }],
    ['a descendant of it', DeeplyForgetful],
    ['a REQUEST-scoped class', { provide: 'x', useClass: Forgetful, scope: Scope.REQUEST }],
    ['a TRANSIENT class', { provide: 'x', useClass: Forgetful, scope: Scope.TRANSIENT }],
    ["a factory's instance", { provide: 'x', useFactory: () => new Forgetful() }],
    ['a given object', { provide: 'x', useValue: new Forgetful() }],
  ])('with an override that lost its decorator, in %s', async (_, provider) => {
    const error = await bootError([provider]);
    expect(error).toBeInstanceOf(FencingConfigError);
    expect(error.message).toMatch(
      /(Deeply)?Forgetful\.rebuild overrides Reports\.rebuild without @Leased and would run unprotected/,
    );
  });

  it('with an override that has lost one of two decorators', async () => {
    const fence = { activate: async () => ({ activated: true }), check: async () => undefined } as never;
    const error = await bootError(
      [HalfForgetful],
      [FencingModule.forRoot({ leases: memoryLeases(), fence })],
    );
    expect(error.message).toMatch(/HalfForgetful\.publish overrides Writing\.publish without @FencedWrite/);
  });

  it('with a @FencedWrite and no fence', async () => {
    const error = await bootError([Writing]);
    expect(error).toBeInstanceOf(FencingConfigError);
    expect(error.message).toBe(
      'Writing.publish is a @FencedWrite, and FencingModule has no fence: add fence: typeOrmFence().',
    );
  });

  it('with a fence and no DataSource for it', async () => {
    const imports = [FencingModule.forRoot({ leases: memoryLeases(), fence: typeOrmFence() })];
    const error = await bootError([], imports);
    expect(error).toBeInstanceOf(FencingConfigError);
    expect(error.message).toMatch(/^typeOrmFence found no DataSource: import TypeOrmModule\.forRoot/);
  });

  it('with a leased method that a factory calls before there is a DataSource', async () => {
    const imports = [FencingModule.forRoot({ leases: memoryLeases(), fence: typeOrmFence() })];
    const early = {
      provide: 'early',
      inject: [Reports],
      useFactory: (reports: Reports) => reports.rebuild('1'),
    };
    const dataSource = { provide: DataSource, inject: ['early'], useFactory: () => undefined };
    const error = await bootError([Reports, early, dataSource], imports);
    expect(error).toBeInstanceOf(FencingConfigError);
    expect(error.message).toMatch(/call it in onModuleInit or later, not in a factory/);
  });

  it('with two instances of one name', async () => {
    const error = await bootError([], [fencing(), fencing()]);
    expect(error).toBeInstanceOf(FencingConfigError);
    expect(error.message).toMatch(/imported 2 times under the name 'default'/);
  });

  it('and leaves nothing behind: the next application is the only one', async () => {
    await bootError([{ provide: 'x', useValue: new Forgetful() }]);
    await start({});
    expect((await new Reports().rebuild('1')).state).toBe('released');
  });
});

describe('an instance that is made after the boot is not run unprotected either', () => {
  @Module({ providers: [{ provide: 'lazy', useClass: Forgetful }] })
  class LazyModule {}

  const LATER: Record<string, (app: FencedApp) => Promise<unknown>> = {
    'moduleRef.create': (app) => app.get<ModuleRef>(ModuleRef as never).create(Forgetful),
    'a lazily loaded module': (app) => app.get(LazyModuleLoader).load(() => LazyModule),
    'a REQUEST-scoped factory': (app) => app.module.resolve('later'),
    'a factory that is request-scoped through what it injects': (app) => app.module.resolve('much later'),
  };

  it.each(Object.entries(LATER))('%s', async (_, make) => {
    const app = await start({
      providers: [
        { provide: 'later', scope: Scope.REQUEST, useFactory: () => new Forgetful() },
        { provide: 'much later', inject: ['REQUEST'], useFactory: () => new Forgetful() },
      ],
    });
    await expect(make(app)).rejects.toMatchObject({
      code: 'INVALID_CONFIG',
      message: expect.stringContaining('Forgetful.rebuild overrides Reports.rebuild'),
    });
  });
});

describe('two applications in one process do not see each other', () => {
  const shared = new Reports();
  const providers: Provider[] = [
    Reports,
    { provide: 'factory', useFactory: () => new Reports() },
    { provide: 'request factory', scope: Scope.REQUEST, useFactory: () => new Reports() },
  ];
  const startOne = () => start({ leases: memoryLeases(), providers });

  it.each<[string, (app: FencedApp) => Reports | Promise<Reports>]>([
    ['a provider', (app) => app.get(Reports)],
    ['a factory-made provider', (app) => app.get('factory')],
    ['a provider of a REQUEST-scoped factory', (app) => app.module.resolve('request factory')],
    [
      'FencingService',
      (app) => ({ rebuild: () => app.fencing.run('report:1', once, (lease) => lease) }) as never,
    ],
  ])('%s takes its leases from its own application', async (_, get) => {
    const [one, two] = [await startOne(), await startOne()];
    const [ours, theirs] = [await get(one), await get(two)];
    const stage = new Stage();
    // Each application has leases of its own here, so holding the key in one does not keep the other out.
    await two.fencing.run('report:1', once, async () => {
      await expect(ours.rebuild('1')).resolves.toMatchObject({ state: 'released' });
      await expect(theirs.rebuild('1')).resolves.toBeDefined(); // joins
    });
    await two.close();
    await expect(ours.rebuild('1')).resolves.toMatchObject({ state: 'released' });
    await stage.provesExclusion(() => one.fencing.run('k', once, (lease) => stage.enter(lease)));
  });

  it('an object that outlives its application belongs to the next one', async () => {
    for (let i = 0; i < 3; i++) {
      const app = await start({
        leases: memoryLeases(),
        providers: [{ provide: 'shared', useValue: shared }],
      });
      expect((await app.get<Reports>('shared').rebuild('1')).generation).toBeGreaterThan(0);
      await app.close();
    }
  });

  it('leases of another instance of the module are not joined', async () => {
    @Injectable()
    class Both {
      constructor(
        readonly first: FencingService,
        @Inject(fencingServiceToken('second')) readonly second: FencingService,
      ) {}

      @Leased('k', { ...once, name: 'second' })
      async inSecond(@CurrentLease() lease?: Lease): Promise<Lease> {
        return lease!;
      }
    }
    const app = await start({
      leases: memoryLeases(),
      imports: [FencingModule.forRoot({ name: 'second', leases: memoryLeases() })],
      providers: [Both],
    });
    const both = app.get(Both);
    await both.first.run('k', once, async (outer) => {
      const inner = await both.inSecond();
      expect(inner.owner).not.toBe(outer.owner);
      await both.second.run('k', once, (again) => expect(again.owner).not.toBe(inner.owner));
    });
  });
});
