import { AsyncLocalStorage } from 'node:async_hooks';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Injectable } from '@nestjs/common';
import { InjectRepository } from '@nestjs/typeorm';
import {
  CurrentLease,
  FencedWrite,
  type Lease,
  LeaseBusyError,
  Leased,
  leaseKey,
  LeaseKeyError,
  StaleGenerationError,
} from 'nestjs-fencing';
import { Column, Entity, PrimaryColumn, Repository } from 'typeorm';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { eventually } from './support/gate.js';

@Entity()
class Entry {
  @PrimaryColumn('text') id!: string;
  @Column('bigint') generation!: string;
}

const once = { waitMs: 0 } as const;
/** Runs a call as another caller does: without the leases of this one. */
const outside = AsyncLocalStorage.snapshot() as <T>(call: () => T) => T;
const pairKey = leaseKey('pair:{a}/{b}');

const broken = new Error('broken');

@Injectable()
class Entries {
  constructor(@InjectRepository(Entry) private readonly entries: Repository<Entry>) {}

  @Leased('hostile:{0}', once)
  async byTemplate(id: string, @CurrentLease() lease?: Lease): Promise<Lease> {
    await this.write(id);
    return lease!;
  }

  @Leased((id: string) => id, once)
  async byFunction(id: string, work?: () => Promise<unknown>, @CurrentLease() lease?: Lease): Promise<Lease> {
    await work?.();
    await this.write(id);
    return lease!;
  }

  @Leased((a: string, b: string) => pairKey({ a, b }), once)
  async pair(
    _a: string,
    _b: string,
    work: () => Promise<unknown>,
    @CurrentLease() lease?: Lease,
  ): Promise<Lease> {
    await work();
    return lease!;
  }

  @FencedWrite({ operation: (id: string) => id })
  async write(id: string, @CurrentLease() lease?: Lease): Promise<string> {
    const row = { id: Buffer.from(id).toString('hex'), generation: String(lease!.generation) };
    await this.entries.save(row);
    return id;
  }

  @Leased('dto:{0.orderId}', once)
  async byDto(_dto: unknown): Promise<void> {}

  @Leased((dto: { orderId?: unknown } | undefined) => `order:${dto!.orderId as string}`, once)
  async byDtoFunction(_dto: unknown): Promise<void> {}

  @Leased(async (dto: { orderId?: unknown }) => `order:${dto.orderId as string}`, once)
  async byDtoPromise(_dto: unknown): Promise<void> {}

  @FencedWrite({ operation: (id?: string) => `op:${id}` })
  async operation(_id?: string): Promise<void> {}

  @FencedWrite({
    operation: () => {
      throw broken;
    },
  })
  async operationThrows(): Promise<void> {}

  @FencedWrite({ operation: (() => Promise.reject(broken)) as never })
  async operationRejects(): Promise<void> {}
}

/** Texts that end a string, a statement, a key or a message somewhere, if nobody is careful. */
const HOSTILE = [
  "'",
  "''; DROP TABLE fencing_fence; --",
  "\\'",
  '\\\\',
  "\\'; SELECT 1; --",
  '$$',
  '$tag$ x $tag$',
  '$1',
  '%s %d %%',
  '"quoted"',
  '{braces}',
  '}{',
  'line\nbreak\r\nand\ttab',
  'É',
  'E\u0301',
  '€ 😀 \u{10ffff}',
  'a\u2028\u2029\ufeffb',
  '\u0001\u001f\u007f',
  ' leading and trailing ',
  '*?[a-z]',
  'a:b:c',
  '> waiter',
  '- 100 key',
  'x'.repeat(1_000),
  '\ud83d\ude00',
];

