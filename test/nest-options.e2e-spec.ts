import { getEventListeners, getMaxListeners } from 'node:events';
import { afterAll, beforeAll, describe, expect, it, jest } from '@jest/globals';
import { Logger } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { Redis } from 'ioredis';
import {
  AcceptFencing,
  CurrentLease,
  FencedWrite,
  FencingConfigError,
  FencingModule,
  type FencingService,
  type Lease,
  type LeaseCallOptions,
  Leased,
  type LeasedOptions,
  LeaseKeyError,
  memoryLeases,
  StoreUnavailableError,
} from 'nestjs-fencing';
import { quorumLeases, redisLeases } from 'nestjs-fencing/redis';
import { type Observable, of } from 'rxjs';
import { typeOrmFence } from 'nestjs-fencing/typeorm';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { eventually } from './support/gate.js';
import { RedisServer } from './support/redis-server.js';

/** Applies a decorator as the compiler does, to a method of a class called Reports. */
function decorate(
  decorator: unknown,
  member: 'method' | 'static' | 'getter' | 'field' | 'generator' = 'method',
) {
  class Reports {
    static ofAll(): void {}
    get size(): number {
      return 1;
    }
    async rebuild(): Promise<void> {}
    async *rows(): AsyncGenerator<number> {}
  }
  const [target, name] = {
    method: [Reports.prototype, 'rebuild'],
    static: [Reports, 'ofAll'],
    getter: [Reports.prototype, 'size'],
    field: [Reports.prototype, 'field'],
    generator: [Reports.prototype, 'rows'],
  }[member] as [object, string];
  // A field has none.
  (decorator as MethodDecorator)(target, name, Object.getOwnPropertyDescriptor(target, name)!);
}

const bad = (value: unknown) => value as never;

/** A wrong use, and what the message must say: the place, the option with its value, and what to do. */
type Case = [string, () => unknown, RegExp];

async function boots(options: unknown): Promise<void> {
  const module = await Test.createTestingModule({
    imports: [FencingModule.forRootAsync({ useFactory: () => bad(options) })],
  }).compile();
  await module.init();
  await module.close();
}

