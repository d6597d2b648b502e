import { readFileSync } from 'node:fs';
import path from 'node:path';
import { projectRoot } from '../services/folders.mjs';

/** The folder of the published package. */
export const lib = path.join(projectRoot, 'libs', 'fencing');

/**
 * @typedef {object} Manifest
 * @property {string} name
 * @property {Record<string, unknown>} exports
 * @property {Record<string, string>} [dependencies]
 * @property {Record<string, string>} peerDependencies
 * @property {Record<string, { optional?: boolean }>} peerDependenciesMeta
 */

/** @type {Manifest} */
export const manifest = JSON.parse(readFileSync(path.join(lib, 'package.json'), 'utf8'));

/** The entry points as paths below the package: `.`, `./redis` and so on. */
export const entryPoints = Object.keys(manifest.exports).filter((entry) => entry !== './package.json');
