import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { releaseProblems } from '../scripts/release/checks.mjs';

let root: string;
const git = (...args: string[]) =>
  execFileSync('git', ['-c', 'user.name=t', '-c', 'user.email=t@example.com', ...args], { cwd: root });
const write = (file: string, text: string) => {
  mkdirSync(path.dirname(path.join(root, file)), { recursive: true });
  writeFileSync(path.join(root, file), text);
};
const commit = () => {
  git('add', '.');
  git('commit', '--quiet', '--allow-empty', '-m', 'x');
};
const CHANGELOG =
  '# Changelog\n\n## Unreleased\n\n## 1.2.0 - 2026-11-29\n\n- Something.\n\n## 1.1.0\n\n- Older.\n';

beforeEach(() => {
  root = mkdtempSync(path.join(os.tmpdir(), 'fencing-release-'));
  git('init', '--quiet');
  write('libs/fencing/package.json', JSON.stringify({ version: '1.2.0' }));
  write('CHANGELOG.md', CHANGELOG);
  commit();
});
afterEach(() => rmSync(root, { recursive: true }));

describe('a release is refused', () => {
  it('not, where the tree is clean, the changelog has the version and no tag has it', () => {
    git('tag', 'v1.1.0');
    expect(releaseProblems(root)).toEqual({ version: '1.2.0', problems: [] });
  });

  it.each<[string, () => void, RegExp]>([
    ['with a changed file', () => write('CHANGELOG.md', `${CHANGELOG} `), /not committed:\n.*CHANGELOG\.md/],
    ['with a file that git does not know', () => write('new.txt', ''), /not committed:\n.*new\.txt/],
    ['with a version that is tagged', () => git('tag', 'v1.2.0'), /the tag v1\.2\.0 exists already/],
    [
      'with a version that the changelog lacks',
      () => (write('libs/fencing/package.json', '{"version":"1.2.1"}'), commit()),
      /has no section "## 1\.2\.1"/,
    ],
    [
      'with a section that is empty',
      () => (write('CHANGELOG.md', '## 1.2.0\n\n## 1.1.0\n\n- Older.\n'), commit()),
      /the section "## 1\.2\.0" of CHANGELOG\.md is empty/,
    ],
    [
      'with changes that belong to no version',
      () => (write('CHANGELOG.md', CHANGELOG.replace('Unreleased\n', 'Unreleased\n\n- More.\n')), commit()),
      /still has changes under "## Unreleased"/,
    ],
  ])('%s', (_, spoil, problem) => {
    spoil();
    expect(releaseProblems(root).problems).toEqual([expect.stringMatching(problem)]);
  });
});

describe('npm run release', () => {
  const scripts = fileURLToPath(new URL('../scripts', import.meta.url));

  /** The release script in this repository, whose checks say that they ran, and fail where they are told to. */
  function release({ failing = '', args = [] as string[] } = {}) {
    cpSync(path.join(scripts, 'release.mjs'), path.join(root, 'scripts', 'release.mjs'));
    cpSync(path.join(scripts, 'release'), path.join(root, 'scripts', 'release'), { recursive: true });
    cpSync(path.join(scripts, 'services'), path.join(root, 'scripts', 'services'), { recursive: true });
    const step = (name: string) => `console.log('ran ${name}');process.exit(${name === failing ? 1 : 0})`;
    write('scripts/check-package.mjs', step('check-package'));
    for (const name of ['build:lib', 'api', 'test:consumers'])
      write(`${name.replace(':', '-')}.mjs`, step(name));
    const manifest = {
      type: 'module',
      scripts: {
        'build:lib': 'node build-lib.mjs',
        api: 'node api.mjs',
        'test:consumers': 'node test-consumers.mjs',
      },
    };
    write('package.json', JSON.stringify(manifest));
    write('libs/fencing/package.json', JSON.stringify({ name: 'released', version: '1.2.0' }));
    commit();
    const { status, stdout, stderr } = spawnSync(process.execPath, ['scripts/release.mjs', ...args], {
      cwd: root,
      encoding: 'utf8',
    });
    return {
      status,
      ran: [...stdout.matchAll(/^ran (\S+)$/gm)].map(([, name]) => name),
      said: stdout + stderr,
    };
  }
  const CHECKS = ['build:lib', 'check-package', 'api', 'test:consumers'];

  it('runs every check, says that the version could be published, and publishes nothing', () => {
    const { status, ran, said } = release();
    expect(said).toContain('1.2.0 could be published');
    expect([status, ran]).toEqual([0, CHECKS]);
    expect(String(git('tag'))).toBe('');
  });

  it.each(CHECKS)('refuses where %s fails, before anything is published', (failing) => {
    const { status, ran, said } = release({ failing, args: ['--publish'] });
    expect(said).toMatch(/Not released: (npm|node) .* failed\./);
    expect([status, ran]).toEqual([1, CHECKS.slice(0, CHECKS.indexOf(failing) + 1)]);
    expect(said).not.toContain('npm publish');
    expect(String(git('tag'))).toBe('');
  });

  it('does not publish without the consumers, and runs nothing in a tree that has changes', () => {
    expect(release({ args: ['--publish', '--skip-consumers'] })).toMatchObject({ status: 1, ran: [] });
    write('new.txt', '');
    const { status, stderr } = spawnSync(process.execPath, ['scripts/release.mjs'], {
      cwd: root,
      encoding: 'utf8',
    });
    expect([status, stderr]).toEqual([1, expect.stringContaining('new.txt')]);
  });
});