describe('hostile keys go through Redis and the guard as they are', () => {
  let app: FencedApp;
  let entries: Entries;
  beforeAll(async () => {
    app = await startFencedApp({ entities: [Entry], providers: [Entries] });
    entries = app.get(Entries);
  });
  afterAll(() => app.close());

  const written = async (id: string) =>
    (await app.dataSource.getRepository(Entry).findOneBy({ id: Buffer.from(id).toString('hex') }))
      ?.generation;

  it.each(HOSTILE.map((text) => [text]))('%j, built by a function', async (text) => {
    const lease = await entries.byFunction(text);
    expect(lease.key).toBe(text);
    expect(await written(text)).toBe(String(lease.generation));
    const { fence, lease: held } = await app.fencing.inspect(text);
    expect(fence).toMatchObject({ generation: lease.generation, owner: lease.owner });
    expect(held).toBeUndefined();
    const [operation] = await app.dataSource.query(
      'SELECT key, result FROM fencing_operation WHERE id = $1',
      [text],
    );
    expect(operation).toEqual({ key: text, result: text });
  });

  it.each(HOSTILE.map((text) => [text] as const).filter(([text]) => encodeURIComponent(text).length < 1_000))(
    '%j, as a value of a template',
    async (text) => {
      const lease = await entries.byTemplate(text);
      expect(decodeURIComponent(lease.key)).toBe(`hostile:${text}`);
      expect((await app.fencing.inspect(lease.key)).fence?.generation).toBe(lease.generation);
    },
  );

  it.each(HOSTILE.map((text) => [text]))('%j excludes, renews, and is refused when stale', async (text) => {
    const key = `${text}#`;
    const call = entries.byFunction(key, async () => {
      // Inside this one it would join.
      await expect(outside(() => entries.byFunction(key))).rejects.toThrow(LeaseBusyError);
      await app.fencing.revoke(key);
    });
    await expect(call).rejects.toThrow(StaleGenerationError);
    expect(await written(key)).toBeUndefined();
  });

  it('also where the server reads backslashes in plain texts (standard_conforming_strings off)', async () => {
    const extra = { options: '-c standard_conforming_strings=off -c escape_string_warning=off' };
    const old = await startFencedApp({
      entities: [Entry],
      providers: [Entries],
      dataSource: { extra } as object,
    });
    const [{ standard_conforming_strings: setting }] = await old.dataSource.query(
      'SHOW standard_conforming_strings',
    );
    expect(setting).toBe('off');
    for (const text of HOSTILE) {
      const { generation } = await old.get(Entries).byFunction(`${text}!`);
      expect(await written(`${text}!`)).toBe(String(generation));
    }
    await old.close();
  });

  it('a half surrogate or U+0000 never gets as far as a server', async () => {
    for (const text of ['\ud800', 'a\udc00', 'a\0b']) {
      await expect(entries.byFunction(text)).rejects.toThrow(LeaseKeyError);
      await expect(app.fencing.run(text, {}, () => undefined)).rejects.toThrow(LeaseKeyError);
      await expect(app.fencing.inspect(text)).rejects.toThrow(LeaseKeyError);
      await expect(app.fencing.revoke(text)).rejects.toThrow(LeaseKeyError);
    }
  });

  it('field report 27: unequal tuples never contend and never share a fence row; equal ones always do', async () => {
    const tuples = [
      ['a', 'b/c'],
      ['a/b', 'c'],
      ['a', 'b%2Fc'],
      ['a%2Fb', 'c'],
      ['É', 'x'],
      ['E\u0301', 'x'],
      ['a ', 'b'],
      ['a', ' b'],
    ] as [string, string][];
    const all = tuples.reduceRight<() => Promise<unknown>>(
      (inner, [a, b]) =>
        () =>
          outside(() =>
            entries.pair(a, b, async () => {
              await expect(outside(() => entries.pair(a, b, async () => undefined))).rejects.toThrow(
                LeaseBusyError,
              );
              await inner();
            }),
          ),
      async () => undefined,
    );
    await all(); // holds all at once
    const keys = tuples.map(([a, b]) => pairKey({ a, b }));
    const [{ count }] = await app.dataSource.query('SELECT count(*) FROM fencing_fence WHERE key = ANY($1)', [
      keys,
    ]);
    expect(Number(count)).toBe(tuples.length);
  });

  it('two prefixes that start alike are two worlds', async () => {
    const { redisLeases } = await import('nestjs-fencing/redis');
    const [prod, prod2] = ['prod', 'prod2'].map((prefix) => redisLeases(app.redis, { prefix }));
    const request = { ttlMs: 1_000, floor: 0 };
    expect(await prod!.acquire({ ...request, key: '2:x', owner: 'a' })).toMatchObject({ granted: true });
    expect(await prod2!.acquire({ ...request, key: 'x', owner: 'b' })).toMatchObject({ granted: true });
    expect(await prod2!.acquire({ ...request, key: '2:x', owner: 'c' })).toMatchObject({ granted: true });
    expect(await prod!.acquire({ ...request, key: '2:x', owner: 'd' })).toMatchObject({ granted: false });
  });

  it.each<[string, unknown]>([
    ['absent', {}],
    ['undefined', { orderId: undefined }],
    ['null', { orderId: null }],
    ['empty', { orderId: '' }],
    ['white space', { orderId: ' \n' }],
    ['NaN', { orderId: NaN }],
    ['an object', { orderId: {} }],
    ['in a missing object', undefined],
  ])(
    'field report 28: a key part that is %s is refused, naming the method; nothing is acquired',
    async (_, dto) => {
      const before = await app.redis.dbsize();
      for (const method of ['byDto', 'byDtoFunction', 'byDtoPromise'] as const) {
        // Two callers at once: neither waits for the other on "order:undefined".
        for (const call of [entries[method](dto), entries[method](dto)]) {
          await expect(call).rejects.toThrow(LeaseKeyError);
          await expect(call).rejects.toThrow(`@Leased on Entries.${method}: `);
        }
      }
      const key = `order:${String((dto as { orderId?: unknown } | undefined)?.orderId)}`;
      await expect(app.fencing.run(key, {}, () => undefined)).rejects.toThrow(LeaseKeyError);
      await expect(app.fencing.acquire(key)).rejects.toThrow(LeaseKeyError);
      expect(await app.redis.dbsize()).toBe(before);
    },
  );

  it('an operation whose function throws, or rejects, is refused by its method, and no rejection is left', async () => {
    for (const method of ['operationThrows', 'operationRejects'] as const) {
      const call = app.fencing.run('ops', {}, () => entries[method]());
      await expect(call).rejects.toThrow(
        /^@FencedWrite on Entries\.operation\w+: the function of an operation id threw/,
      );
      await expect(call).rejects.toMatchObject({ code: 'INVALID_KEY', cause: broken });
    }
  });

  it('an operation id with a missing part is refused: strangers do not share a receipt', async () => {
    await app.fencing.run('ops', {}, async () => {
      await expect(entries.operation()).rejects.toMatchObject({
        code: 'INVALID_KEY',
        message: expect.stringContaining('a part of an operation id is missing'),
      });
      await expect(
        app.fencing.write({ operation: { id: `op:${undefined}` } }, () => undefined),
      ).rejects.toThrow(LeaseKeyError);
    });
    await eventually(async () => !(await app.fencing.inspect('ops')).lease);
  });
});
