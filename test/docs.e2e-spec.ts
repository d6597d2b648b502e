import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it, jest } from '@jest/globals';
import { leaseKey, memoryLeases } from 'nestjs-fencing';
import ts from 'typescript';
import { diagnose, explain } from './readme/operators.js';
import { startFencedApp } from './support/fenced-app.js';

jest.setTimeout(120_000);

const root = fileURLToPath(new URL('..', import.meta.url));
const read = (file: string) => readFileSync(path.join(root, file), 'utf8');
const PAGES = [
  'README.md',
  'CONTRIBUTING.md',
  'CHANGELOG.md',
  ...readdirSync(path.join(root, 'docs'))
    .filter((name) => name.endsWith('.md'))
    .map((name) => `docs/${name}`),
];
const blocksOf = (page: string) =>
  [...read(page).matchAll(/^```ts\n([^]*?)\n```$/gm)].map(([, code]) => code!);
const text = (page: string) => read(page).replaceAll(/^```[^]*?^```$/gm, '');

/** Code between `#region` and `#endregion`, without the indentation that it has there. */
function regionsOf(file: string): string[] {
  return [...read(file).matchAll(/^( *)\/\/ #region .*\n([^]*?)\n *\/\/ #endregion$/gm)].map(
    ([, indent, code]) => code!.replaceAll(new RegExp(`^${indent!}`, 'gm'), ''),
  );
}

/** What the short blocks of docs/stores.md take from their surroundings. */
const SURROUNDINGS = `
import { TypeOrmModule } from '@nestjs/typeorm';
import { Cluster, Redis } from 'ioredis';
import { FencingModule, LeaseStore } from 'nestjs-fencing';
import { quorumLeases, redisLeases } from 'nestjs-fencing/redis';
import { fencingLeaseMigrations, fencingMigrations, postgresLeases, typeOrmFence } from 'nestjs-fencing/typeorm';
declare const redis: Redis, redisA: Redis, redisB: Redis, redisC: Redis;
declare class MyServer { clear(): void; stop(): Promise<void> }
declare const MyLeaseStore: new (server: MyServer) => LeaseStore;
`;

/** Errors of the compiler in pieces of code, each a module of its own beside this file. */
function compile(pieces: string[]): string[] {
  const config = ts.parseJsonConfigFileContent(
    ts.readConfigFile(path.join(root, 'tsconfig.json'), ts.sys.readFile).config,
    ts.sys,
    root,
  );
  const files = new Map(
    pieces.map((code, i) => [path.join(root, 'test', `shown-${i}.ts`), `${SURROUNDINGS}${code}`]),
  );
  const host = ts.createCompilerHost(config.options);
  const { readFile, fileExists, getSourceFile } = host;
  host.readFile = (file) => files.get(path.normalize(file)) ?? readFile(file);
  host.fileExists = (file) => files.has(path.normalize(file)) || fileExists(file);
  host.getSourceFile = (file, version, ...rest) => {
    const code = files.get(path.normalize(file));
    return code === undefined
      ? getSourceFile(file, version, ...rest)
      : ts.createSourceFile(file, code, version, true);
  };
  const program = ts.createProgram(
    [...files.keys()],
    { ...config.options, noEmit: true, noUnusedLocals: false },
    host,
  );
  return [...files.keys()].flatMap((file) => {
    const source = program.getSourceFile(file);
    return [...program.getSyntacticDiagnostics(source), ...program.getSemanticDiagnostics(source)].map(
      ({ messageText }) => `${path.basename(file)}: ${ts.flattenDiagnosticMessageText(messageText, ' ')}`,
    );
  });
}

/** As GitHub makes it of a heading. */
const anchorOf = (heading: string) =>
  heading
    .toLowerCase()
    .replaceAll(/\[([^\]]*)\]\([^)]*\)/g, '$1')
    .replaceAll(/[^\p{L}\p{N} _-]/gu, '')
    .replaceAll(' ', '-');

describe('the documentation', () => {
  const regions = new Set(
    [
      ...readdirSync(path.join(root, 'test', 'readme')).map((name) => `test/readme/${name}`),
      'src/payments/payments.service.ts',
      'src/payments/outbox-dispatcher.ts',
    ].flatMap(regionsOf),
  );

  it.each(PAGES.filter((page) => page !== 'docs/stores.md' && blocksOf(page).length > 0))(
    '%s shows only code that is compiled as it stands',
    (page) => {
      // Of other packages, "before" in a comparison, is marked as js or java.
      expect(blocksOf(page).filter((code) => !regions.has(code))).toEqual([]);
    },
  );

  it('docs/stores.md shows only code that compiles', () => {
    const pieces = blocksOf('docs/stores.md').map((code) => {
      const whole = code.replaceAll('{ …, ', '{ ');
      return whole.endsWith(',') ? `export const imports = [${whole}];` : whole;
    });
    expect(pieces.length).toBeGreaterThan(3);
    expect(compile(pieces)).toEqual([]);
    expect(compile(['redisLeases(redis, { replicas: { least: 1 } });'])).toHaveLength(1);
  });

  it.each(PAGES)('%s: every leaseKey(…) in its text is one', (page) => {
    for (const [, template] of text(page).matchAll(/`leaseKey\('([^`]*)'\)`/g)) {
      const places = [...template!.matchAll(/\{(\w+)\}/g)].map(([, name]) => name!);
      expect(places).not.toEqual([]);
      const values = Object.fromEntries(places.map((name, i) => [name, String(i)]));
      expect((leaseKey(template!) as (values: object) => string)(values)).not.toContain('{');
    }
  });

  it.each(PAGES)('%s: every link leads somewhere, also inside a page', (page) => {
    const links = [...text(page).matchAll(/\]\((?!https?:)([^)\s]+)\)/g)].map(([, link]) => link!);
    const broken = links.filter((link) => {
      const [file = '', anchor] = link.split('#');
      const target = file === '' ? page : path.posix.join(path.posix.dirname(page), file);
      if (!existsSync(path.join(root, target))) return true;
      if (anchor === undefined) return false;
      const headings = [...text(target).matchAll(/^#+ (.*)$/gm)].map(([, heading]) => anchorOf(heading!));
      return !headings.includes(anchor);
    });
    expect(broken).toEqual([]);
  });
});

it('the short examples of docs/doctor.md and docs/observability.md run', async () => {
  const app = await startFencedApp({ leases: memoryLeases() });
  const log = jest.spyOn(console, 'log').mockImplementation(() => undefined);
  try {
    const { findings, facts } = await diagnose(app.fencing);
    expect([findings, facts]).toEqual([
      expect.any(Array),
      expect.objectContaining({ 'postgres.isStandby': false }),
    ]);
    await app.fencing.revoke('report:42', { by: 'test', reason: 'to be explained' });
    await explain(app.fencing);
    expect(log).toHaveBeenCalledWith(expect.objectContaining({ kind: 'revoked', reason: 'to be explained' }));
  } finally {
    log.mockRestore();
    await app.close();
  }
});
