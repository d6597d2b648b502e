import { expect } from '@jest/globals';
import type { RedisOptions } from 'ioredis';
import type { LeaseOptions } from 'nestjs-fencing';
import pg from 'pg';
import { freshDatabase } from './postgres-server.js';
import { forkWorker, type WorkerProcess } from './workers.js';

/** What a leased call in a worker does, one after the other. */
export type Step =
  | { do: 'gate'; name: string }
  /** `caught`: goes on although the write was refused. */
  | { do: 'write'; text: string; caught?: boolean }
  | { do: 'block' | 'sleep' | 'shift wall clock'; ms: number }
  | { do: 'wait for the abort' | 'throwing listener' }
  | { do: 'throw'; message: string }
  | { do: 'return'; value: unknown };

export interface RunRequest {
  readonly id: string;
  readonly key: string;
  readonly options: LeaseOptions;
  readonly steps: readonly Step[];
}

export interface WorkerSettings {
  /** Options of its ioredis client, beside the address. */
  readonly client?: RedisOptions;
  readonly storeTimeoutMs?: number;
  /** Where its leases are kept: in Redis, in the database of the bench, or at the `nodes`. @default 'redis' */
  readonly leases?: 'redis' | 'postgres' | 'quorum' | 'cluster';
  /** URLs of the Redis servers of a quorum, or of a cluster. */
  readonly nodes?: readonly string[];
}

/** How a leased call ended. */
export interface Outcome {
  ok: boolean;
  value?: unknown;
  error?: {
    code?: string;
    message: string;
    reason?: string;
    acceptedWrites?: number;
    result?: unknown;
    bodyError?: { code?: string; message: string };
  };
  /** Of its lease, after the end. */
  aborted?: boolean;
  state?: string;
}

export interface Row {
  readonly version: number;
  readonly generation: number;
  readonly owner: string;
  readonly text: string;
}

/** Tells the requests of the lease store apart on the wire: each names its steps. */
const hasStep = (name: string) => (request: string) =>
  /^EVAL(SHA)?\b/i.test(request) && request.split(' ').includes(name);
export const isAcquire = hasStep('acquire');
export const isRenew = hasStep('renew');
export const isRelease = hasStep('release');

/** A database with a report and its journal, and processes that publish it under leases. */
export class FaultBench {
  private readonly workers: FencedWorker[] = [];

  private constructor(
    private readonly database: Awaited<ReturnType<typeof freshDatabase>>,
    readonly sql: pg.Client,
  ) {}

  static async start(): Promise<FaultBench> {
    const database = await freshDatabase();
    const sql = new pg.Client({ connectionString: database.url });
    await sql.connect();
    await sql.query(
      'CREATE TABLE report (key text PRIMARY KEY, text text NOT NULL, version bigint NOT NULL)',
    );
    await sql.query(
      'CREATE TABLE journal (key text, version bigint, generation bigint, owner text, text text, PRIMARY KEY (key, version))',
    );
    return new FaultBench(database, sql);
  }

  get databaseUrl(): string {
    return this.database.url;
  }

  /** Starts a process with a whole application in it. */
  async worker(
    settings: WorkerSettings & { redisUrl?: string; databaseUrl?: string; nodeOptions?: string } = {},
  ): Promise<FencedWorker> {
    const {
      redisUrl = process.env.REDIS_URL!,
      databaseUrl = this.database.url,
      nodeOptions,
      ...rest
    } = settings;
    const env = { REDIS_URL: redisUrl, DATABASE_URL: databaseUrl, NODE_OPTIONS: nodeOptions ?? '' };
    const child = forkWorker(new URL('../faults.worker.ts', import.meta.url), [JSON.stringify(rest)], env);
    const worker = new FencedWorker(child);
    this.workers.push(worker);
    await child.waitFor('ready', { timeoutMs: 40_000 });
    return worker;
  }

  /** The text that stands now. */
  async report(key: string): Promise<string | undefined> {
    const { rows } = await this.sql.query<{ text: string }>('SELECT text FROM report WHERE key = $1', [key]);
    return rows[0]?.text;
  }

  /** All accepted writes of a key, in the order of their commits. */
  async journal(key: string): Promise<Row[]> {
    const { rows } = await this.sql.query<Record<keyof Row, string>>(
      'SELECT version, generation, owner, text FROM journal WHERE key = $1 ORDER BY version',
      [key],
    );
    return rows.map((row) => ({ ...row, version: Number(row.version), generation: Number(row.generation) }));
  }

  /** I1: in commit order generations never go down, and no two owners share one. */
  async expectOrder(key: string): Promise<Row[]> {
    const rows = await this.journal(key);
    const generations = rows.map(({ generation }) => generation);
    expect(generations).toEqual([...generations].sort((a, b) => a - b));
    const owners = new Map(rows.map(({ generation, owner }) => [generation, owner]));
    expect(rows.filter(({ generation, owner }) => owners.get(generation) !== owner)).toEqual([]);
    return rows;
  }

  async fence(key: string): Promise<{ generation: number; owner: string } | undefined> {
    const { rows } = await this.sql.query<{ generation: string; owner: string }>(
      'SELECT generation, owner FROM fencing_fence WHERE key = $1',
      [key],
    );
    return rows[0] && { generation: Number(rows[0].generation), owner: rows[0].owner };
  }

  async close(): Promise<void> {
    await Promise.all(this.workers.map((worker) => worker.process.kill()));
    await this.sql.end();
    await this.database.drop();
  }
}

let runs = 0;

export class FencedWorker {
  constructor(readonly process: WorkerProcess) {}

  /** Starts a leased call; its fate is told by what this returns. */
  run(key: string, steps: readonly Step[] = [], options: LeaseOptions = {}): Run {
    const id = `run-${++runs}`;
    this.process.send('run', { id, key, options, steps } satisfies RunRequest);
    return new Run(this.process, id);
  }

  /** Closes the application, and waits for the end of the process. */
  async end(): Promise<number | null> {
    this.process.send('run', 'close');
    return (await this.process.exited).code;
  }
}

export class Run {
  constructor(
    private readonly process: WorkerProcess,
    readonly id: string,
  ) {}

  /** Its body has begun: it has the lease, and the fence is raised to it. */
  began(timeoutMs = 30_000): Promise<{ generation: number; owner: string }> {
    return this.process.waitFor(`began ${this.id}`, { timeoutMs });
  }

  at(gate: string): Promise<void> {
    return this.process.atGate(`${this.id} ${gate}`);
  }

  open(gate: string): void {
    this.process.openGate(`${this.id} ${gate}`);
  }

  /** Its next write was accepted or refused. */
  wrote(): Promise<{ accepted: boolean; code?: string }> {
    return this.process.waitFor(`wrote ${this.id}`);
  }

  aborted(timeoutMs = 30_000): Promise<void> {
    return this.process.waitFor(`aborted ${this.id}`, { timeoutMs });
  }

  ended(timeoutMs = 40_000): Promise<Outcome> {
    return this.process.waitFor(`ended ${this.id}`, { timeoutMs });
  }
}
