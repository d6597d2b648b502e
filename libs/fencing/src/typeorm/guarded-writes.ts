import type { DataSource, QueryRunner } from 'typeorm';
import { systemClock } from '../core/clock.js';
import { runInTransaction, transactionOf } from '../core/context.js';
import { type CommitUnknownError, FencingConfigError, LeaseOrderError } from '../core/errors.js';
import type { Fence, IsolationLevel, WriteOutcome, WriteRequest } from '../core/fence.js';
import { isSerializationFailure, type PgQueryRunner } from './driver.js';
import { GuardedTransaction } from './guarded-transaction.js';
import { type OperationOutcome, runOnce } from './operations.js';
import type { RoutingHost } from './routing.js';
import { inSavepoint } from './savepoints.js';
import { settleOperation } from './settle-operation.js';
import type { FencingSql } from './sql.js';
import { settingMs } from './transaction-connection.js';

/** How often a transaction whose body has not begun is begun again after a serialization failure. */
export const RETRIES_BEFORE_BODY = 5;
/** How much longer than the idle limit of a lost backend its end is waited for, ms. */
const SETTLE_MARGIN_MS = 2_000;

/** A transaction that the application opened with dataSource.transaction(), and what was guarded inside it. */
class CallersTransaction {
  isOver = false;
  readonly guarded: GuardedTransaction[] = [];
  constructor(readonly runner: PgQueryRunner) {}
}

interface Surroundings {
  /** Whose transactions these are, in the context of a call. */
  readonly fence: Fence;
  readonly dataSource: DataSource;
  readonly sql: FencingSql;
  readonly createRunner: () => PgQueryRunner;
}

/**
 * Fenced writes of one DataSource: in a transaction of their own, in the one of a fenced write around them, or in one that the
 * application opened; and which of these the current call is inside of.
 */
export class GuardedWrites implements RoutingHost {
  constructor(private readonly around: Surroundings) {}

  async write<T>(request: WriteRequest<unknown, T>): Promise<WriteOutcome<T>> {
    const surrounding = this.surrounding();
    if (surrounding instanceof GuardedTransaction) return this.join(surrounding, request);
    if (surrounding) return this.joinCallers(surrounding, request);
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

  /** The transaction that this call is inside of, unless it has ended. */
  surrounding(): GuardedTransaction | CallersTransaction | undefined {
    const transaction = transactionOf(this.around.fence) as
      GuardedTransaction | CallersTransaction | undefined;
    return transaction && !transaction.isOver ? transaction : undefined;
  }

  currentRunner(): QueryRunner | undefined {
    const transaction = transactionOf(this.around.fence);
    if (!(transaction instanceof GuardedTransaction)) return undefined;
    transaction.assertOpen();
    return transaction.runner;
  }

  async insideCallersTransaction<T>(runner: QueryRunner, work: () => Promise<T>): Promise<T> {
    const callers = new CallersTransaction(runner as PgQueryRunner);
    try {
      return await runInTransaction(this.around.fence, callers, work);
    } finally {
      callers.isOver = true;
      // In the reverse order: each put its own layer on the runner.
      callers.guarded.reverse().forEach((transaction) => transaction.detach());
    }
  }

  // ------------------------------------------------------------------------------------------------------------- parts

  private async writeOnce<T>(
    { authority, isolation, operation, body }: WriteRequest<unknown, T>,
    progress: { bodyBegan: boolean },
  ): Promise<WriteOutcome<T>> {
    const { fence, sql, createRunner } = this.around;
    const level = isolation ?? this.defaultIsolation();
    const transaction = new GuardedTransaction(createRunner(), authority, sql, level);
    const effect = () => {
      progress.bodyBegan = true;
      return runInTransaction(fence, transaction, () => body(transaction.manager));
    };
    let done: OperationOutcome<T> | undefined;
    try {
      await transaction.begin();
      if (operation) done = await runOnce(sql, transaction, operation, effect);
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
      const waitMs = settingMs(Math.ceil(transaction.outlivesMs) + SETTLE_MARGIN_MS);
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
      runOnce(this.around.sql, transaction, operation, () => body(transaction.manager)),
    );
    return { result, duplicate, committed: false };
  }

  /** A fenced write inside a transaction of the application: guarded there, committed by its opener. */
  private async joinCallers<T>(
    { runner, guarded }: CallersTransaction,
    { authority, isolation, operation, body }: WriteRequest<unknown, T>,
  ): Promise<WriteOutcome<T>> {
    const { fence, sql } = this.around;
    if (isolation) await assertIsolation(runner, isolation);
    const known = guarded.find((other) => !other.isOver && other.guards(authority.grants));
    const transaction = known ?? new GuardedTransaction(runner, authority, sql, undefined);
    try {
      await transaction.guardInside();
      if (!known) guarded.push(transaction);
      const effect = () => runInTransaction(fence, transaction, () => body(transaction.manager));
      const outcome = operation
        ? await inSavepoint(runner, () => runOnce(sql, transaction, operation, effect))
        : { result: await effect(), duplicate: false };
      return { result: outcome.result, duplicate: outcome.duplicate, committed: false };
    } catch (error) {
      throw transaction.explain(error);
    }
  }

  private defaultIsolation(): IsolationLevel | undefined {
    return (this.around.dataSource.options as { isolationLevel?: IsolationLevel }).isolationLevel;
  }
}

async function assertIsolation(runner: PgQueryRunner, isolation: IsolationLevel): Promise<void> {
  const [row] = (await runner.query('SHOW transaction_isolation')) as { transaction_isolation: string }[];
  const actual = row!.transaction_isolation.toUpperCase();
  if (actual === isolation) return;
  throw new FencingConfigError(
    `A fenced write asks for ${isolation} inside a transaction of the application that runs in ${actual}.`,
  );
}
