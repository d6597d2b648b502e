import type { DataSource } from 'typeorm';
import { systemClock } from '../../core/clock.js';
import { FencingConfigError } from '../../core/errors.js';
import { within } from '../../core/timing.js';

/** The part of a `pg` pool that the lease store uses. */
export interface PgPool {
  query(text: string, values?: unknown[]): Promise<{ rows: Record<string, unknown>[] }>;
  on(event: 'error', listener: (error: Error) => void): unknown;
  end(): Promise<void>;
}

/** The part of a `pg` client that hears notifications. */
export interface PgListener {
  connect(): Promise<unknown>;
  query(text: string): Promise<unknown>;
  on(event: 'error' | 'end', listener: (error?: Error) => void): unknown;
  on(event: 'notification', listener: (message: { payload?: string }) => void): unknown;
  end(): Promise<void>;
}

/** The part of the `pg` module. */
interface PgDriver {
  Pool: new (options: object) => PgPool;
  Client: new (options: object) => PgListener;
}

/** A request is given up after this, and its connection with it: the next one gets a new connection. */
const ANSWER_WITHIN_MS = 2_000;
const CONNECT_WITHIN_MS = 3_000;
/** One for the steps, one so that renewals never wait behind them. */
const CONNECTIONS = 2;
const IDLE_MS = 60_000;
/** How long a PostgreSQL that does not answer may hold up the end of the application, ms. */
const END_MS = 500;

/**
 * The lease store's own connections, to the same server as the DataSource and with its settings: in the application's pool
 * a renewal would wait for whatever the application does.
 */
export class PostgresConnections {
  private opened: Promise<{ driver: PgDriver; options: Record<string, unknown>; pool: PgPool }> | undefined;
  private closed = false;

  /** @param target a DataSource, initialised before the first use, or the URL of a server */
  constructor(private readonly target: DataSource | string) {}

  /** Whose settings they have; none where they have a URL of their own. */
  get dataSource(): DataSource | undefined {
    return typeof this.target === 'string' ? undefined : this.target;
  }

  async query(text: string, values?: unknown[]): Promise<Record<string, unknown>[]> {
    const { pool } = await this.open();
    return (await pool.query(text, values)).rows;
  }

  /** A client of its own for notifications, not yet connected. */
  async listener(): Promise<PgListener> {
    const { driver, options } = await this.open();
    return new driver.Client({ ...options, keepAlive: true, query_timeout: ANSWER_WITHIN_MS });
  }

  async close(): Promise<void> {
    this.closed = true;
    const opened = await this.opened?.catch(() => undefined);
    if (!opened) return;
    await within(systemClock, END_MS, opened.pool.end(), () => new Error('still open')).catch(
      () => undefined,
    );
  }

  private open() {
    if (this.closed) throw new Error('the lease store is closed');
    this.opened ??= this.create();
    // A DataSource that is not ready yet may be the next time.
    this.opened.catch(() => (this.opened = undefined));
    return this.opened;
  }

  private async create() {
    const { driver, given } =
      typeof this.target === 'string' ? await fromUrl(this.target) : ofDataSource(this.target);
    const options = {
      ...given,
      // pg keeps it out of the enumerable properties.
      password: given.password,
      application_name: `${(given.application_name as string | undefined) ?? 'nestjs-fencing'} leases`,
      connectionTimeoutMillis: given.connectionTimeoutMillis || CONNECT_WITHIN_MS,
    };
    const pool = new driver.Pool({
      ...options,
      min: 0,
      max: CONNECTIONS,
      idleTimeoutMillis: IDLE_MS,
      query_timeout: ANSWER_WITHIN_MS,
      keepAlive: true,
    });
    // A broken idle connection is replaced when it is needed; without a listener its error ends the process.
    pool.on('error', () => undefined);
    return { driver, options, pool };
  }
}

async function fromUrl(url: string): Promise<{ driver: PgDriver; given: Record<string, unknown> }> {
  const { default: driver } = await import('pg').catch((error: unknown) => {
    throw new FencingConfigError("postgresLeases({ url }) needs the package 'pg': npm install pg.", error);
  });
  return { driver: driver as unknown as PgDriver, given: { connectionString: url } };
}

/** The pool that TypeORM made knows how the application connects: host, TLS, password function and all. */
function ofDataSource(dataSource: DataSource): { driver: PgDriver; given: Record<string, unknown> } {
  const { master, postgres } = dataSource.driver as unknown as {
    master?: { options: Record<string, unknown> };
    postgres?: PgDriver;
  };
  if (!master || !postgres) throw new Error('its DataSource is not initialized');
  return { driver: postgres, given: master.options };
}