const DECORATORS: Case[] = [
  [
    '@Leased with null for options',
    () => decorate(Leased('k', bad(null))),
    /^@Leased on Reports\.rebuild: options must be an object, got null/,
  ],
  [
    '@Leased with a number for options',
    () => decorate(Leased('k', bad(500))),
    /options must be an object, got 500/,
  ],
  [
    '@Leased with an unknown option',
    () => decorate(Leased('k', bad({ ttl: 1 }))),
    /^@Leased on Reports\.rebuild: there is no option "ttl"\. Options: ttlMs, /,
  ],
  [
    '@Leased with a ttl in words',
    () => decorate(Leased('k', { ttlMs: bad('2s') })),
    /ttlMs must be a whole number .*, got '2s'\. .*write 2_000/,
  ],
  ['@Leased with a fraction', () => decorate(Leased('k', { ttlMs: 1500.7 })), /ttlMs .* got 1500\.7/],
  [
    '@Leased with a wrong choice',
    () => decorate(Leased('k', { onBusy: bad('wait') })),
    /onBusy must be 'fail' or 'skip', got 'wait'/,
  ],
  [
    '@Leased with an empty name',
    () => decorate(Leased('k', { name: '' })),
    /name must be a non-empty text, got ''/,
  ],
  [
    '@Leased with no key',
    () => decorate(Leased(bad(undefined))),
    /^@Leased on Reports\.rebuild: a key is a text .* got undefined/,
  ],
  [
    '@Leased with an empty key',
    () => decorate(Leased('')),
    /^@Leased on Reports\.rebuild: a lease key must not be empty/,
  ],
  ['@Leased with no keys', () => decorate(Leased([])), /the array of keys is empty/],
  [
    '@Leased with a wrong key among several',
    () => decorate(Leased(['a', bad(7)])),
    /a key is a text .* got number/,
  ],
  [
    '@Leased with a name for an argument',
    () => decorate(Leased('report:{id}')),
    /a key has no place \{id\}\. Places are \{0\}/,
  ],
  [
    '@Leased on a static method',
    () => decorate(Leased('k'), 'static'),
    /^@Leased on Function\.ofAll: static methods/,
  ],
  ['@Leased on a getter', () => decorate(Leased('k'), 'getter'), /^@Leased on Reports\.size: only methods/],
  ['@Leased on a field', () => decorate(Leased('k'), 'field'), /^@Leased on Reports\.field: only methods/],
  [
    '@Leased as a decorator of the standard',
    () =>
      (bad(Leased('k')) as (method: unknown, context: unknown) => void)(async () => undefined, {
        kind: 'method',
        name: 'rebuild',
      }),
    /^@Leased on .*with "experimentalDecorators" in tsconfig\.json/,
  ],
  [
    '@Leased on a generator',
    () => decorate(Leased('k'), 'generator'),
    /^@Leased on Reports\.rows: a generator runs after/,
  ],
  [
    '@FencedWrite with null',
    () => decorate(FencedWrite(bad(null))),
    /^@FencedWrite on Reports\.rebuild: options must be an object, got null/,
  ],
  [
    '@FencedWrite with an unknown option',
    () => decorate(FencedWrite(bad({ key: 1 }))),
    /there is no option "key"\. Options: isolation, retries, operation, name/,
  ],
  [
    '@FencedWrite with a wrong isolation',
    () => decorate(FencedWrite({ isolation: bad('serializable') })),
    /isolation must be 'READ COMMITTED' or 'REPEATABLE READ' or 'SERIALIZABLE', got 'serializable'/,
  ],
  [
    '@FencedWrite with wrong retries',
    () => decorate(FencedWrite({ retries: 1.5 })),
    /retries must be a whole number from 0 to 100, got 1\.5/,
  ],
  [
    '@FencedWrite with retries as text',
    () => decorate(FencedWrite({ retries: bad('3') })),
    /retries .* got '3'/,
  ],
  ['@FencedWrite with too many retries', () => decorate(FencedWrite({ retries: 101 })), /retries .* got 101/],
  [
    '@FencedWrite with a text for an operation',
    () => decorate(FencedWrite({ operation: bad('op') })),
    /operation \(.*\) must be a function, got 'op'/,
  ],
  [
    '@FencedWrite with a number for a name',
    () => decorate(FencedWrite({ name: bad(1) })),
    /name must be a non-empty text, got 1/,
  ],
  ['@FencedWrite on a static method', () => decorate(FencedWrite(), 'static'), /static methods/],
];

