// Builds libs/fencing into dist/esm and dist/cjs, and puts the texts that npm publishes beside them.
//
// The tarball has a size to keep (scripts/package/tarball.mjs): the code goes out without comments, indentation and source maps,
// which the repository has; the declarations keep their comments, which editors show, and leave out what is marked as internal and what no entry point leads to.
import { spawnSync } from 'node:child_process';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { compact } from './package/compact.mjs';
import { toCommonJs } from './package/commonjs.mjs';
import { reachableDeclarations } from './package/declarations.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
const lib = path.join(root, 'libs', 'fencing');
const esm = path.join(lib, 'dist', 'esm');
const cjs = path.join(lib, 'dist', 'cjs');

rmSync(path.join(lib, 'dist'), { recursive: true, force: true });
compile('--emitDeclarationOnly', '--declarationMap', 'false', '--stripInternal');
compile('--removeComments', '--declaration', 'false', '--declarationMap', 'false', '--sourceMap', 'false');
const needed = reachableDeclarations(esm);
for (const file of filesIn(esm, '.d.ts')) {
  if (!needed.has(path.join(esm, file))) rmSync(path.join(esm, file));
  // The same text for both copies: what it means to a compiler is said by the package.json above it.
  else write(file, readFileSync(path.join(esm, file), 'utf8'));
}
for (const file of filesIn(esm, '.js')) {
  // What runs as a program is there once, and as it is.
  if (file.startsWith('cli')) continue;
  const code = await compact(readFileSync(path.join(esm, file), 'utf8'));
  writeFileSync(path.join(esm, file), code);
  write(file, toCommonJs(code, file));
}
write('package.json', '{"type":"commonjs"}\n');

for (const text of ['README.md', 'LICENSE', 'CHANGELOG.md']) {
  if (existsSync(path.join(root, text))) copyFileSync(path.join(root, text), path.join(lib, text));
}

/** @param {...string} options */
function compile(...options) {
  const args = ['node_modules/typescript/bin/tsc', '-p', 'libs/fencing/tsconfig.lib.json', ...options];
  const { status } = spawnSync(process.execPath, args, { cwd: root, stdio: 'inherit' });
  if (status !== 0) process.exit(status ?? 1);
}

/** @param {string} folder @param {string} ending @returns {string[]} */
function filesIn(folder, ending) {
  return readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith(ending));
}

/** @param {string} file below the CommonJS copy @param {string} text */
function write(file, text) {
  mkdirSync(path.dirname(path.join(cjs, file)), { recursive: true });
  writeFileSync(path.join(cjs, file), text);
}
