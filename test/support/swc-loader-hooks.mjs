// The module hooks behind swc-loader.mjs.
import { transform } from '@swc/core';
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { swcOptions } from './swc-options.mjs';

const library = new URL('../../libs/fencing/src/', import.meta.url);

/** The source file behind an import, where it is TypeScript. @param {string} specifier @param {string} [parentURL] */
function sourceOf(specifier, parentURL) {
  const [, folder] = /^nestjs-fencing(?:\/(\w+))?$/.exec(specifier) ?? [];
  if (/^nestjs-fencing(\/|$)/.test(specifier))
    return new URL(folder ? `${folder}/index.ts` : 'index.ts', library);
  if (!/^\.{1,2}\/.*\.js$/.test(specifier) || !parentURL) return undefined;
  const source = new URL(specifier.replace(/js$/, 'ts'), parentURL);
  return existsSync(source) ? source : undefined;
}

/** @type {import('node:module').ResolveHook} */
export function resolve(specifier, context, next) {
  const source = sourceOf(specifier, context.parentURL);
  return source ? { url: source.href, format: 'module', shortCircuit: true } : next(specifier, context);
}

/** @type {import('node:module').LoadHook} */
export async function load(url, context, next) {
  if (!url.endsWith('.ts')) return next(url, context);
  const file = fileURLToPath(url);
  const { code } = await transform(await readFile(file, 'utf8'), {
    ...swcOptions,
    filename: file,
    swcrc: false,
    sourceMaps: 'inline',
  });
  return { format: 'module', source: code, shortCircuit: true };
}
