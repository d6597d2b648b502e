import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { entryPoints, lib, manifest } from './package.mjs';

/**
 * Imports every entry point by its published name in plain Node, as ES module and by require.
 * @returns {Promise<string[]>}
 */
export async function checkEntryPoints() {
  return entryPoints.flatMap((entry) => {
    const specifier = JSON.stringify(path.posix.join(manifest.name, entry));
    const print = (/** @type {string} */ module) =>
      `console.log(JSON.stringify(Object.keys(${module}).sort()))`;
    // Node takes "module-sync" for both; without it require gives the CommonJS copy, as in Jest and older tools.
    const cjs = path.join(lib, 'dist', 'cjs', entry, 'index.js');
    if (!existsSync(cjs)) return [`${specifier} has no CommonJS copy`];
    const lists = [
      names(['--input-type=module'], print(`await import(${specifier})`)),
      names(['--input-type=commonjs'], print(`require(${specifier})`)),
      names(['--input-type=commonjs'], print(`require(${JSON.stringify(cjs)})`)),
    ];
    const same = lists.every((list) => list.length > 0 && list.join() === lists[0]?.join());
    return same ? [] : [`${specifier} exports ${lists.map((list) => list.length).join(', ')} names`];
  });
}

/** The names that an entry point exports; a package may import itself by name from inside its folder.
 * @param {string[]} args @param {string} code @returns {string[]} */
function names(args, code) {
  const printed = execFileSync(process.execPath, [...args, '-e', code], { cwd: lib, encoding: 'utf8' });
  /** @type {string[]} */
  const list = JSON.parse(printed);
  return list.filter((name) => name !== '__esModule' && name !== 'module.exports');
}
