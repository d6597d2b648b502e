import { bucketOf } from '../../core/buckets.js';
import { FencingConfigError, GenerationsExhaustedError, StoreUnavailableError } from '../../core/errors.js';
import {
  type AcquireAnswer,
  type AcquireRequest,
  type LeaseSnapshot,
  LeaseStore,
  type ReleaseAnswer,
  type ReleaseRequest,
  type RenewRequest,
  type StoreFinding,
  type WakeHint,
  type Watch,
} from '../../core/lease-store.js';
import type { Fence } from '../../core/fence.js';
import { sqlStateOf } from '../driver.js';
import { settingMs } from '../transaction-connection.js';
import type { PostgresConnections } from './postgres-connections.js';
import { type JoinedActivation, JoinedFence } from './postgres-joined-fence.js';
import { checkLeaseSchema, ensureLeaseSchema, leaseSetupError } from './postgres-lease-setup.js';
import type { LeaseSql } from './postgres-leases-sql.js';
import { type LeaseStep, PostgresStepSender } from './postgres-step-sender.js';
import { ListeningWakeUps, PollingWakeUps } from './postgres-wake-ups.js';

export interface PostgresLeaseSettings {
  readonly hints: 'listen' | 'poll';
  readonly pollMs: number;
  readonly ensureSchema: boolean;
  /** Rows that are over are removed this often, while the store is in use. @default 10_000 */
  readonly sweepEveryMs?: number;
}

/** How long a freed key is kept for the process that was woken, ms; where processes poll, until each has looked twice. */
const RESERVED_MS = 100;
const SWEEP_EVERY_MS = 10_000;
/** Bounded, so that a sweep never holds up the server; a full one is followed by the next with the next request. */
const LARGEST_SWEEP = 5_000;
/** Failures that pass by themselves: broken connections, a server that starts, stops, fails over, or is short of something. */
const PASSING = /^(08\w{3}|53\w{3}|57P0\d|57014|40\w{3}|25006|0A000|55\w{3}|XX\w{3})$/;

/** Leases in PostgreSQL, by functions of the server: one request for each step, no transaction of the application's. */
export class PostgresLeaseStore extends LeaseStore {
  readonly kind = 'postgres';
  private readonly sender: PostgresStepSender;
  private readonly joined: JoinedFence;
  private readonly wakeUps: ListeningWakeUps | PollingWakeUps;
  private readonly channel: string;
  private readonly keepMs: number;
  private readonly sweepEveryMs: number;
  private sweepAt: number;

  constructor(
    private readonly connections: PostgresConnections,
    private readonly sql: LeaseSql,
    private readonly settings: PostgresLeaseSettings,
  ) {
    super();
    const { hints, pollMs, sweepEveryMs = SWEEP_EVERY_MS } = settings;
    this.sweepEveryMs = sweepEveryMs;
    this.sweepAt = performance.now() + sweepEveryMs;
    // Channels belong to the whole database, tables to a schema.
    this.channel = sql.schema === undefined ? 'fencing_lease' : `fencing_lease_${bytesOf(sql.schema)}`;
    this.keepMs = hints === 'poll' ? settingMs(Math.max(RESERVED_MS, pollMs * 3)) : RESERVED_MS;
    this.wakeUps =
      hints === 'poll'
        ? new PollingWakeUps(pollMs)
        : new ListeningWakeUps(this.channel, () => connections.listener());
    this.sender = new PostgresStepSender((steps) => this.send(steps));
    this.joined = new JoinedFence(connections.dataSource, sql, (text, values) =>
      connections.query(text, values),
    );
  }

  override joinFence(fence: Fence): void {
    this.joined.join(fence);
  }

  async check(): Promise<StoreFinding[]> {
    const query = (text: string, values?: unknown[]) => this.connections.query(text, values);
    try {
      if (this.settings.ensureSchema) await ensureLeaseSchema(query, this.sql);
      await checkLeaseSchema(query, this.sql);
      await this.joined.look();
      const heard = await this.wakeUps.hears((payload) =>
        query('SELECT pg_notify($1, $2)', [this.channel, payload]),
      );
      return heard ? [] : [DEAF];
    } catch (error) {
      if (error instanceof FencingConfigError) throw error;
      throw leaseSetupError(error) ?? unavailable(error);
    }
  }

  async acquire({ key, owner, ttlMs, floor, waiter, activate }: AcquireRequest): Promise<AcquireAnswer> {
    const { generation, activated, busyMs, exhausted } = await this.step<{
      generation?: number;
      activated?: true;
      busyMs: number;
      exhausted?: true;
    }>('acquire', key, {
      owner,
      ttlMs,
      floor,
      waiter: waiter?.id,
      forMs: waiter?.forMs,
      activate: activate || undefined,
    });
    if (exhausted) throw new GenerationsExhaustedError(key);
    if (generation === undefined) return { granted: false, remainingMs: busyMs };
    return { granted: true, generation, ...(activated && { activated }) };
  }

