import type { DataSource } from 'typeorm';
import { runInTransaction, transactionOf } from '../core/context.js';
import { FencingConfigError, FencingError, LeaseOrderError, StoreUnavailableError } from '../core/errors.js';
import { type ActivationAnswer, type ActivationRequest, Fence, type FenceSnapshot, type WriteOutcome, type WriteRequest } from '../core/fence.js';
import { driverErrorOf, isSerializationFailure, type PgQueryRunner, sqlStateOf } from './driver.js';
import { GuardedTransaction, notInstalled } from './guarded-transaction.js';
import { runOnce } from './operations.js';
import { routeDataSource } from './routing.js';
import { FencingSql, SCHEMA_VERSION } from './sql.js';

export interface FenceSettings {
  readonly schema?: string;
  readonly ensureSchema: boolean;
  readonly activationDurability: 'durable' | 'relaxed';
}

/** Sessions that create the schema at the same time take turns by this advisory lock. */
const SCHEMA_LOCK = 0x6e_66_63_31;
/** How often a statement that changed nothing yet is sent again after a serialization failure. */
const RETRIES_BEFORE_BODY = 5;
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

  constructor(
    private readonly dataSource: DataSource,
    private readonly settings: FenceSettings,
  ) {
    super();
    const { type, schema } = dataSource.options as { type: string; schema?: string };
    if (type !== 'postgres') throw new FencingConfigError(`typeOrmFence needs a DataSource of type 'postgres', this one is '${type}'.`);
    this.sql = new FencingSql(settings.schema ?? schema);
    const { createQueryRunner } = dataSource;
    this.createRunner = () => createQueryRunner.call(dataSource, 'master') as PgQueryRunner;
    this.unroute = routeDataSource(dataSource, {
      currentRunner: () => {
        const transaction = transactionOf(this);
        if (!(transaction instanceof GuardedTransaction)) return undefined;
        transaction.assertOpen();
        return transaction.runner;
      },
      insideCallersTransaction: (runner, work) => this.insideCallersTransaction(runner as PgQueryRunner, work),
    });
  }

  async check(): Promise<void> {
    await this.checkTypeOrm();
    if (this.settings.ensureSchema) await this.ensureSchema();
    const [installed] = await this.query<{ version: string | null; server: number }>(this.sql.installedVersion);
    if (installed!.server < 120_000) throw new FencingConfigError('The fence needs PostgreSQL 12 or newer.');
    if (installed!.version === null) throw notInstalled();
    if (installed!.version !== SCHEMA_VERSION) {
      throw new FencingConfigError(
        `The database has '${installed!.version}' and this version of the package needs '${SCHEMA_VERSION}'. Run the newer fencingMigrations.`,
      );
    }
  }

  async activate({ key, generation, owner, waitMs }: ActivationRequest): Promise<ActivationAnswer> {
    const lockMs = Math.min(LARGEST_SETTING_MS, Math.max(1, Math.ceil(waitMs)));
    const parameters = [key, generation, owner, lockMs, this.settings.activationDurability === 'durable'];
    for (let attempt = 0; ; attempt++) {
      try {
        const [answer] = await this.query<{ ahead: string | null }>(this.sql.activate, parameters);
        return answer!.ahead === null ? { activated: true } : { activated: false, generation: Number(answer!.ahead) };
      } catch (error) {
        if (isSerializationFailure(error) && attempt < RETRIES_BEFORE_BODY) continue;
        throw await this.explainActivation(error, key, lockMs);
      }
    }
  }

  async write<T>(request: WriteRequest<unknown, T>): Promise<WriteOutcome<T>> {
    const surrounding = transactionOf(this);
    if (surrounding instanceof GuardedTransaction && !surrounding.isOver) return this.join(surrounding, request);
    if (surrounding instanceof CallersTransaction && !surrounding.over) return this.joinCallers(surrounding, request);
    for (let attempt = 0, beforeBody = 0; ; ) {
      const reason = request.authority.ended();
      if (reason) throw reason;
      const progress = { bodyBegan: false };
      try {
        return await this.writeOnce(request, progress);
      } catch (error) {
        if (!isSerializationFailure(error)) throw error;
        if (progress.bodyBegan ? attempt++ >= request.retries : beforeBody++ >= RETRIES_BEFORE_BODY) throw error;
      }
    }
  }

  inTransaction(): boolean {
    const transaction = transactionOf(this);
    return transaction instanceof GuardedTransaction ? !transaction.isOver : transaction instanceof CallersTransaction && !transaction.over;
  }

  async inspect(key: string): Promise<FenceSnapshot | undefined> {
    const [row] = await this.query<{ generation: string; owner: string; activated_at: Date }>(this.sql.readFence, [key]);
    return row && { generation: Number(row.generation), owner: row.owner, activatedAt: row.activated_at };
  }

  async close(): Promise<void> {
    this.unroute();
  }

  // ---------------------------------------------------------------------------------------------------------- writing

  private async writeOnce<T>(request: WriteRequest<unknown, T>, progress: { bodyBegan: boolean }): Promise<WriteOutcome<T>> {
    const { authority, isolation, operation, body } = request;
    const transaction = new GuardedTransaction(this.createRunner(), authority, this.sql, isolation ?? this.defaultIsolation());
    try {
      await transaction.begin();
      const effect = () => {
        progress.bodyBegan = true;
        return runInTransaction(this, transaction, () => body(transaction.manager));
      };
      const outcome = operation ? await runOnce(this.sql, transaction, operation, effect) : { result: await effect(), duplicate: false };
      await transaction.commit();
      return { ...outcome, committed: !outcome.duplicate };
    } catch (error) {
      await transaction.rollback();
      throw transaction.explain(error);
    }
  }

  /** A fenced write inside a fenced write: the same transaction, no second connection. */
  private async join<T>(transaction: GuardedTransaction, { authority, isolation, operation, body }: WriteRequest<unknown, T>): Promise<WriteOutcome<T>> {
    transaction.assertOpen();
    if (!transaction.guards(authority.grants)) throw new LeaseOrderError(authority.grants[0]!.key);
    if (isolation && isolation !== transaction.isolation) {
      throw new FencingConfigError(`A fenced write asks for ${isolation} inside one that runs in ${transaction.isolation ?? 'the default isolation'}.`);
    }
    if (!operation) return { result: await body(transaction.manager), duplicate: false, committed: false };
    const outcome = await transaction.insideSavepoint(() => runOnce(this.sql, transaction, operation, () => body(transaction.manager)));
    return { ...outcome, committed: false };
  }

  /** A fenced write inside a transaction of the application: guarded there, committed by its opener. */
  private async joinCallers<T>(callers: CallersTransaction, { authority, operation, body }: WriteRequest<unknown, T>): Promise<WriteOutcome<T>> {
    const transaction = new GuardedTransaction(callers.runner, authority, this.sql, undefined);
    try {
      await transaction.guardInside();
      callers.guarded.push(transaction);
      const effect = () => runInTransaction(this, transaction, () => body(transaction.manager));
      const outcome = operation
        ? await transaction.insideSavepoint(() => runOnce(this.sql, transaction, operation, effect))
        : { result: await effect(), duplicate: false };
      return { ...outcome, committed: false };
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

  private defaultIsolation() {
    return (this.dataSource.options as { isolationLevel?: WriteRequest<unknown, unknown>['isolation'] }).isolationLevel;
  }

  // --------------------------------------------------------------------------------------------------------- checking

  /** The private parts of TypeORM that the guarded transaction stands on: another version may not have them. */
  private async checkTypeOrm(): Promise<void> {
    const runner = this.createRunner();
    const { manager } = this.dataSource;
    const missing = [
      typeof runner.releasePostgresConnection !== 'function' && 'QueryRunner.releasePostgresConnection',
      runner.manager?.queryRunner !== runner && 'EntityManager.queryRunner',
      manager.queryRunner !== undefined && 'DataSource.manager.queryRunner',
      typeof runner.startTransaction !== 'function' && 'QueryRunner.startTransaction',
    ].filter((name) => name !== false);
    await runner.release();
    if (missing.length > 0) {
      throw new FencingConfigError(
        `The installed TypeORM works differently from what the fence was proven on (${missing.join(', ')}); writes could not be guarded. ` +
          'Use a version from the compatibility table of the README.',
      );
    }
  }

  private async ensureSchema(): Promise<void> {
    const runner = this.createRunner();
    try {
      await runner.startTransaction();
      await runner.query('SELECT pg_advisory_xact_lock($1)', [SCHEMA_LOCK]);
      for (const statement of this.sql.create) await runner.query(statement);
      await runner.commitTransaction();
    } catch (error) {
      if (runner.isTransactionActive) await runner.rollbackTransaction().catch(() => undefined);
      throw new FencingConfigError(`ensureSchema could not create the tables of nestjs-fencing: ${String((error as Error).message)}`, driverErrorOf(error));
    } finally {
      await runner.release();
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

  private async explainActivation(error: unknown, key: string, waitedMs: number): Promise<FencingError> {
    const state = sqlStateOf(error);
    const cause = driverErrorOf(error);
    if (state === '42883' || state === '42P01') return notInstalled(cause);
    if (state === '42501') return new FencingConfigError('The database user lacks INSERT or UPDATE on fencing_fence; the fence needs both.', cause);
    if (state === '55P03') {
      const blocker = await this.blocker().catch(() => undefined);
      return new StoreUnavailableError('database', `the previous owner's transaction was still open after ${waitedMs} ms${blocker ?? ''}.`, { key, cause });
    }
    return new StoreUnavailableError('database', `an activation failed (${state ?? String((cause as Error).message)}).`, { key, cause });
  }

  private async blocker(): Promise<string | undefined> {
    const [row] = await this.query<{ pid: number; application_name: string; state: string; open_ms: number }>(this.sql.blockers);
    return row && `: backend ${row.pid} (${row.application_name || 'no application_name'}, ${row.state}, open for ${row.open_ms} ms)`;
  }
}

