// Builds libs/fencing/dist, and puts the texts that npm publishes beside it.
//
//   dist/lib       the code, once: each file is a function of what it imports
//   dist/esm, cjs  entry points and declarations of the two copies, and what imports for the code (package/body.mjs says how)
//
// The tarball has a size to keep (scripts/package/tarball.mjs): the code goes out without comments, source maps and the names of
// local variables, which the repository has; classes, functions, members and lines stay, for stack traces. The declarations keep
// their comments, which editors show, and leave out what is marked as internal and what no entry point leads to.
import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { toBody, toEntry, toProgram } from './package/body.mjs';
import { bundleCode, bundleDeclarations } from './package/bundle.mjs';
import { compact } from './package/compact.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
const lib = path.join(root, 'libs', 'fencing');
const dist = path.join(lib, 'dist');
const compiled = path.join(dist, 'compiled');

rmSync(dist, { recursive: true, force: true });
compile('--emitDeclarationOnly', '--declarationMap', 'false', '--stripInternal');
compile('--declaration', 'false', '--declarationMap', 'false', '--sourceMap', 'false', '--importHelpers');
for (const { fileName, code, isEntry, dynamicImports } of await bundleCode(compiled)) {
  if (fileName.startsWith('cli')) {
    write(`esm/${fileName}`, toProgram(await compact(code), fileName));
  } else if (isEntry) {
    if (dynamicImports.length > 0) throw new Error(`${fileName} is more than an entry point.`);
    const { esm, cjs } = toEntry(code, fileName);
    write(`esm/${fileName}`, esm);
    write(`cjs/${fileName}`, cjs);
  } else {
    const { body, esm, cjs } = toBody(await compact(code), path.basename(fileName, '.js'));
    write(`lib/${fileName.replace(/\.js$/, '.cjs')}`, body);
    write(`esm/${fileName}`, esm);
    write(`cjs/${fileName}`, cjs);
  }
}
// The same text for both copies: what it means to a compiler is said by the package.json above it.
for (const { fileName, code } of await bundleDeclarations(compiled)) {
  const text = code.replaceAll(/^( {4})+/gm, ({ length }) => ' '.repeat(length / 4));
  for (const copy of ['esm', 'cjs']) write(`${copy}/${fileName}`, text);
}
write('cjs/package.json', '{"type":"commonjs"}\n');
rmSync(compiled, { recursive: true });

for (const text of ['README.md', 'LICENSE']) {
  if (existsSync(path.join(root, text))) copyFileSync(path.join(root, text), path.join(lib, text));
}

/** @param {...string} options */
function compile(...options) {
  const tsc = 'node_modules/typescript/bin/tsc';
  const args = [tsc, '-p', 'libs/fencing/tsconfig.lib.json', '--outDir', compiled, ...options];
  const { status } = spawnSync(process.execPath, args, { cwd: root, stdio: 'inherit' });
  if (status !== 0) process.exit(status ?? 1);
}

/** @param {string} file below dist @param {string} text */
function write(file, text) {
  mkdirSync(path.dirname(path.join(dist, file)), { recursive: true });
  writeFileSync(path.join(dist, file), text);
}