const MODULE: Case[] = [
  [
    'forRoot()',
    () => FencingModule.forRoot(bad(undefined)),
    /^FencingModule\.forRoot: options must be an object, got undefined/,
  ],
  [
    'forRoot with a store',
    () => FencingModule.forRoot(bad(memoryLeases())),
    /^FencingModule\.forRoot: there is no option "/,
  ],
  [
    'forRoot with an unknown option',
    () => FencingModule.forRoot(bad({ lease: 1 })),
    /no option "lease"\. Options: leases, fence, defaults, storeTimeoutMs, drainMs, httpErrors, strict, logKeys, audit, clock, isGlobal, name/,
  ],
  [
    'forRoot with a wrong name',
    () => FencingModule.forRoot({ leases: memoryLeases(), name: '' }),
    /name must be a non-empty text, got ''/,
  ],
  [
    'forRoot with a wrong isGlobal',
    () => FencingModule.forRoot({ leases: memoryLeases(), isGlobal: bad('yes') }),
    /isGlobal must be true or false, got 'yes'/,
  ],
  [
    'forRootAsync()',
    () => FencingModule.forRootAsync(bad(undefined)),
    /^FencingModule\.forRootAsync: options must be an object/,
  ],
  [
    'forRootAsync without a factory',
    () => FencingModule.forRootAsync({}),
    /give it one of useFactory, useClass, useExisting/,
  ],
  [
    'forRootAsync with a value',
    () => FencingModule.forRootAsync({ useFactory: bad({}) }),
    /useFactory must be a function, got an object/,
  ],
  [
    'forRootAsync with options beside the factory',
    () => FencingModule.forRootAsync(bad({ useFactory: () => ({}), defaults: {} })),
    /no option "defaults"\. Options: imports, inject/,
  ],
  [
    'options that are missing',
    () => boots(undefined),
    /^FencingModule: options must be an object, got undefined/,
  ],
  [
    'a name in what a factory returns',
    () => boots({ leases: memoryLeases(), name: 'x' }),
    /no option "name"/,
  ],
  [
    'leases that are missing',
    () => boots({}),
    /leases is missing\. Give it redisLeases\(redis\) or memoryLeases\(\)/,
  ],
  ['leases that are null', () => boots({ leases: null }), /leases is missing/],
  [
    'leases that are a Redis client',
    () => boots({ leases: { evalsha: () => undefined } }),
    /leases must be a LeaseStore, such as redisLeases\(redis\).* got an object/,
  ],
  [
    'leases that are a URL',
    () => boots({ leases: 'redis://x' }),
    /leases must be a LeaseStore.* got 'redis:\/\/x'/,
  ],
  [
    'leases that are a promise of something else',
    () => boots({ leases: Promise.resolve(5) }),
    /leases must be a LeaseStore.* got 5/,
  ],
  ...[null, 5, 'pg', {}, true].map((fence): Case => [
    `fence: ${JSON.stringify(fence)}`,
    () => boots({ leases: memoryLeases(), fence }),
    /^FencingModule: fence must be typeOrmFence\(…\) or a Fence, got /,
  ]),
  [
    'defaults that are wrong',
    () => boots({ leases: memoryLeases(), defaults: { ttlMs: 0 } }),
    /^FencingModule defaults: ttlMs must be .* got 0/,
  ],
  [
    'defaults that are null',
    () => boots({ leases: memoryLeases(), defaults: null }),
    /^FencingModule defaults: options must be an object, got null/,
  ],
  [
    'storeTimeoutMs: 0',
    () => boots({ leases: memoryLeases(), storeTimeoutMs: 0 }),
    /storeTimeoutMs must be .* from 10 to .* got 0/,
  ],
  [
    'storeTimeoutMs: Infinity',
    () => boots({ leases: memoryLeases(), storeTimeoutMs: Infinity }),
    /storeTimeoutMs .* got Infinity/,
  ],
  [
    'drainMs: -1',
    () => boots({ leases: memoryLeases(), drainMs: -1 }),
    /drainMs must be .* from 0 to .* got -1/,
  ],
  ["drainMs: '10s'", () => boots({ leases: memoryLeases(), drainMs: '10s' }), /drainMs .* got '10s'\. Texts/],
  [
    "httpErrors: 'no'",
    () => boots({ leases: memoryLeases(), httpErrors: 'no' }),
    /httpErrors must be true or false, got 'no'/,
  ],
];

const SOURCES: Case[] = [
  [
    'redisLeases()',
    () => redisLeases(bad(undefined)),
    /^redisLeases: options must be an object, got undefined/,
  ],
  [
    'redisLeases(url)',
    () => redisLeases(bad('redis://localhost')),
    /^redisLeases: options must be an object, got 'redis/,
  ],
  [
    'redisLeases without url',
    () => redisLeases(bad({})),
    /^redisLeases: give an ioredis client, or \{ url \}/,
  ],
  [
    'redisLeases with another protocol',
    () => redisLeases({ url: 'http://localhost' }),
    /^redisLeases: give an ioredis client, or \{ url \}/,
  ],
  [
    'redisLeases with an unknown option',
    () => redisLeases(bad({ url: 'redis://localhost', ttlMs: 1 })),
    /^redisLeases: there is no option "ttlMs"\. Options: url, prefix/,
  ],
  ...['', 'a b', 'a{b}', null, 5, 'a\nb'].map((prefix): Case => [
    `redisLeases with prefix ${JSON.stringify(prefix)}`,
    () => redisLeases({ evalsha: () => undefined } as never, { prefix: bad(prefix) }),
    /^redisLeases: prefix must be text without spaces and braces, got /,
  ]),
  [
    'redisLeases(client, null)',
    () => redisLeases({ evalsha: () => undefined } as never, bad(null)),
    /^redisLeases: options must be an object, got null/,
  ],
  ['typeOrmFence(null)', () => typeOrmFence(bad(null)), /^typeOrmFence: options must be an object, got null/],
  [
    'typeOrmFence with an unknown option',
    () => typeOrmFence(bad({ table: 'x' })),
    /^typeOrmFence: there is no option "table"\. Options: dataSource, schema, ensureSchema, activationDurability/,
  ],
  [
    'typeOrmFence with a wrong durability',
    () => typeOrmFence({ activationDurability: bad('fast') }),
    /activationDurability must be 'durable' or 'relaxed', got 'fast'/,
  ],
  [
    'typeOrmFence with a wrong ensureSchema',
    () => typeOrmFence({ ensureSchema: bad(1) }),
    /ensureSchema must be true or false, got 1/,
  ],
  ['typeOrmFence with an empty schema', () => typeOrmFence({ schema: '' }), /^typeOrmFence: schema must be/],
  ...[5, {}, null, '', true].map((dataSource): Case => [
    `typeOrmFence with dataSource ${JSON.stringify(dataSource)}`,
    () => typeOrmFence({ dataSource: bad(dataSource) }),
    /^typeOrmFence: dataSource must be a DataSource or its name, got /,
  ]),
  [
    'typeOrmFence of another database',
    () =>
      typeOrmFence(bad({ options: { type: 'mysql' }, createQueryRunner: () => undefined })).create(undefined),
    /needs a DataSource of type 'postgres', this one is 'mysql'/,
  ],
];

