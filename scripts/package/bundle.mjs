import { readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { rollup } from 'rollup';
import { dts } from 'rollup-plugin-dts';
import { importsOf } from './declarations.mjs';
import { entryPoints } from './package.mjs';

/** Two copies of a file cost the tarball one where they stand within the 32 kB that gzip looks back; with room for the next ones. */
const LARGEST_DECLARATIONS = 26_000;
/** What runs as a program. */
const PROGRAM = 'cli/main';

/**
 * Puts the modules that the compiler wrote into one file per folder, and those that another entry point shares into one more: so
 * an entry point loads what it needs, and the root no optional peer.
 * @param {string} folder of compiled ES modules
 * @returns {Promise<import('rollup').OutputChunk[]>}
 */
export async function bundleCode(folder) {
  const names = [...entryPoints.map((entry) => path.posix.join(entry, 'index')), PROGRAM];
  const inputs = names.map((name) => path.join(folder, `${name}.js`));
  const shared = new Set(inputs.flatMap((input) => [...foreignTo(folder, input)]));
  return bundle(folder, names, '.js', {
    plugins: [
      {
        name: 'helpers of the compiler',
        resolveId: (id) =>
          id === 'tslib' ? fileURLToPath(import.meta.resolve('tslib/tslib.es6.mjs')) : null,
      },
    ],
    chunkOf(file) {
      if (!file.startsWith(folder)) return 'core';
      const home = folderOf(folder, file);
      return shared.has(file) && !['core', 'nest', 'redis'].includes(home) ? `${home}-shared` : home;
    },
  });
}

/**
 * The same for declarations: what no public name leads to is left out.
 * @param {string} folder of declarations
 * @returns {Promise<import('rollup').OutputChunk[]>}
 */
export async function bundleDeclarations(folder) {
  const names = entryPoints.map((entry) => path.posix.join(entry, 'index'));
  /** @type {Map<string, { part: number, size: number }>} */
  const parts = new Map();
  return bundle(folder, names, '.d.ts', {
    plugins: [dts()],
    chunkOf(file) {
      const home = folderOf(folder, file);
      const last = parts.get(home) ?? { part: 1, size: 0 };
      const size = readFileSync(file).length;
      const next =
        last.size + size > LARGEST_DECLARATIONS
          ? { part: last.part + 1, size }
          : { ...last, size: last.size + size };
      parts.set(home, next);
      return next.part === 1 ? home : `${home}-${next.part}`;
    },
  });
}

/**
 * @param {string} folder
 * @param {string[]} names of entries
 * @param {string} ending
 * @param {{ plugins: import('rollup').Plugin[], chunkOf: (file: string) => string }} options
 */
async function bundle(folder, names, ending, { plugins, chunkOf }) {
  const input = Object.fromEntries(names.map((name) => [name, path.join(folder, `${name}${ending}`)]));
  const isInput = new Set(Object.values(input));
  const program = path.join(folder, path.dirname(PROGRAM));
  const build = await rollup({
    input,
    plugins,
    treeshake: { moduleSideEffects: (id, external) => !external || id === 'reflect-metadata' },
    external: (id) => !id.startsWith('.') && !path.isAbsolute(id) && id !== 'tslib',
    onwarn(warning) {
      // Of types alone, which may go round in a circle and need no name outside.
      if (ending === '.d.ts' && ['CIRCULAR_CHUNK', 'PLUGIN_WARNING'].includes(warning.code ?? '')) return;
      throw new Error(`${warning.code}: ${warning.message}`);
    },
  });
  const { output } = await build.generate({
    format: 'esm',
    entryFileNames: `[name]${ending}`,
    chunkFileNames: `[name]${ending}`,
    hoistTransitiveImports: false,
    minifyInternalExports: false,
    manualChunks: (id) => (isInput.has(id) || id.startsWith(program) ? undefined : chunkOf(id)),
  });
  return output.filter((file) => file.type === 'chunk');
}

/** Files of other folders that an entry leads to. @param {string} folder @param {string} entry */
function foreignTo(folder, entry) {
  const known = new Set([entry]);
  for (const file of known) {
    for (const specifier of importsOf(file).filter((one) => one.startsWith('.')))
      known.add(path.join(path.dirname(file), specifier));
  }
  return [...known].filter((file) => folderOf(folder, file) !== folderOf(folder, entry));
}

/** @param {string} folder @param {string} file */
function folderOf(folder, file) {
  return String(path.relative(folder, file).split(path.sep)[0]);
}
