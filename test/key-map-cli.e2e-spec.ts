import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';

const root = fileURLToPath(new URL('..', import.meta.url));
const loader = path.join(root, 'test', 'support', 'swc-loader.mjs');
const fencing = pathToFileURL(path.join(root, 'libs', 'fencing', 'src', 'index.ts')).href;
let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'fencing-keys-'));
});
afterAll(() => rm(folder, { recursive: true }));

/** Runs `nestjs-fencing` with these arguments. */
function keys(...args: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  const main = path.join(root, 'libs', 'fencing', 'src', 'cli', 'main.ts');
  return new Promise((resolve) => {
    execFile(
      process.execPath,
      ['--import', loader, main, ...args],
      { cwd: folder, timeout: 40_000 },
      (error, stdout, stderr) => resolve({ code: error ? Number(error.code) : 0, stdout, stderr }),
    );
  });
}

/** A compiled application with one service, whose method `rebuild` takes `key`. */
async function application(name: string, key: string, more = ''): Promise<string> {
  const text = `
    import { Leased, FencedWrite } from ${JSON.stringify(fencing)};
    export class ${name} { async rebuild() {} async write() {} }
    const decorate = (method, decorator) => {
      const descriptor = Object.getOwnPropertyDescriptor(${name}.prototype, method);
      decorator(${name}.prototype, method, descriptor);
      Object.defineProperty(${name}.prototype, method, descriptor);
    };
    decorate('rebuild', Leased(${key}));
    decorate('write', FencedWrite());
    ${more}`;
  await writeFile(path.join(folder, `${name}.mjs`), text);
  return `${name}.mjs`;
}

describe('nestjs-fencing keys', () => {
  it('prints the leased methods of all modules and their keys as JSON, and ends whatever they opened', async () => {
    const one = await application('Reports', '(id) => `report:${id}`', 'setInterval(() => {}, 1000);');
    const two = await application('Ledger', "['ledger', 'report:{0.customer}'], { name: 'books' }");
    const { code, stdout } = await keys('keys', '--module', one, '-m', two);
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toEqual([
      {
        method: 'Ledger.rebuild',
        instance: 'books',
        keys: [
          { template: 'ledger', shape: 'ledger' },
          { template: 'report:{0.customer}', shape: 'report:{}' },
        ],
      },
      {
        method: 'Reports.rebuild',
        instance: 'default',
        keys: [{ template: 'report:{0}', shape: 'report:{}' }],
      },
    ]);
  });

  it('exits with 1 and a reason where a file cannot be loaded', async () => {
    const { code, stdout, stderr } = await keys('keys', '--module', 'missing.js');
    expect([code, stdout]).toEqual([1, '']);
    expect(stderr).toContain('missing.js could not be loaded. Name a compiled file');
  });

  it.each([[['--help']], [['keys', '-h']]])('prints its usage on %j', async (args) => {
    const { code, stdout, stderr } = await keys(...args);
    expect([code, stderr]).toEqual([0, '']);
    expect(stdout).toContain('usage: nestjs-fencing keys --module <file>...');
  });

  it('says which argument is wrong', async () => {
    expect((await keys('keys', '--modul', 'x.js')).stderr).toMatch(/^Unknown option '--modul'/);
    expect((await keys('doctor', '--database', 'x')).stderr).toMatch(/^Unknown option '--database'/);
  });

  it.each([[[]], [['keys']], [['locks', '--module', 'x.js']], [['keys', '--modul', 'x.js']]])(
    'exits with 2 and its usage on %j',
    async (args) => {
      const { code, stdout, stderr } = await keys(...args);
      expect([code, stdout]).toEqual([2, '']);
      expect(stderr).toContain('usage: nestjs-fencing keys --module <file>...');
    },
  );
});
