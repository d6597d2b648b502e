import type { DataSource } from 'typeorm';
import { runInTransaction, transactionOf } from '../core/context.js';
import { FencingConfigError, LeaseOrderError, StoreUnavailableError } from '../core/errors.js';
import {
  type ActivationAnswer,
  type ActivationRequest,
  Fence,
  type FenceSnapshot,
  type WriteOutcome,
  type WriteRequest,
} from '../core/fence.js';
import { checkDatabase, checkGuard, ensureSchema } from './database-check.js';
import { driverErrorOf, isSerializationFailure, type PgQueryRunner } from './driver.js';
import { activationError, type Blocker, setupError } from './failures.js';
import { GuardedTransaction } from './guarded-transaction.js';
import { runOnce } from './operations.js';
import { routeDataSource } from './routing.js';
import { inSavepoint } from './savepoints.js';
import { FencingSql } from './sql.js';
import { checkTypeOrm, type RunInside } from './typeorm-check.js';

export interface FenceSettings {
  readonly schema?: string;
  readonly ensureSchema: boolean;
  readonly activationDurability: 'durable' | 'relaxed';
}

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

  async check(): Promise<void> {
    const inside: RunInside = (transaction, work) => runInTransaction(this, transaction, work);
    await checkTypeOrm(this.dataSource, this.createRunner(), this.sql, inside);
    if (this.settings.ensureSchema) await ensureSchema(this.createRunner(), this.sql);
    await checkDatabase((text) => this.query(text), this.sql);
    await checkGuard(this);
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
    const [row] = await this.query<Row>(this.sql.readFence, [key]).catch((error: unknown) => {
      const cause = driverErrorOf(error);
      throw (
        setupError(error) ??
        new StoreUnavailableError('database', 'the fence could not be read.', { key, cause })
      );
    });
    return row && { generation: Number(row.generation), owner: row.owner, activatedAt: row.activated_at };
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
    try {
      await transaction.begin();
      const effect = () => {
        progress.bodyBegan = true;
        return runInTransaction(this, transaction, () => body(transaction.manager));
      };
      const outcome = operation
        ? await runOnce(this.sql, transaction, operation, effect)
        : { result: await effect(), duplicate: false };
      await transaction.commit();
      return { ...outcome, committed: !outcome.duplicate };
    } catch (error) {
      await transaction.rollback();
      throw transaction.explain(error);
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
    const outcome = await inSavepoint(transaction.runner, () =>
      runOnce(this.sql, transaction, operation, () => body(transaction.manager)),
    );
    return { ...outcome, committed: false };
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

  private async query<Row>(text: string, parameters?: unknown[]): Promise<Row[]> {
    const runner = this.createRunner();
    try {
      return (await runner.query(text, parameters)) as Row[];
    } finally {
      await runner.release();
    }
  }
}
