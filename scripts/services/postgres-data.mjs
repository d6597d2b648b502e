// The data folder of a PostgreSQL server, and the account that owns it.
import { spawnSync } from 'node:child_process';
import { chownSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync, statSync } from 'node:fs';
import path from 'node:path';
import { dataFolders, executable, fallbackFolder } from './folders.mjs';

/** @typedef {{ uid?: number, gid?: number }} Account the account a server runs under; empty for our own */

/**
 * PostgreSQL refuses to run as root: it then runs as the owner of its data, or as postgres or nobody.
 * @param {string | undefined} data a data folder that may exist already
 * @returns {Account}
 */
export function serverAccount(data) {
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
export function canEnter(account, folder) {
  return (
    account.uid === undefined ||
    spawnSync('/bin/sh', ['-c', 'cd "$1"', 'sh', folder], { ...account, cwd: '/', stdio: 'ignore' })
      .status === 0
  );
}

/** One folder per major version: the files of one cannot be read by another. @param {string} bin */
function dataName(bin) {
  const version = spawnSync(path.join(bin, executable('postgres')), ['--version'], {
    encoding: 'utf8',
  }).stdout;
  return `postgres-${/(\d+)/.exec(version ?? '')?.[1] ?? 'data'}`;
}

/** The persistent data folder that an earlier run made, if any. @param {string} bin */
export function existingData(bin) {
  return [dataFolders.project, dataFolders.fallback]
    .map((home) => path.join(home, dataName(bin)))
    .find((data) => existsSync(data));
}

/**
 * Where persistent data goes: the project's .data, unless the server's account cannot get there.
 * @param {string} bin @param {Account} account
 */
export function persistentData(bin, account) {
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
export function initialise(bin, data, account) {
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
export function refuseSecondServer(data) {
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
