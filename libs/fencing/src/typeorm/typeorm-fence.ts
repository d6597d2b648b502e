import type { DataSource } from 'typeorm';
import type { AuditEntry, AuditNote } from '../core/audit.js';
import { runInTransaction } from '../core/context.js';
import { asFindings, type Examination } from '../core/diagnosis.js';
import { FencingConfigError, FencingError, StoreUnavailableError } from '../core/errors.js';
import {
  type ActivationAnswer,
  type ActivationRequest,
  Fence,
  type FenceSnapshot,
  type Receipt,
  type Revocation,
  type RevocationRequest,
  type WriteOutcome,
  type WriteRequest,
} from '../core/fence.js';
import type { StoreFinding } from '../core/lease-store.js';
import { pruneAudit, type Query, readAudit, record, revoke } from './audit.js';
import { checkDatabase, checkGuard, ensureSchema } from './database-check.js';
import { diagnosePostgres } from './diagnose-postgres.js';
import { driverErrorOf, isSerializationFailure, type PgQueryRunner } from './driver.js';
import { activationError, type Blocker, setupError } from './failures.js';
import { GuardedWrites, RETRIES_BEFORE_BODY } from './guarded-writes.js';
import { receiptOf, type ReceiptRow } from './operations.js';
import { pruneReceipts } from './prune-receipts.js';
import { routeDataSource } from './routing.js';
import { FencingSql } from './sql.js';
import { settingMs } from './transaction-connection.js';
import { checkTriggers } from './trigger-check.js';
import { checkTypeOrm, type RunInside } from './typeorm-check.js';

export interface FenceSettings {
  readonly schema?: string;
  readonly ensureSchema: boolean;
  readonly activationDurability: 'durable' | 'relaxed';
  readonly missingTriggers: 'warn' | 'fail';
}

/** The fence in the PostgreSQL database of a TypeORM DataSource. */
export class TypeOrmFence extends Fence {
  private readonly sql: FencingSql;
  private readonly createRunner: () => PgQueryRunner;
  private readonly writes: GuardedWrites;
  private readonly unroute: () => void;
  private readonly ask: Query = (text, parameters) => this.query(text, parameters);

  constructor(
    private readonly dataSource: DataSource,
    private readonly settings: FenceSettings,
  ) {
    super();
    const { type, schema } = dataSource.options as { type: string; schema?: string };
    if (type !== 'postgres')
      throw new FencingConfigError(
        `typeOrmFence needs a DataSource of type 'postgres', this one is '${type}'.`,
      );
    this.sql = new FencingSql(settings.schema ?? schema);
    const create = dataSource.createQueryRunner.bind(dataSource);
    this.createRunner = () => create('master') as PgQueryRunner;
    this.writes = new GuardedWrites({
      fence: this,
      dataSource,
      sql: this.sql,
      createRunner: this.createRunner,
    });
    this.unroute = routeDataSource(dataSource, this.writes);
  }

  /** Where and how grants are activated, for a lease store in the same database. */
  get activation() {
    const { dataSource, sql, settings } = this;
    return { dataSource, schema: sql.schema, durable: settings.activationDurability === 'durable' };
  }

  async check(): Promise<StoreFinding[]> {
    const inside: RunInside = (transaction, work) => runInTransaction(this, transaction, work);
    await checkTypeOrm(this.dataSource, this.createRunner(), this.sql, inside);
    if (this.settings.ensureSchema) await ensureSchema(this.createRunner(), this.sql);
    await checkDatabase((text) => this.query(text), this.sql);
    await checkGuard(this);
    return checkTriggers(this.ask, this.dataSource, this.settings.missingTriggers);
  }

