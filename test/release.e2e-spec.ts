import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
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
