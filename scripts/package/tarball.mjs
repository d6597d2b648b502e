import { mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { execute } from '../consumers/execute.mjs';
import { projectRoot } from '../services/folders.mjs';
import { lib } from './package.mjs';

/** Also a promise of docs/package.md. */
const LARGEST_BYTES = 150_000;

/**
 * Packs what is built, and has it judged.
 * @returns {Promise<string[]>}
 */
export async function checkTarball() {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'fencing-pack-'));
  try {
    const packed = await execute(
      'npm',
      ['pack', '--json', '--ignore-scripts', '--pack-destination', folder],
      lib,
    );
    if (packed.code !== 0) return [`npm pack failed: ${packed.output}`];
    const [{ filename, size }] = JSON.parse(packed.stdout);
    const tarball = path.join(folder, filename);
    const problems =
      size <= LARGEST_BYTES ? [] : [`${filename} has ${size} bytes, more than ${LARGEST_BYTES}`];
    for (const [script, ...args] of [
      ['publint/src/cli.js', tarball, '--strict'],
      ['@arethetypeswrong/cli/dist/index.js', tarball, '--format', 'ascii'],
    ]) {
      const file = path.join(projectRoot, 'node_modules', String(script));
      const judged = await execute(process.execPath, [file, ...args], folder);
      if (judged.code !== 0) problems.push(`${script} ${path.basename(tarball)}:\n${judged.output}`);
    }
    return problems;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