describe.each([
  ['a decorator', DECORATORS],
  ['FencingModule', MODULE],
  ['a source', SOURCES],
])('%s refuses, with a typed error that names the option, its value and what is right:', (_, cases) => {
  it.each(cases)('%s', async (_, use, message) => {
    const outcome = await Promise.resolve()
      .then(use)
      .then(
        () => new Error('nothing was refused'),
        (error: unknown) => error as Error,
      );
    expect(outcome.message).toMatch(message);
    expect(outcome instanceof FencingConfigError || outcome instanceof LeaseKeyError).toBe(true);
  });
});

describe('FencingService refuses before anything is acquired:', () => {
  let app: FencedApp;
  beforeAll(async () => {
    app = await startFencedApp({ fence: false, leases: memoryLeases() });
  });
  afterAll(() => app.close());

  const body = () => undefined;
  const SERVICE: [string, (fencing: FencedApp['fencing']) => unknown, RegExp][] = [
    [
      'run without options',
      (f) => f.run('k', bad(undefined), body),
      /^FencingService\.run: options must be an object, got undefined/,
    ],
    [
      'run with the body for options',
      (f) => f.run('k', bad(body), bad(undefined)),
      /^FencingService\.run: options must be an object, got a function/,
    ],
    [
      'run without a body',
      (f) => f.run('k', {}, bad(undefined)),
      /^FencingService\.run: the body must be a function, got undefined/,
    ],
    [
      'run with an unknown option',
      (f) => f.run('k', bad({ timeout: 1 }), body),
      /there is no option "timeout"\. Options: ttlMs, .*signal/,
    ],
    [
      'run with a wrong option',
      (f) => f.run('k', bad({ waitMs: -1 }), body),
      /^FencingService\.run: waitMs must be .* got -1/,
    ],
    [
      'run with a wrong signal',
      (f) => f.run('k', { signal: bad(new AbortController()) }, body),
      /signal must be an AbortSignal, got an object/,
    ],
    [
      'run with a null signal',
      (f) => f.run('k', { signal: bad(null) }, body),
      /signal must be an AbortSignal, got null/,
    ],
    [
      'run without a key',
      (f) => f.run(bad(undefined), {}, body),
      /^FencingService\.run: a lease key must be text, got undefined/,
    ],
    ['run with a number', (f) => f.run(bad(42), {}, body), /a lease key must be text, got 42/],
    ['run with no keys', (f) => f.run([], {}, body), /the array of keys is empty/],
    ['run with one bad key of two', (f) => f.run(['a', ''], {}, body), /a lease key must not be empty/],
    [
      'acquire with a wrong option',
      (f) => f.acquire('k', { ttlMs: 99 }),
      /^FencingService\.acquire: ttlMs must be .* got 99/,
    ],
    [
      'acquire with null',
      (f) => f.acquire('k', bad(null)),
      /^FencingService\.acquire: options must be an object, got null/,
    ],
    [
      'acquire without a key',
      (f) => f.acquire(bad(undefined)),
      /^FencingService\.acquire: a lease key must be text/,
    ],
    [
      'inspect without a key',
      (f) => f.inspect(bad(undefined)),
      /^FencingService\.inspect: a lease key must be text/,
    ],
    [
      'revoke with an empty key',
      (f) => f.revoke(' '),
      /^FencingService\.revoke: a lease key must not be empty/,
    ],
    [
      'write without options',
      (f) => f.write(bad(undefined), body),
      /^FencingService\.write: options must be an object, got undefined/,
    ],
    [
      'write with the body for options',
      (f) => f.write(bad(body), bad(undefined)),
      /^FencingService\.write: options must be an object, got a function/,
    ],
    [
      'write without a body',
      (f) => f.write({}, bad(undefined)),
      /^FencingService\.write: the body must be a function, got undefined/,
    ],
    [
      'write with a text for an operation',
      (f) => f.write({ operation: bad('op') }, body),
      /^FencingService\.write operation: options must be an object, got 'op'/,
    ],
    [
      'write with an operation without id',
      (f) => f.write({ operation: bad({ payload: 1 }) }, body),
      /^FencingService\.write: an operation id must be text, got undefined/,
    ],
    [
      'write with a misspelt operation',
      (f) => f.write({ operation: bad({ id: 'x', args: 1 }) }, body),
      /there is no option "args"\. Options: id, payload/,
    ],
    [
      'write without a fence',
      (f) => f.run('k', {}, () => f.write({}, body)),
      /^FencingService\.write: no fence is configured\. Give FencingModule a fence/,
    ],
  ];

  it.each(SERVICE)('%s', async (_, use, message) => {
    const outcome = await Promise.resolve(app.fencing)
      .then(use)
      .then(
        () => new Error('nothing was refused'),
        (error: unknown) => error as Error,
      );
    expect(outcome.message).toMatch(message);
    expect(outcome instanceof FencingConfigError || outcome instanceof LeaseKeyError).toBe(true);
  });
});

