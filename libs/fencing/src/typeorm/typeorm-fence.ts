import type { DataSource } from 'typeorm';
import type { AuditEntry, AuditNote } from '../core/audit.js';
import { systemClock } from '../core/clock.js';
import { runInTransaction, transactionOf } from '../core/context.js';
import { asFindings, type Examination } from '../core/diagnosis.js';
import {
  type CommitUnknownError,
  FencingConfigError,
  FencingError,
  LeaseOrderError,
  StoreUnavailableError,
} from '../core/errors.js';
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
import { GuardedTransaction } from './guarded-transaction.js';
import { type OperationOutcome, receiptOf, type ReceiptRow, runOnce } from './operations.js';
import { pruneReceipts } from './prune-receipts.js';
import { routeDataSource } from './routing.js';
import { inSavepoint } from './savepoints.js';
import { settleOperation } from './settle-operation.js';
import { FencingSql } from './sql.js';
import { checkTriggers } from './trigger-check.js';
import { checkTypeOrm, type RunInside } from './typeorm-check.js';

export interface FenceSettings {
  readonly schema?: string;
  readonly ensureSchema: boolean;
  readonly activationDurability: 'durable' | 'relaxed';
  readonly missingTriggers: 'warn' | 'fail';
}

/** How often a statement that changed nothing yet is sent again after a serialization failure. */
const RETRIES_BEFORE_BODY = 5;
/** How much longer than the idle limit of a lost backend its end is waited for, ms. */
const SETTLE_MARGIN_MS = 2_000;
/** PostgreSQL's time settings are 32-bit; 0 would mean "no limit". */
const LARGEST_SETTING_MS = 2 ** 31 - 1;

/** A transaction that the application opened with dataSource.transaction(), and what was guarded inside it. */
class CallersTransaction {
  over = false;
  readonly guarded: GuardedTransaction[] = [];
  constructor(readonly runner: PgQueryRunner) {}
}

/** The fence in the PostgreSQL database of a TypeORM DataSource. */
export class TypeOrmFence extends Fence {
  private readonly sql: FencingSql;
  private readonly createRunner: () => PgQueryRunner;
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
    this.unroute = routeDataSource(dataSource, {
      currentRunner: () => {
        const transaction = transactionOf(this);
        if (!(transaction instanceof GuardedTransaction)) return undefined;
        transaction.assertOpen();
        return transaction.runner;
      },
      insideCallersTransaction: (runner, work) =>
        this.insideCallersTransaction(runner as PgQueryRunner, work),
    });
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
    const lockMs = Math.min(LARGEST_SETTING_MS, Math.max(1, Math.ceil(waitMs)));
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

  async write<T>(request: WriteRequest<unknown, T>): Promise<WriteOutcome<T>> {
    const surrounding = transactionOf(this);
    if (surrounding instanceof GuardedTransaction && !surrounding.isOver)
      return this.join(surrounding, request);
    if (surrounding instanceof CallersTransaction && !surrounding.over)
      return this.joinCallers(surrounding, request);
    for (let attempt = 0, beforeBody = 0; ;) {
      const reason = request.authority.ended();
      if (reason) throw reason;
      const progress = { bodyBegan: false };
      try {
        return await this.writeOnce(request, progress);
      } catch (error) {
        if (!isSerializationFailure(error)) throw error;
        if (progress.bodyBegan ? attempt++ >= request.retries : beforeBody++ >= RETRIES_BEFORE_BODY)
          throw error;
      }
    }
  }

  inTransaction(): boolean {
    const transaction = transactionOf(this);
    return transaction instanceof GuardedTransaction
      ? !transaction.isOver
      : transaction instanceof CallersTransaction && !transaction.over;
  }

  async inspect(key: string): Promise<FenceSnapshot | undefined> {
    interface Row {
      generation: string;
      owner: string;
      activated_at: Date;
    }
    const [row] = await this.read<Row>('the fence', this.sql.readFence, [key], key);
    return row && { generation: Number(row.generation), owner: row.owner, activatedAt: row.activated_at };
  }

