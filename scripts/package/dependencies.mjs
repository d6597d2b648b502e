import { readFileSync } from 'node:fs';
import path from 'node:path';
import { projectRoot } from '../services/folders.mjs';
import { importsOf, reachableDeclarations } from './declarations.mjs';
import { entryPoints, lib, manifest } from './package.mjs';

/** What the declarations of the root may name: what every user has. */
const FOR_ALL = /^(@nestjs\/common|@nestjs\/core|rxjs|reflect-metadata|node:[\w/]+)$/;

/**
 * Follows the imports of the root's declarations, of both copies.
 * @returns {Promise<string[]>}
 */
export async function checkRootTypes() {
  return ['esm', 'cjs'].flatMap((copy) => {
    const files = [...reachableDeclarations(path.join(lib, 'dist', copy), ['.'])];
    if (files.length < 2) return [`the root of dist/${copy} declares nothing: it is not what it was`];
    return files.flatMap((file) =>
      importsOf(file)
        .filter((specifier) => !specifier.startsWith('.') && !FOR_ALL.test(specifier))
        .map((specifier) => `${path.relative(lib, file)} imports ${specifier}`),
    );
  });
}

/**
 * Holds the tables of docs/package.md against package.json: entry points, and dependencies in both directions.
 * @returns {Promise<string[]>}
 */
export async function checkDependencies() {
  const text = readFileSync(path.join(projectRoot, 'docs', 'package.md'), 'utf8');
  const section = text.split(/^## /m).find((part) => part.startsWith('Dependencies')) ?? '';
  const listed = [...section.matchAll(/^\| `([^`]+)` \| (\w+) \| `([^`]+)` \| \S/gm)].map(
    ([, name, kind, range]) => `${name} ${kind} ${range}`,
  );
  const entries = text.split(/^## /m).find((part) => part.startsWith('Entry points')) ?? '';
  const named = [...entries.matchAll(/^\| `([^`]+)` \|/gm)].map(([, name]) => name);
  const { dependencies = {}, peerDependencies, peerDependenciesMeta } = manifest;
  const inManifest = [
    ...Object.entries(dependencies).map(([name, range]) => `${name} dependency ${range}`),
    ...Object.entries(peerDependencies).map(
      ([name, range]) => `${name} ${peerDependenciesMeta[name]?.optional ? 'optional' : 'peer'} ${range}`,
    ),
  ].map((row) => row.replaceAll('||', 'or'));
  return [
    ...entryPoints
      .map((entry) => path.posix.join(manifest.name, entry))
      .filter((name) => !named.includes(name))
      .map((name) => `docs/package.md does not list the entry point ${name}`),
    ...inManifest
      .filter((row) => !listed.includes(row))
      .map((row) => `docs/package.md does not justify ${row}`),
    ...listed
      .filter((row) => !inManifest.includes(row))
      .map((row) => `docs/package.md has ${row}, package.json has not`),
  ];
}