describe('what is right is taken', () => {
  it('one signal for any number of calls, without a warning of a leak that is none', async () => {
    const app = await startFencedApp({ fence: false, leases: memoryLeases() });
    const { fencing } = app;
    const stopping = new AbortController();
    const { signal } = stopping;
    const held = await fencing.acquire('one signal');
    const waiting = Array.from({ length: 20 }, () => fencing.run('one signal', { signal }, () => undefined));
    const outcomes = Promise.allSettled(waiting);
    await eventually(() => getEventListeners(signal, 'abort').length >= waiting.length);
    expect(getMaxListeners(signal)).toBe(Infinity);
    stopping.abort();
    for (const { status } of await outcomes) expect(status).toBe('rejected');
    expect(getEventListeners(signal, 'abort')).toEqual([]);
    held.release();
    await app.close();
  });

  it('redisLeases({ url }) opens a connection of its own and closes it with the application', async () => {
    const app = await startFencedApp({
      fence: false,
      leases: await redisLeases({ url: process.env.REDIS_URL! }),
    });
    await app.fencing.run('own-connection', {}, () => undefined);
    await app.close(); // an open socket would fail the file
  });

  it('redisLeases({ url }) in a module that is started again, as tests do, opens its connection again', async () => {
    const server = await RedisServer.start();
    const leases = redisLeases({ url: server.url });
    const start = () => startFencedApp({ fence: false, leases });
    const use = async ({ fencing }: FencedApp): Promise<void> => {
      const held = await fencing.acquire('again');
      const waiting = fencing.run('again', {}, () => 'ran');
      held.release();
      expect(await waiting).toBe('ran');
    };
    let app = await start();
    await use(app);
    await app.close();

    app = await start();
    await use(app);
    // It is closed while it tries to connect; the next one then minds a lost connection as ever.
    const log = [Logger.prototype, Logger].map((of) =>
      jest.spyOn(of as Logger, 'error').mockImplementation(() => undefined),
    );
    await server.kill();
    await expect(app.fencing.run('down', { waitMs: 0 }, () => undefined)).rejects.toThrow(
      StoreUnavailableError,
    );
    await app.close();
    await server.restart();
    app = await start();
    await use(app);
    await server.command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    await use(app);
    await app.close();
    log.forEach((spy) => spy.mockRestore());
    await server.stop();
  });

  it('a signal that is not of Node, such as that of jsdom, is taken', async () => {
    class Foreign extends EventTarget {
      static override [Symbol.hasInstance](): boolean {
        return true;
      }
    }
    const signal = {
      aborted: false,
      addEventListener: () => undefined,
      removeEventListener: () => undefined,
    } as never;
    const app = await startFencedApp({ fence: false, leases: memoryLeases() });
    const own = globalThis.EventTarget;
    globalThis.EventTarget = Foreign;
    try {
      expect(await app.fencing.run('foreign signal', { signal }, () => 'ran')).toBe('ran');
    } finally {
      globalThis.EventTarget = own;
    }
    await app.close();
  });

  it('a connection of its own that cannot be made says why, at boot and in each call', async () => {
    const warn = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => undefined);
    const leases = redisLeases({ url: 'redis://127.0.0.1:1' });
    const app = await startFencedApp({ fence: false, leases, fencing: { storeTimeoutMs: 300 } });
    const why =
      /^The lease store is unavailable: no answer within 300 ms \(its connection is \w+: ECONNREFUSED\)\./;
    expect(warn).toHaveBeenCalledWith(expect.stringMatching(why));
    await expect(app.fencing.run('k', { waitMs: 0 }, () => undefined)).rejects.toThrow(why);
    await app.close();
    warn.mockRestore();
  });

  it('a file that is only loaded, by a unit test or a script, opens no connection', async () => {
    const url = process.env.REDIS_URL!;
    const others = [{ url: 'redis://a.invalid' }, { url: 'redis://b.invalid' }];
    const connect = jest.spyOn(Redis.prototype, 'connect');
    await Promise.all([redisLeases({ url }), quorumLeases([{ url }, ...others])]);
    expect(connect).not.toHaveBeenCalled();
    connect.mockRestore();
  });

  it("the application's own client is left open", async () => {
    const redis = new Redis(process.env.REDIS_URL!);
    const app = await startFencedApp({ fence: false, leases: redisLeases(redis) });
    await app.close();
    expect(await redis.ping()).toBe('PONG');
    redis.disconnect();
  });
});

