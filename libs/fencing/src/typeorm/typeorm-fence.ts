import type { DataSource } from 'typeorm';
import { runInTransaction, transactionOf } from '../core/context.js';
import {
  FencingConfigError,
  type FencingError,
  LeaseOrderError,
  StaleGenerationError,
  StoreUnavailableError,
} from '../core/errors.js';
import {
  type ActivationAnswer,
  type ActivationRequest,
  Fence,
  type FenceSnapshot,
  type WriteAuthority,
  type WriteOutcome,
  type WriteRequest,
} from '../core/fence.js';
import { driverErrorOf, isSerializationFailure, type PgQueryRunner, sqlStateOf } from './driver.js';
import { missingPrivilege, notInstalled, setupError } from './failures.js';
import { GuardedTransaction } from './guarded-transaction.js';
import { runOnce } from './operations.js';
import { routeDataSource } from './routing.js';
import { inSavepoint } from './savepoints.js';
import { FencingSql, SCHEMA_VERSION } from './sql.js';
import { missingParts, strayPaths } from './typeorm-check.js';

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

/** A grant that nobody ever had, for the check at boot. */
const NOBODYS: WriteAuthority = {
  grants: [{ key: 'nestjs-fencing/boot-check', generation: 1, owner: 'nobody' }],
  remainingMs: () => 10_000,
  ended: () => undefined,
  onEnd: () => () => undefined,
  onRenewed: () => () => undefined,
};

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
    await this.checkTypeOrm();
    if (this.settings.ensureSchema) await this.ensureSchema();
    await this.checkDatabase().catch((error: unknown) => {
      if (error instanceof FencingConfigError) throw error;
      const cause = driverErrorOf(error);
      throw (
        setupError(error) ??
        new StoreUnavailableError('database', 'the check of the fence failed.', { cause })
      );
    });
    await this.checkGuard();
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
        throw await this.explainActivation(error, key, lockMs);
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

  // --------------------------------------------------------------------------------------------------------- checking

  /** The fence stands on parts of TypeORM that another version may not have, or not in this way. */
  private async checkTypeOrm(): Promise<void> {
    const runner = this.createRunner();
    const wrong = missingParts(this.dataSource, runner);
    if (wrong.length === 0) {
      const transaction = new GuardedTransaction(runner, NOBODYS, this.sql, undefined);
      wrong.push(...(await runInTransaction(this, transaction, () => strayPaths(this.dataSource, runner))));
    }
    // It never took a connection, so there is none to give back.
    if (wrong.length > 0) {
      throw new FencingConfigError(
        `The installed TypeORM works differently from what the fence was proven on (${wrong.join(', ')}); writes could not be guarded. ` +
          'Use a version from the compatibility table of the README.',
      );
    }
  }

  private async checkDatabase(): Promise<void> {
    const { installedVersion, privileges } = this.sql;
    const [installed] = await this.query<{ version: string | null; server: number }>(installedVersion);
    if (installed!.server < 120_000) throw new FencingConfigError('The fence needs PostgreSQL 12 or newer.');
    if (installed!.version === null) throw notInstalled();
    if (installed!.version !== SCHEMA_VERSION) {
      throw new FencingConfigError(
        `The database has '${installed!.version}' and this version of the package needs '${SCHEMA_VERSION}'. ` +
          'Run the newer fencingMigrations.',
      );
    }
    const [allowed] = await this.query<{ granted: boolean }>(privileges);
    if (!allowed!.granted) throw missingPrivilege();
  }

  /** A write under a grant that nobody has must be refused, or nothing would be guarded. */
  private async checkGuard(): Promise<void> {
    try {
      await this.write({ authority: NOBODYS, retries: 0, body: async () => undefined });
    } catch (error) {
      if (error instanceof StaleGenerationError) return;
      throw error;
    }
    throw new FencingConfigError('The guard of the fence let a grant pass that nobody has.');
  }

  private async ensureSchema(): Promise<void> {
    const runner = this.createRunner();
    try {
      await runner.startTransaction();
      await runner.query('SELECT pg_advisory_xact_lock($1)', [SCHEMA_LOCK]);
      const { schema } = this.sql;
      if (schema !== undefined && !(await runner.hasSchema(schema))) await runner.createSchema(schema);
      for (const statement of this.sql.create) await runner.query(statement);
      await runner.commitTransaction();
    } catch (error) {
      if (runner.isTransactionActive) await runner.rollbackTransaction().catch(() => undefined);
      throw new FencingConfigError(
        `ensureSchema could not create the tables of nestjs-fencing: ${String((error as Error).message)}`,
        driverErrorOf(error),
      );
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
    const wrong = setupError(error);
    if (wrong) return wrong;
    if (state === '55P03') {
      const blocker = await this.blocker(key).catch(() => undefined);
      return new StoreUnavailableError(
        'database',
        `the previous owner's transaction was still open after ${waitedMs} ms${blocker ?? ''}.`,
        { key, cause },
      );
    }
    return new StoreUnavailableError(
      'database',
      `an activation failed (${state ?? String((cause as Error).message)}).`,
      { key, cause },
    );
  }

  private async blocker(key: string): Promise<string | undefined> {
    const [row] = await this.query<{ pid: number; application_name: string; state: string; open_ms: number }>(
      this.sql.blockers,
      [key],
    );
    return (
      row &&
      `: backend ${row.pid} (${row.application_name || 'no application_name'}, ${row.state}, open for ${row.open_ms} ms)`
    );
  }
}