  async receipt(operationId: string): Promise<Receipt | undefined> {
    const [row] = await this.read<ReceiptRow>('the receipt', this.sql.readOperation, [operationId]);
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

  // ---------------------------------------------------------------------------------------------------------- writing

  private async writeOnce<T>(
    request: WriteRequest<unknown, T>,
    progress: { bodyBegan: boolean },
  ): Promise<WriteOutcome<T>> {
    const { authority, isolation, operation, body } = request;
    const transaction = new GuardedTransaction(
      this.createRunner(),
      authority,
      this.sql,
      isolation ?? this.defaultIsolation(),
    );
    const effect = () => {
      progress.bodyBegan = true;
      return runInTransaction(this, transaction, () => body(transaction.manager));
    };
    let done: OperationOutcome<T> | undefined;
    try {
      await transaction.begin();
      if (operation) done = await runOnce(this.sql, transaction, operation, effect);
      const result = done ? done.result : await effect();
      await transaction.commit();
      const duplicate = done?.duplicate ?? false;
      return { result, duplicate, committed: !duplicate };
    } catch (error) {
      // Gives the lost connection back to the pool, which may have no other.
      await transaction.rollback();
      if (!done || !transaction.isUnknown) throw transaction.explain(error);
      // Its receipt is there, and it wrote nothing itself.
      if (done.duplicate) return { result: done.result, duplicate: true, committed: false };
      const { cause } = error as CommitUnknownError;
      const waitMs = Math.min(LARGEST_SETTING_MS, Math.ceil(transaction.outlivesMs) + SETTLE_MARGIN_MS);
      const { sql, createRunner } = this;
      return settleOperation({ ...done, cause }, { sql, createRunner, clock: systemClock, waitMs });
    }
  }

  /** A fenced write inside a fenced write: the same transaction, no second connection. */
  private async join<T>(
    transaction: GuardedTransaction,
    { authority, isolation, operation, body }: WriteRequest<unknown, T>,
  ): Promise<WriteOutcome<T>> {
    transaction.assertOpen();
    if (!transaction.guards(authority.grants)) throw new LeaseOrderError(authority.grants[0]!.key);
    if (isolation && isolation !== transaction.isolation) {
      throw new FencingConfigError(
        `A fenced write asks for ${isolation} inside one that runs in ${transaction.isolation ?? 'the default isolation'}.`,
      );
    }
    if (!operation) return { result: await body(transaction.manager), duplicate: false, committed: false };
    const { result, duplicate } = await inSavepoint(transaction.runner, () =>
      runOnce(this.sql, transaction, operation, () => body(transaction.manager)),
    );
    return { result, duplicate, committed: false };
  }

  /** A fenced write inside a transaction of the application: guarded there, committed by its opener. */
  private async joinCallers<T>(
    callers: CallersTransaction,
    { authority, isolation, operation, body }: WriteRequest<unknown, T>,
  ): Promise<WriteOutcome<T>> {
    const { runner, guarded } = callers;
    if (isolation) await this.assertIsolation(runner, isolation);
    const known = guarded.find((other) => !other.isOver && other.guards(authority.grants));
    const transaction = known ?? new GuardedTransaction(runner, authority, this.sql, undefined);
    try {
      await transaction.guardInside();
      if (!known) guarded.push(transaction);
      const effect = () => runInTransaction(this, transaction, () => body(transaction.manager));
      const outcome = operation
        ? await inSavepoint(runner, () => runOnce(this.sql, transaction, operation, effect))
        : { result: await effect(), duplicate: false };
      return { result: outcome.result, duplicate: outcome.duplicate, committed: false };
    } catch (error) {
      throw transaction.explain(error);
    }
  }

  private async insideCallersTransaction<T>(runner: PgQueryRunner, work: () => Promise<T>): Promise<T> {
    const callers = new CallersTransaction(runner);
    try {
      return await runInTransaction(this, callers, work);
    } finally {
      callers.over = true;
      // In the reverse order: each put its own layer on the runner.
      callers.guarded.reverse().forEach((transaction) => transaction.detach());
    }
  }

  private async assertIsolation(runner: PgQueryRunner, isolation: string): Promise<void> {
    const [row] = (await runner.query('SHOW transaction_isolation')) as { transaction_isolation: string }[];
    const actual = row!.transaction_isolation.toUpperCase();
    if (actual === isolation) return;
    throw new FencingConfigError(
      `A fenced write asks for ${isolation} inside a transaction of the application that runs in ${actual}.`,
    );
  }

  private defaultIsolation() {
    return (this.dataSource.options as { isolationLevel?: WriteRequest<unknown, unknown>['isolation'] })
      .isolationLevel;
  }

  /** Reads in the transaction of this call, if there is one: a second connection may not be had. */
  private async read<Row>(what: string, text: string, parameters: unknown[], key?: string): Promise<Row[]> {
    const surrounding = this.inTransaction()
      ? (transactionOf(this) as GuardedTransaction | CallersTransaction)
      : undefined;
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
