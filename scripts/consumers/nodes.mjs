import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { execute } from './execute.mjs';

/**
 * The executables of the versions of Node that are asked for, by version; the one at hand is the first. The others are the
 * packages that `npm install node` fetches for this platform.
 * @param {string} folder
 * @param {readonly string[]} versions e.g. `22`, `24.1.0`
 * @returns {Promise<Map<string, string>>}
 */
export async function installNodes(folder, versions) {
  const nodes = new Map([[process.versions.node, process.execPath]]);
  for (const version of versions) {
    const home = path.join(folder, `node-${version}`);
    mkdirSync(home);
    writeFileSync(path.join(home, 'package.json'), '{"private":true}');
    const name = `node-${process.platform === 'win32' ? 'win' : process.platform}-${process.arch}`;
    const installed = await execute(
      'npm',
      ['install', `${name}@${version}`, '--no-audit', '--no-fund', '--ignore-scripts', '--prefer-offline'],
      home,
    );
    if (installed.code !== 0) throw new Error(`Node ${version} could not be installed:\n${installed.output}`);
    const node = path.join(
      home,
      'node_modules',
      name,
      'bin',
      process.platform === 'win32' ? 'node.exe' : 'node',
    );
    const asked = await execute(node, ['--version'], home);
    if (asked.code !== 0) throw new Error(`Node ${version} does not run here:\n${asked.output}`);
    nodes.set(asked.stdout.trim().slice(1), node);
  }
  return nodes;
}