  /** What the server says of itself; the tables and triggers; the application's pool. */
  async diagnose(): Promise<Examination> {
    const runner = this.createRunner();
    try {
      const client = (await runner.connect()) as { processID?: number } | undefined;
      const query: Query = async <Row>(text: string, parameters?: unknown[]) =>
        (await runner.query(text, parameters)) as Row[];
      const { poolSize = 10 } = this.dataSource.options as { poolSize?: number };
      const { schema } = this.sql;
      const server = await diagnosePostgres({ query, poolSize, schema, processId: client?.processID });
      const triggers = await checkTriggers(query, this.dataSource, 'warn');
      return { ...server, findings: [...server.findings, ...asFindings('postgres', triggers)] };
    } finally {
      await runner.release();
    }
  }

  async activate({ key, generation, owner, waitMs }: ActivationRequest): Promise<ActivationAnswer> {
    const lockMs = settingMs(waitMs);
    const parameters = [key, generation, owner, lockMs, this.settings.activationDurability === 'durable'];
    for (let attempt = 0; ; attempt++) {
      try {
        const [answer] = await this.query<{ ahead: string | null }>(this.sql.activate, parameters);
        return answer!.ahead === null
          ? { activated: true }
          : { activated: false, generation: Number(answer!.ahead) };
      } catch (error) {
        if (isSerializationFailure(error) && attempt < RETRIES_BEFORE_BODY) continue;
        throw await activationError(error, key, lockMs, () => this.query<Blocker>(this.sql.blockers, [key]));
      }
    }
  }

  write<T>(request: WriteRequest<unknown, T>): Promise<WriteOutcome<T>> {
    return this.writes.write(request);
  }

  inTransaction(): boolean {
    return this.writes.surrounding() !== undefined;
  }

  async inspect(key: string): Promise<FenceSnapshot | undefined> {
    interface Row {
      generation: string;
      owner: string;
      activated_at: Date | string;
    }
    const [row] = await this.read<Row>('the fence', this.sql.readFence, [key], key);
    return (
      row && { generation: Number(row.generation), owner: row.owner, activatedAt: new Date(row.activated_at) }
    );
  }

  async receipt(operationId: string): Promise<Receipt | undefined> {
    const [row] = await this.read<ReceiptRow>('the receipt', this.sql.receipts.readOperation, [operationId]);
    return row && receiptOf(row);
  }

  async pruneReceipts(olderThanMs: number): Promise<number> {
    if (this.inTransaction())
      throw new FencingConfigError(
        'pruneReceipts was called inside a transaction, which would hold its locks. Call it outside, e.g. in a cron job.',
      );
    return pruneReceipts(this.sql, (text, parameters) => this.query(text, parameters), olderThanMs);
  }

  async revoke(request: RevocationRequest): Promise<Revocation> {
    return revoke(this.ask, this.sql, request);
  }

  override async record(notes: readonly AuditNote[]): Promise<void> {
    return record(this.createRunner(), this.sql, notes);
  }

  override async audit(key: string, limit: number): Promise<AuditEntry[]> {
    return readAudit(this.ask, this.sql, key, limit);
  }

  async pruneAudit(olderThanMs: number): Promise<number> {
    return pruneAudit(this.ask, this.sql, olderThanMs);
  }

  async close(): Promise<void> {
    this.unroute();
  }

  // ------------------------------------------------------------------------------------------------------------- parts

  /** Reads in the transaction of this call, if there is one: a second connection may not be had. */
  private async read<Row>(what: string, text: string, parameters: unknown[], key?: string): Promise<Row[]> {
    const surrounding = this.writes.surrounding();
    try {
      return await (surrounding
        ? (surrounding.runner.query(text, parameters) as Promise<Row[]>)
        : this.query<Row>(text, parameters));
    } catch (error) {
      if (error instanceof FencingError) throw error;
      const cause = driverErrorOf(error);
      throw (
        setupError(error) ??
        new StoreUnavailableError('database', `${what} could not be read.`, { key, cause })
      );
    }
  }

  private async query<Row>(text: string, parameters?: unknown[]): Promise<Row[]> {
    const runner = this.createRunner();
    try {
      return (await runner.query(text, parameters)) as Row[];
    } finally {
      await runner.release();
    }
  }
}