  async renew(requests: readonly RenewRequest[]): Promise<boolean[]> {
    if (requests.length === 0) return [];
    const columns = [
      requests.map(({ key }) => key),
      requests.map(({ owner }) => owner),
      requests.map(({ ttlMs }) => ttlMs),
      requests.map(({ key }) => bucketOf(key)),
    ];
    try {
      return answersOf(await this.connections.query(this.sql.renew, columns)) as boolean[];
    } catch (error) {
      throw unavailable(error);
    }
  }

  async release({ key, owner, holdMs, successor }: ReleaseRequest): Promise<ReleaseAnswer> {
    const { channel, keepMs } = this;
    const next = successor && {
      owner: successor.owner,
      ttlMs: successor.ttlMs,
      waiter: successor.waiterId,
      forMs: successor.forMs,
      mayOvertake: successor.mayOvertake,
      activate: successor.activate || undefined,
    };
    const { held, generation, activated, waitMs } = await this.step<{
      held: boolean;
      generation?: number;
      activated?: true;
      waitMs?: number;
    }>('release', key, { owner, holdMs: holdMs ? Math.ceil(holdMs) : undefined, channel, keepMs, next });
    if (generation !== undefined)
      return { held: true, successor: { generation, ...(activated && { activated }) } };
    if (waitMs !== undefined) return { held: true, successor: { waitMs } };
    return { held };
  }

  async withdraw(key: string, waiterId: string): Promise<void> {
    const { channel, keepMs } = this;
    await this.step('withdraw', key, { waiter: waiterId, channel, keepMs });
  }

  async inspect(key: string): Promise<LeaseSnapshot | undefined> {
    try {
      const [row] = await this.connections.query(this.sql.inspect, [key]);
      return (
        row && {
          owner: String(row.owner),
          generation: Number(row.generation),
          remainingMs: Number(row.remaining_ms),
        }
      );
    } catch (error) {
      throw unavailable(error, key);
    }
  }

  watch(key: string, listener: (hint: WakeHint) => void, since: number): Watch {
    return this.wakeUps.watch(key, listener, since);
  }

  async close(): Promise<void> {
    await Promise.all([this.wakeUps.close(), this.connections.close()]);
  }

  private async step<T>(name: LeaseStep['do'], key: string, parameters: Record<string, unknown>): Promise<T> {
    try {
      return await this.sender.ask<T>({ do: name, bucket: bucketOf(key), key, ...parameters });
    } catch (error) {
      throw unavailable(error, key);
    }
  }

  private async send(steps: readonly LeaseStep[]): Promise<unknown[]> {
    const activation = steps.some(activates) ? this.joined.activation : undefined;
    const asked = JSON.stringify(steps);
    const answers = answersOf(
      await (activation ? this.take(asked, activation) : this.connections.query(this.sql.steps, [asked])),
    );
    if (performance.now() >= this.sweepAt) this.sweep();
    return answers;
  }

  private async take(steps: string, { function: activate, durable }: JoinedActivation) {
    try {
      return await this.connections.query(this.sql.take, [steps, activate, durable]);
    } catch (error) {
      this.joined.rest();
      throw error;
    }
  }

  private sweep(): void {
    this.sweepAt = performance.now() + this.sweepEveryMs;
    this.connections.query(this.sql.sweep, [LARGEST_SWEEP]).then(
      ([row]) => {
        if (Number(row!.removed) === LARGEST_SWEEP) this.sweepAt = performance.now();
      },
      // The next one comes.
      () => undefined,
    );
  }
}

const DEAF: StoreFinding = {
  problem:
    'A notification of the lease store to itself did not arrive (LISTEN and NOTIFY do not work on this connection).',
  consequence:
    'A caller that waits for a key of another process looks again after two seconds instead of being woken.',
  fix: "Behind PgBouncer in transaction mode give postgresLeases { url } of the server itself, or { hints: 'poll' } in every process.",
};

function activates({ activate, next }: LeaseStep): boolean {
  return (activate ?? (next as { activate?: unknown } | undefined)?.activate) === true;
}

/** As text, so that it does not depend on the application's type parsers. */
function answersOf([row]: Record<string, unknown>[]): unknown[] {
  return JSON.parse(String(row!.answers)) as unknown[];
}

function unavailable(error: unknown, key?: string): StoreUnavailableError {
  const state = sqlStateOf(error);
  const message = String((error as Error | undefined)?.message ?? error).split('\n')[0];
  const setup = leaseSetupError(error);
  return new StoreUnavailableError(
    'lease store',
    setup ? setup.message : `PostgreSQL ${state ? `answered ${state}` : 'did not answer'}: ${message}`,
    { key, cause: error, retryable: state === undefined || PASSING.test(state) },
  );
}

/** For the name of a channel: letters and digits, as many as fit. */
function bytesOf(schema: string): string {
  return Buffer.from(schema).toString('hex').slice(0, 48);
}
