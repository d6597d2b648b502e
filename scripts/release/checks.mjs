import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';

/**
 * What of a repository stands in the way of publishing the version that its package names.
 * @param {string} root
 * @returns {{ version: string, problems: string[] }}
 */
export function releaseProblems(root) {
  const { version } = JSON.parse(readFileSync(path.join(root, 'libs', 'fencing', 'package.json'), 'utf8'));
  return { version, problems: [...uncommitted(root), ...changelog(root, version), ...tagged(root, version)] };
}

/** @param {string} root @returns {string[]} */
function uncommitted(root) {
  const changes = git(root, 'status', '--porcelain');
  return changes === '' ? [] : [`the work tree has changes that are not committed:\n${changes}`];
}

/** @param {string} root @param {string} version @returns {string[]} */
function changelog(root, version) {
  const file = path.join(root, 'CHANGELOG.md');
  const text = existsSync(file) ? readFileSync(file, 'utf8') : '';
  const sections = text.split(/^## /m).slice(1);
  const titled = (/** @type {string} */ title) =>
    sections.find((section) => section.split('\n')[0]?.split(/[\s,]/)[0] === title);
  const own = titled(version);
  if (own === undefined) return [`CHANGELOG.md has no section "## ${version}".`];
  if (!/^\s*\S/m.test(own.split('\n').slice(1).join('\n')))
    return [`the section "## ${version}" of CHANGELOG.md is empty.`];
  const left = titled('Unreleased')?.split('\n').slice(1).join('\n').trim();
  return left
    ? ['CHANGELOG.md still has changes under "## Unreleased": they belong to this version, or to none.']
    : [];
}

/** @param {string} root @param {string} version @returns {string[]} */
function tagged(root, version) {
  return git(root, 'tag', '--list', `v${version}`) === ''
    ? []
    : [`the tag v${version} exists already: raise the version.`];
}

/** @param {string} root @param {...string} args */
function git(root, ...args) {
  const { status, stdout, stderr, error } = spawnSync('git', args, { cwd: root, encoding: 'utf8' });
  if (status !== 0) throw new Error(`git ${args.join(' ')} failed: ${error?.message ?? stderr}`);
  return stdout.trimEnd();
}
