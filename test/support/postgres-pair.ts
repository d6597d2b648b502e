import { spawnSync } from 'node:child_process';
import { chownSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import path from 'node:path';
import pg from 'pg';
import { freePort, startPostgres, temporaryFolder } from '../../scripts/services.mjs';
import { eventually } from './gate.js';

type Running = Awaited<ReturnType<typeof startPostgres>>;

/** An address that leads to one server now and to another one later, as a name in DNS or a virtual IP does. */
export class Address {
  private readonly sockets = new Set<Socket>();

  private constructor(
    readonly port: number,
    private target: number | undefined,
    private readonly server: Server,
  ) {}

  static async of(target: number): Promise<Address> {
    const port = await freePort();
    const server = createServer((client) => address.link(client));
    const address = new Address(port, target, server);
    await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
    return address;
  }

  get url(): string {
    return `postgres://postgres@127.0.0.1:${this.port}/postgres`;
  }

  /** From now on it leads there, or nowhere; whoever is connected is cut off. */
  leadTo(target: number | undefined): void {
    this.target = target;
    for (const socket of this.sockets) socket.destroy();
  }

  async close(): Promise<void> {
    this.leadTo(undefined);
    await new Promise((resolve) => this.server.close(resolve));
  }

  private link(client: Socket): void {
    if (this.target === undefined) return void client.destroy();
    const server = connect(this.target, '127.0.0.1');
    for (const [one, other] of [
      [client, server],
      [server, client],
    ] as const) {
      this.sockets.add(one);
      one.on('error', () => undefined);
      one.on('close', () => {
        this.sockets.delete(one);
        other.destroy();
      });
      one.pipe(other);
    }
  }
}

/** A PostgreSQL and its standby, with streaming replication between them; applications reach both by one address. */
export class PostgresPair {
  private constructor(
    private readonly dir: string,
    private readonly primary: Running,
    private readonly standby: Running,
    /** Where applications connect. */
    readonly address: Address,
    private readonly replication: Address,
  ) {}

  /** `sync`: a commit waits until the standby has it on its disk. */
  static async start(mode: 'sync' | 'async'): Promise<PostgresPair> {
    const dir = temporaryFolder('pg-pair');
    const [primaryDir, standbyDir] = [path.join(dir, 'primary'), path.join(dir, 'standby')];
    const settings = { wal_level: 'replica', max_wal_senders: 4, hot_standby: 'on' };
    // A base backup of a server that is shut down is a copy of its folder.
    let primary = await startPostgres({ dir: primaryDir, settings });
    await primary.stop();
    spawnSync('cp', ['-a', primaryDir, standbyDir]);
    const signal = path.join(standbyDir, 'standby.signal');
    writeFileSync(signal, '');
    const { uid, gid } = statSync(standbyDir);
    chownSync(signal, uid, gid);
    primary = await startPostgres({ dir: primaryDir, settings });
    const replication = await Address.of(primary.port);
    const conninfo = `host=127.0.0.1 port=${replication.port} user=postgres application_name=standby`;
    const standby = await startPostgres({
      dir: standbyDir,
      settings: { ...settings, primary_conninfo: conninfo, wal_retrieve_retry_interval: '100ms' },
    });
    const pair = new PostgresPair(dir, primary, standby, await Address.of(primary.port), replication);
    if (mode === 'sync') {
      await pair.onPrimary("ALTER SYSTEM SET synchronous_standby_names = 'standby'");
      await pair.onPrimary('SELECT pg_reload_conf()');
    }
    await eventually(
      async () => {
        const seen = 'SELECT state, sync_state FROM pg_stat_replication';
        const [row] = await pair.onPrimary<{ state: string; sync_state: string }>(seen);
        return row?.state === 'streaming' && row.sync_state === mode;
      },
      { timeoutMs: 30_000 },
    );
    return pair;
  }

  onPrimary<Row extends pg.QueryResultRow>(sql: string): Promise<Row[]> {
    return query<Row>(this.primary.url, sql);
  }

  onStandby<Row extends pg.QueryResultRow>(sql: string): Promise<Row[]> {
    return query<Row>(this.standby.url, sql);
  }

  /** Waits until the standby has all that is committed now. */
  async caughtUp(): Promise<void> {
    const [now] = await this.onPrimary<{ lsn: string }>('SELECT pg_current_wal_flush_lsn() AS lsn');
    await eventually(async () => {
      const replayed = `SELECT pg_last_wal_replay_lsn() >= '${now!.lsn}' AS all`;
      return (await this.onStandby<{ all: boolean }>(replayed))[0]!.all;
    });
  }

  /** The standby hears nothing more of the primary. */
  async cutReplication(): Promise<void> {
    this.replication.leadTo(undefined);
    const receiving = 'SELECT 1 FROM pg_stat_wal_receiver';
    await eventually(async () => (await this.onStandby(receiving)).length === 0);
  }

  /** The primary is gone, as with its machine. */
  async killPrimary(): Promise<void> {
    this.address.leadTo(undefined);
    await this.primary.stop('SIGKILL');
  }

  async promote(): Promise<void> {
    const [row] = await this.onStandby<{ promoted: boolean }>('SELECT pg_promote(true, 60) AS promoted');
    if (!row!.promoted) throw new Error('the standby was not promoted');
  }

  /** Applications reach the promoted standby from now on. */
  letIn(): void {
    this.address.leadTo(this.standby.port);
  }

  async stop(): Promise<void> {
    await Promise.all([this.address.close(), this.replication.close()]);
    await this.standby.stop('SIGQUIT');
    await this.primary.stop('SIGQUIT');
    rmSync(this.dir, { recursive: true, force: true, maxRetries: 3 });
  }
}

async function query<Row extends pg.QueryResultRow>(url: string, sql: string): Promise<Row[]> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    return (await client.query<Row>(sql)).rows;
  } finally {
    await client.end();
  }
}
