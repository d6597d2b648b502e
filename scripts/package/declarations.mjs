import { readFileSync } from 'node:fs';
import path from 'node:path';
import ts from 'typescript';
import { entryPoints } from './package.mjs';

/** What a module or a file of declarations imports, also as a type or later. @param {string} file */
export function importsOf(file) {
  return ts.preProcessFile(readFileSync(file, 'utf8'), true, true).importedFiles.map((one) => one.fileName);
}

/**
 * The files of declarations that entry points lead to.
 * @param {string} folder of one copy
 * @param {readonly string[]} [entries] as in package.json
 * @returns {Set<string>}
 */
export function reachableDeclarations(folder, entries = entryPoints) {
  const known = new Set(entries.map((entry) => path.join(folder, entry, 'index.d.ts')));
  for (const file of known) {
    for (const specifier of importsOf(file).filter((one) => one.startsWith('.'))) {
      known.add(path.join(path.dirname(file), specifier.replace(/\.js$/, '.d.ts')));
    }
  }
  return known;
}

/** @param {readonly string[]} files of declarations, as built */
export function programOf(files) {
  return ts.createProgram(files, {
    module: ts.ModuleKind.NodeNext,
    moduleResolution: ts.ModuleResolutionKind.NodeNext,
    target: ts.ScriptTarget.ES2022,
    skipLibCheck: true,
    types: ['node'],
  });
}