describe('the compiler refuses', () => {
  it('a key function, or an operation, that does not fit its method', () => {
    class Typed {
      @Leased((id: string) => id)
      async fits(_id: string, _more?: number, @CurrentLease() _lease?: Lease): Promise<void> {}

      @Leased((order: { id: string }) => order.id)
      async wider(_order: { id: string; total: number }): Promise<void> {}

      @Leased(['a:{0}', (id: string) => id])
      async several(_id: string): Promise<void> {}

      @FencedWrite({ operation: (id: string, n: number) => `${id}:${n}` })
      async operation(_id: string, _n: number): Promise<void> {}

      // @ts-expect-error the method takes a number
      @Leased((id: string) => id)
      async wrongArgument(_id: number): Promise<void> {}

      // @ts-expect-error the method has no field "id" in its argument
      @Leased((order: { id: string }) => order.id)
      async wrongField(_order: { name: string }): Promise<void> {}

      // @ts-expect-error a key is text
      @Leased((id: number) => id)
      async wrongResult(_id: number): Promise<void> {}

      // @ts-expect-error the second key function does not fit
      @Leased([(id: string) => id, (id: number) => String(id)])
      async wrongOfSeveral(_id: string): Promise<void> {}

      // @ts-expect-error the method takes a number
      @FencedWrite({ operation: (id: string) => id })
      async wrongOperation(_id: number): Promise<void> {}

      // @ts-expect-error an operation id is text, at once
      @FencedWrite({ operation: async (id: string) => id })
      async asyncOperation(_id: string): Promise<void> {}
    }
    expect(Typed).toBeDefined();

    // @ts-expect-error no such option
    expect(() => decorate(Leased('k', { ttl: 1 }))).toThrow(FencingConfigError);
    // @ts-expect-error no such choice
    expect(() => decorate(Leased('k', { onBusy: 'wait' }))).toThrow(FencingConfigError);
    // @ts-expect-error no such level
    expect(() => decorate(FencedWrite({ isolation: 'NONE' }))).toThrow(FencingConfigError);
  });

  it('a negative time where it is written down, and takes every other number', async () => {
    const leases = memoryLeases();
    const computed: number = -1;
    const options: LeasedOptions = { ttlMs: 1_000 };
    for (const fine of [
      Leased('k', { ttlMs: 1_000, waitMs: 0, holdAtLeastMs: 0, onBusy: 'skip', activate: 'write' }),
      Leased((id: string) => id, options),
      AcceptFencing({ trust: () => true, ttlMs: 1_000, waitMs: 0 }),
    ])
      expect(fine).toBeInstanceOf(Function);
    expect(() => decorate(Leased('k', { ttlMs: computed }))).toThrow('ttlMs must be a whole number');
    expect(() =>
      FencingModule.forRoot({ leases, drainMs: 0, storeTimeoutMs: 10, defaults: options }),
    ).not.toThrow();

    // @ts-expect-error negative
    expect(() => decorate(Leased('k', { ttlMs: -1 }))).toThrow('ttlMs must be a whole number');
    // @ts-expect-error negative
    expect(() => decorate(Leased('k', { onBusy: 'skip', waitMs: -0.5 }))).toThrow('waitMs must be');
    // @ts-expect-error negative
    expect(() => decorate(Leased((id: string) => id, { holdAtLeastMs: -5_000 }))).toThrow('holdAtLeastMs');
    // @ts-expect-error negative
    expect(() => decorate(AcceptFencing({ trust: () => true, waitMs: -1 }))).toThrow('waitMs must be');
    const fencing = { run: () => undefined, acquire: () => undefined } as unknown as FencingService;
    // @ts-expect-error negative
    void fencing.run('k', { waitMs: -1 }, () => 1);
    // @ts-expect-error negative
    void fencing.acquire('k', { ttlMs: -1 });
    const kept: LeaseCallOptions = { ttlMs: 1_000, waitMs: Number('0') };
    void fencing.run<number>('k', kept, () => 1);
    // @ts-expect-error another mistake is still the one that is named
    expect(() => decorate(Leased('k', { ttlMs: 1_000, wait: 1 }))).toThrow('there is no option "wait"');
    const wrong = [
      // @ts-expect-error negative
      FencingModule.forRoot({ leases, storeTimeoutMs: -1 }),
      // @ts-expect-error negative
      FencingModule.forRoot({ leases, drainMs: -1 }),
      // @ts-expect-error negative
      FencingModule.forRoot({ leases, defaults: { ttlMs: -1 } }),
      // @ts-expect-error negative
      FencingModule.forRoot({ leases, defaults: { waitMs: -1 } }),
    ];
    for (const module of wrong)
      await expect(Test.createTestingModule({ imports: [module] }).compile()).rejects.toThrow('whole number');
  });

  it('a method whose result does not come later: callers get a promise from now on', () => {
    class Typed {
      @Leased('promise')
      async promise(): Promise<void> {}

      @Leased('observable')
      observable(): Observable<number> {
        return of(1);
      }

      @Leased('iterable')
      iterable(): AsyncIterable<number> {
        return { [Symbol.asyncIterator]: () => ({ next: async () => ({ done: true, value: 0 }) }) };
      }

      // @ts-expect-error a number is there at once
      @Leased('number')
      number(): number {
        return 1;
      }

      // @ts-expect-error it would be read after the transaction
      @FencedWrite()
      stream(): Observable<number> {
        return of(1);
      }

      // @ts-expect-error nothing is there at once
      @FencedWrite()
      nothing(): void {}

      // @ts-expect-error an array is no stream
      @Leased((id: string) => id)
      array(_id: string): string[] {
        return [];
      }

      // @ts-expect-error it may be a promise, and may not
      @Leased('maybe')
      maybe(): Promise<number> | number {
        return 1;
      }
    }
    expect(Typed).toBeDefined();
  });
});
