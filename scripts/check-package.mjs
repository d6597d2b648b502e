// Imports every entry point of the built package by its published name in plain Node, as ES module and by require.
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { projectRoot } from './services.mjs';

const lib = path.join(projectRoot, 'libs', 'fencing');
/** @type {{ name: string, exports: Record<string, unknown> }} */
const { name, exports } = JSON.parse(readFileSync(path.join(lib, 'package.json'), 'utf8'));

/** The names that an entry point exports; a package may import itself by name from inside its folder.
 * @param {string[]} args @param {string} code @returns {string[]} */
function names(args, code) {
  const printed = execFileSync(process.execPath, [...args, '-e', code], { cwd: lib, encoding: 'utf8' });
  return JSON.parse(printed);
}

let failed = false;
for (const entry of Object.keys(exports).filter((key) => key !== './package.json')) {
  const specifier = JSON.stringify(path.posix.join(name, entry));
  const print = (/** @type {string} */ module) =>
    `console.log(JSON.stringify(Object.keys(${module}).sort()))`;
  // Node takes "module-sync" for both; without it require gives the CommonJS copy, as in Jest and older tools.
  const cjs = path.join(lib, 'dist', 'cjs', entry, 'index.js');
  const found = {
    import: names(['--input-type=module'], print(`await import(${specifier})`)),
    require: names(['--input-type=commonjs'], print(`require(${specifier})`)),
    cjs: existsSync(cjs) ? names(['--input-type=commonjs'], print(`require(${JSON.stringify(cjs)})`)) : [],
  };
  const lists = Object.values(found).map((list) =>
    list.filter((key) => key !== '__esModule' && key !== 'module.exports'),
  );
  const same = lists.every((list) => list.length > 0 && list.join() === lists[0]?.join());
  console.log(
    `${same ? 'ok' : 'DIFFERENT'} ${specifier}: ${lists.map((list) => list.length).join(' = ')} exports`,
  );
  failed ||= !same;
}
process.exit(failed ? 1 : 0);
