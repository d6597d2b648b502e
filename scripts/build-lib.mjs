// Builds libs/fencing into dist/esm and dist/cjs, and puts the texts that npm publishes beside them.
import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, rmSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const lib = `${root}libs/fencing`;

/** Runs node, and ends with it when it fails. @param {...string} args */
function node(...args) {
  const { status } = spawnSync(process.execPath, args, { cwd: root, stdio: 'inherit' });
  if (status !== 0) process.exit(status ?? 1);
}

rmSync(`${lib}/dist`, { recursive: true, force: true });
node('node_modules/@nestjs/cli/bin/nest.js', 'build', 'fencing');
node('node_modules/typescript/bin/tsc', '-p', 'libs/fencing/tsconfig.cjs.json');
writeFileSync(`${lib}/dist/cjs/package.json`, '{"type":"commonjs"}\n');

for (const text of ['README.md', 'LICENSE', 'CHANGELOG.md']) {
  if (existsSync(root + text)) copyFileSync(root + text, `${lib}/${text}`);
}
