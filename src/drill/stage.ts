import { Redis } from 'ioredis';
import type { LeaseSnapshot, LeaseStore } from 'nestjs-fencing';
import { redisLeases } from 'nestjs-fencing/redis';
import { DataSource, type DataSourceOptions } from 'typeorm';
import { TcpProxy } from '../../test/support/proxy.js';
import { databaseOptions } from '../database/database.options.js';
import type { Published } from './events.js';
import type { Granted } from './orders.js';
import { DrillWorker } from './worker-process.js';

/** Throw-away servers of the drill's own: it breaks them. */
export interface DrillServers {
  readonly databaseUrl: string;
  readonly redisUrl: string;
  /** Kills Redis as a crash does. */
  killRedis(): Promise<void>;
  /** Starts it again on the same port, with nothing in it. */
  startEmptyRedis(): Promise<void>;
}

/** The newest report of a customer, and the generation that it was published under. */
export interface PublishedReport extends Published {
  readonly generation: number;
}

/** Servers, network and workers, and eyes of the drill's own on the servers. */
export class Stage {
  private workers: Promise<[DrillWorker, DrillWorker, DrillWorker]> | undefined;

  private constructor(
    readonly servers: DrillServers,
    /** A's way to Redis. */
    readonly network: TcpProxy,
    readonly redis: Redis,
    private readonly leases: LeaseStore,
    private readonly database: DataSource,
    private readonly fence: 'on' | 'off',
  ) {}

  static async open(servers: DrillServers, fence: 'on' | 'off'): Promise<Stage> {
    const database = new DataSource(databaseOptions(servers.databaseUrl) as DataSourceOptions);
    await database.initialize();
    const redis = new Redis(servers.redisUrl, { retryStrategy: () => 50 });
    redis.on('error', () => undefined);
    const network = await TcpProxy.start(servers.redisUrl);
    const stage = new Stage(servers, network, redis, redisLeases(redis), database, fence);
    await stage.cast();
    return stage;
  }

  /** A, whose network to Redis can be broken; B; and an A on a machine that can be suspended. */
  async cast(): Promise<{ A: DrillWorker; B: DrillWorker; suspendable: DrillWorker }> {
    const { databaseUrl, redisUrl } = this.servers;
    const env = { DATABASE_URL: databaseUrl, REDIS_URL: redisUrl, DRILL_FENCE: this.fence };
    this.workers ??= Promise.all([
      DrillWorker.start('drill A', { ...env, REDIS_URL: this.network.url }),
      DrillWorker.start('drill B', env),
      DrillWorker.start('drill suspendable A', { ...env, DRILL_CLOCK: 'suspended' }),
    ]);
    const [A, B, suspendable] = await this.workers;
    return { A, B, suspendable };
  }

  /** After a scenario that broke off: the next one gets a whole network and new workers. */
  async clear(): Promise<void> {
    this.network.resume();
    await this.network.accept();
    const workers = await this.workers?.catch(() => []);
    this.workers = undefined;
    await Promise.all(workers?.map((worker) => worker.kill()) ?? []);
  }

  async close(): Promise<void> {
    await this.clear();
    await this.network.stop();
    this.redis.disconnect();
    await this.database.destroy();
  }

  /** A customer with three entries. */
  async openAccount(customerId: string): Promise<void> {
    for (const cents of [100, 200, 300]) await this.addEntry(customerId, cents);
  }

  async addEntry(customerId: string, cents: number): Promise<void> {
    await this.database.query('INSERT INTO ledger_entry (customer_id, amount_cents) VALUES ($1, $2)', [
      customerId,
      cents,
    ]);
  }

  async countEntries(customerId: string, cents: number): Promise<number> {
    const [row] = await this.database.query<[{ count: number }]>(
      'SELECT count(*)::int AS count FROM ledger_entry WHERE customer_id = $1 AND amount_cents = $2',
      [customerId, cents],
    );
    return row.count;
  }

  async report(customerId: string): Promise<PublishedReport | undefined> {
    const [row] = await this.database.query<{ entries: number; total_cents: string; generation: string }[]>(
      'SELECT entries, total_cents, generation FROM report WHERE customer_id = $1',
      [customerId],
    );
    return row && { entries: row.entries, totalCents: row.total_cents, generation: Number(row.generation) };
  }

  /** Who holds the lease at Redis. */
  lease(customerId: string): Promise<LeaseSnapshot | undefined> {
    return this.leases.inspect(keyOf(customerId));
  }

  /** Whom the database has activated. */
  activated(customerId: string): Promise<Granted | undefined> {
    return this.grantIn('fencing_fence', 'key', keyOf(customerId));
  }

  /** Under which grant the database accepted an operation. */
  receipt(operationId: string): Promise<Granted | undefined> {
    return this.grantIn('fencing_operation', 'id', operationId);
  }

  /** How many receipts there are of operations whose id begins like this. */
  async countReceipts(prefix: string): Promise<number> {
    const [row] = await this.database.query<[{ count: number }]>(
      'SELECT count(*)::int AS count FROM fencing_operation WHERE starts_with(id, $1)',
      [prefix],
    );
    return row.count;
  }

  /** How many transactions of a worker are open and wait for it. */
  async idleTransactions(worker: DrillWorker): Promise<number> {
    const [row] = await this.database.query<[{ count: number }]>(
      `SELECT count(*)::int AS count FROM pg_stat_activity
       WHERE application_name = $1 AND state LIKE 'idle in transaction%'`,
      [worker.name],
    );
    return row.count;
  }

  private async grantIn(table: string, column: string, value: string): Promise<Granted | undefined> {
    const [row] = await this.database.query<{ generation: string; owner: string }[]>(
      `SELECT generation, owner FROM ${table} WHERE ${column} = $1`,
      [value],
    );
    return row && { owner: row.owner, generation: Number(row.generation) };
  }
}

export function keyOf(customerId: string): string {
  return `report:${customerId}`;
}
