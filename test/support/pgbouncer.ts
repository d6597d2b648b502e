import { chownSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { freePort, temporaryFolder } from '../../scripts/services.mjs';
import { findExecutable } from '../../scripts/services/folders.mjs';
import { postgresAnswers } from '../../scripts/services/ports.mjs';
import { serverAccount } from '../../scripts/services/postgres-data.mjs';
import { startServer } from '../../scripts/services/server-process.mjs';

/** The PgBouncer of this machine: `PGBOUNCER`, or one on the PATH or where Debian has it. */
export function findPgBouncer(): string | undefined {
  if (process.env.PGBOUNCER !== undefined) return process.env.PGBOUNCER || undefined;
  return findExecutable(['pgbouncer'], ['/usr/sbin', '/opt/homebrew/bin']);
}

export const NO_PGBOUNCER =
  'SKIPPED: no PgBouncer found. Set PGBOUNCER to its path, or install it (apt-get install pgbouncer).';

/** A PgBouncer in transaction mode, in front of all databases of a server. */
export class PgBouncer {
  private constructor(
    readonly port: number,
    private readonly server: Awaited<ReturnType<typeof startServer>>,
  ) {}

  /** `poolSize`: how many sessions of the server all clients of a database share. */
  static async start(target: string, { poolSize = 20 } = {}): Promise<PgBouncer> {
    const { hostname, port: targetPort, username } = new URL(target);
    const port = await freePort();
    const dir = temporaryFolder('pgbouncer');
    mkdirSync(dir, { recursive: true });
    const users = path.join(dir, 'users.txt');
    const config = path.join(dir, 'pgbouncer.ini');
    writeFileSync(users, `"${username || 'postgres'}" ""\n`);
    writeFileSync(
      config,
      [
        '[databases]',
        `* = host=${hostname} port=${targetPort || 5432}`,
        '[pgbouncer]',
        'listen_addr = 127.0.0.1',
        `listen_port = ${port}`,
        'unix_socket_dir =',
        'auth_type = trust',
        `auth_file = ${users}`,
        'pool_mode = transaction',
        `default_pool_size = ${poolSize}`,
        'max_client_conn = 500',
        // What was left in a session must be there to be found.
        'server_reset_query =',
        'server_check_query =',
        'ignore_startup_parameters = extra_float_digits',
      ].join('\n'),
    );
    // It does not run as root.
    const account = serverAccount(undefined);
    if (account.uid !== undefined)
      for (const file of [dir, users, config]) chownSync(file, account.uid, account.gid ?? account.uid);
    const server = await startServer('PgBouncer', findPgBouncer()!, [config], {
      ready: () => postgresAnswers(port),
      stopSignal: 'SIGTERM',
      exitSignal: 'SIGKILL',
      afterwards: () => rmSync(dir, { recursive: true, force: true, maxRetries: 3 }),
      options: { ...account, cwd: dir },
    });
    return new PgBouncer(port, server);
  }

  /** The URL of a database of the server, through it. */
  urlOf(url: string): string {
    const through = new URL(url);
    through.host = `127.0.0.1:${this.port}`;
    return through.href;
  }

  async stop(): Promise<void> {
    await this.server.stop();
  }
}
