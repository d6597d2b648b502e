import { readFileSync } from 'node:fs';
import { describe, expect, it } from '@jest/globals';
import { Test } from '@nestjs/testing';
import { Redis } from 'ioredis';
import {
  AcceptFencing,
  FencedWrite,
  FencingModule,
  FencingService,
  Leased,
  memoryLeases,
} from 'nestjs-fencing';
import { FencingBoardModule } from 'nestjs-fencing/board';
import { instrumentFencing } from 'nestjs-fencing/otel';
import { quorumLeases, redisLeases } from 'nestjs-fencing/redis';
import { FencingTestingModule } from 'nestjs-fencing/testing';
import { postgresLeases, protectTable, typeOrmFence } from 'nestjs-fencing/typeorm';

const read = (page: string) => readFileSync(new URL(`../docs/${page}`, import.meta.url), 'utf8');
/** The first cells of the table below a heading. */
const rowsOf = (section: string | undefined) =>
  [...(section?.split(/^## /m)[0] ?? '').matchAll(/^\| `(\w+)`/gm)].map(([, name]) => name!);

/** Says which options there are by refusing this one. */
const wrong = { nonsense: 1 } as never;
const decorate = (decorator: (target: object, name: string, descriptor: PropertyDescriptor) => void) =>
  decorator(class {}.prototype, 'method', { value: async () => undefined });
const noRedis = () => new Redis({ lazyConnect: true });

/** By the heading in docs/options.md: a call with a wrong option. */
const CALLS: Record<string, (service: FencingService) => unknown> = {
  'FencingModule.forRoot(options)': () => FencingModule.forRoot(wrong),
  '@Leased(key, options)': () => decorate(Leased('a', wrong) as never),
  '@FencedWrite(options)': () => decorate(FencedWrite(wrong)),
  '@AcceptFencing(options)': () => decorate(AcceptFencing(wrong)),
  'FencingService.run(key, options, body), acquire(key, options)': (service) => service.acquire('a', wrong),
  'FencingService.write(options, body)': (service) => service.write(wrong, () => undefined),
  'FencingService.write({ operation }, body)': (service) =>
    service.write({ operation: wrong }, () => undefined),
  'FencingService.revoke(key, options)': (service) => service.revoke('a', wrong),
  'redisLeases(client, options), redisLeases(connection)': () => redisLeases(wrong),
  'redisLeases({ replicas })': () => redisLeases(noRedis(), { replicas: wrong }),
  'quorumLeases(nodes, options)': () => quorumLeases([], wrong),
  'postgresLeases(options)': () => postgresLeases(wrong),
  'memoryLeases(options)': () => memoryLeases(wrong),
  'typeOrmFence(options)': () => typeOrmFence(wrong),
  'protectTable(queryRunner, table, options)': () => protectTable(undefined as never, 'a', wrong),
  'FencingBoardModule.forRoot(options)': () => FencingBoardModule.forRoot(wrong),
  'instrumentFencing(options)': () => instrumentFencing(wrong),
  'FencingTestingModule.forRoot(options)': () => FencingTestingModule.forRoot(wrong),
};
/** A TypeORM column has more options, which TypeORM takes. */
const UNCHECKED = ['@GenerationColumn(options)'];
/** Where a section says that a call takes the options of another section too. */
const ALSO: Record<string, readonly string[]> = {
  'FencingService.run(key, options, body), acquire(key, options)': ['@Leased(key, options)'],
  'FencingTestingModule.forRoot(options)': ['FencingModule.forRoot(options)'],
};
/** But these. */
const LEFT_OUT: Record<string, readonly string[]> = {
  'FencingService.run(key, options, body), acquire(key, options)': ['name'],
  'FencingTestingModule.forRoot(options)': ['leases', 'fence'],
};

describe('docs/options.md', () => {
  const sections = new Map(
    read('options.md')
      .split(/^## `/m)
      .slice(1)
      .map((section) => [section.split('`\n')[0]!, section]),
  );

  it('has a section for every call that takes options', () => {
    expect([...sections.keys()].sort()).toEqual([...Object.keys(CALLS), ...UNCHECKED].sort());
  });

  it.each(Object.keys(CALLS))('%s: names what it takes, and nothing else', async (call) => {
    const module = await Test.createTestingModule({ imports: [FencingTestingModule.forRoot()] }).compile();
    await module.init();
    const refusal: Error = await (async () => CALLS[call]!(module.get(FencingService)))().then(
      () => new Error('It took an option that there is not.'),
      (error: Error) => error,
    );
    await module.close();
    const inCode = /Options: (.*)\.$/.exec(refusal.message)?.[1]?.split(', ');
    const shown = [call, ...(ALSO[call] ?? [])].flatMap((heading) => rowsOf(sections.get(heading)));
    if (call === 'FencingService.write(options, body)') shown.push('operation');
    expect(inCode?.sort()).toEqual(shown.filter((name) => !LEFT_OUT[call]?.includes(name)).sort());
  });

  it.each([
    ['stores.md', '`postgresLeases()` takes', 'postgresLeases(options)'],
    ['stores.md', 'the module takes as it is).', 'quorumLeases(nodes, options)'],
    ['board.md', 'A global prefix goes before `path`.', 'FencingBoardModule.forRoot(options)'],
    [
      'protections.md',
      'those that do not are refused from then on.',
      'protectTable(queryRunner, table, options)',
    ],
  ])('%s names the same below "%s"', (page, before, call) => {
    const table = read(page)
      .split(before)[1]
      ?.split(/\n\n(?!\|)/)[0];
    expect(rowsOf(table).sort()).toEqual(rowsOf(sections.get(call)).sort());
  });
});
