import { randomBytes } from 'node:crypto';
import { rm } from 'node:fs/promises';
import path from 'node:path';
import pg from 'pg';
import { freePort, startPostgres, temporaryFolder } from '../../scripts/services.mjs';

/** How a PostgreSQL server ends: waiting for its sessions, cutting them off, or like a crash. */
export type StopMode = 'smart' | 'fast' | 'immediate';

const signals = { smart: 'SIGTERM', fast: 'SIGINT', immediate: 'SIGQUIT' } as const;

/** A PostgreSQL server of a test's own, to be stopped and brought back. It keeps port and data over restarts. */
export class PostgresServer {
  private constructor(
    readonly port: number,
    private readonly dir: string,
    private readonly settings: Record<string, string | number>,
    private server: Awaited<ReturnType<typeof startPostgres>>,
  ) {}

  /** `settings` as in postgresql.conf; by default nothing is forced to disk. */
  static async start(settings: Record<string, string | number> = {}): Promise<PostgresServer> {
    const port = await freePort();
    const dir = temporaryFolder('pg');
    const server = await startPostgres({ port, dir: path.join(dir, 'data'), settings });
    return new PostgresServer(port, dir, settings, server);
  }

  get url(): string {
    return this.server.url;
  }

  /** The process id of its first process at the moment; another one after each restart. */
  get pid(): number {
    return this.server.pid!;
  }

  /** Ends the server and keeps its data for `restart()`. */
  async shutDown(mode: StopMode = 'fast'): Promise<void> {
    await this.server.stop(signals[mode]);
  }

  /** Ends the server if it still runs, and starts it again. */
  async restart(mode: StopMode = 'fast'): Promise<void> {
    await this.shutDown(mode);
    this.server = await startPostgres({
      port: this.port,
      dir: path.join(this.dir, 'data'),
      settings: this.settings,
    });
  }

  /** Ends the server and removes its data. */
  async stop(): Promise<void> {
    await this.shutDown('immediate');
    await rm(this.dir, { recursive: true, force: true });
  }
}

/** An empty database with a name of its own on the test run's server; `drop` cuts off whoever is still connected. */
export async function freshDatabase(): Promise<{ name: string; url: string; drop(): Promise<void> }> {
  const name = `fresh_${randomBytes(8).toString('hex')}`;
  await onServer(`CREATE DATABASE ${name} TEMPLATE template0`);
  const url = new URL(process.env.DATABASE_URL!);
  url.pathname = `/${name}`;
  return { name, url: url.href, drop: () => onServer(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`) };
}

async function onServer(sql: string): Promise<void> {
  const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
  await client.connect();
  try {
    await client.query(sql);
  } finally {
    await client.end();
  }
}
