// Where servers keep their files.
import { createHash } from 'node:crypto';
import { accessSync, chmodSync, constants, lstatSync, mkdirSync, mkdtempSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

export const projectRoot = path.resolve(fileURLToPath(import.meta.url), '..', '..', '..');

/** Data that survives a restart: the project's own folder, and a temporary one for when no server may enter the project. */
export const dataFolders = {
  project: path.join(projectRoot, '.data'),
  fallback: path.join(
    os.tmpdir(),
    `nestjs-fencing-${process.getuid?.() ?? 'data'}-${createHash('sha256').update(projectRoot).digest('hex').slice(0, 8)}`,
  ),
};

/**
 * A new folder for a throw-away server. A test run sets SERVICES_TMP to one folder and removes it as a whole.
 * @param {string} name
 */
export function temporaryFolder(name) {
  const folder = mkdtempSync(path.join(process.env.SERVICES_TMP ?? os.tmpdir(), `fencing-${name}-`));
  chmodSync(folder, 0o755); // a server under another account passes through
  return folder;
}

/** The fallback folder, refused when somebody else put it there. */
export function fallbackFolder() {
  const folder = dataFolders.fallback;
  mkdirSync(folder, { recursive: true, mode: 0o755 });
  const found = lstatSync(folder);
  if (!found.isDirectory() || found.uid !== (process.getuid?.() ?? found.uid)) {
    throw new Error(`${folder} was made by someone else: remove it, or set DATABASE_URL.`);
  }
  return folder;
}

/**
 * The first of `names` that can be run, from PATH and then from `folders`.
 * @param {string[]} names
 * @param {string[]} folders
 */
export function findExecutable(names, folders) {
  for (const folder of [...(process.env.PATH ?? '').split(path.delimiter).filter(Boolean), ...folders]) {
    for (const name of names) {
      const file = path.join(folder, executable(name));
      try {
        accessSync(file, constants.X_OK);
        return file;
      } catch {
        // not here
      }
    }
  }
  return undefined;
}

/** @param {string} name */
export const executable = (name) => (process.platform === 'win32' ? `${name}.exe` : name);
