import type { DataSource, QueryRunner } from 'typeorm';
import { FencingConfigError } from '../core/errors.js';
import { NOBODYS } from './database-check.js';
import type { PgQueryRunner } from './driver.js';
import { GuardedTransaction } from './guarded-transaction.js';
import { strayNotes } from './quiet-transaction.js';
import type { FencingSql } from './sql.js';

/** Runs `work` as if inside a guarded transaction. */
export type RunInside = <T>(transaction: GuardedTransaction, work: () => Promise<T>) => Promise<T>;

/** The fence stands on parts of TypeORM that another version may not have, or not in this way. Nothing is sent. */
export async function checkTypeOrm(
  dataSource: DataSource,
  runner: PgQueryRunner,
  sql: FencingSql,
  inside: RunInside,
): Promise<void> {
  const wrong = missingParts(dataSource, runner);
  if (wrong.length === 0) {
    const transaction = new GuardedTransaction(runner, NOBODYS, sql, undefined);
    wrong.push(...(await inside(transaction, () => strayPaths(dataSource, runner))));
  }
  if (wrong.length === 0) return;
  throw new FencingConfigError(
    `The installed TypeORM works differently from what the fence was proven on (${wrong.join(', ')}); writes could not be guarded. ` +
      'Use a version from the compatibility table of the README.',
  );
}

/** The private parts of TypeORM that guarded transactions stand on and that this version does not have. */
function missingParts({ manager }: DataSource, runner: PgQueryRunner): string[] {
  const parts: Record<string, boolean> = {
    'QueryRunner.releasePostgresConnection': typeof runner.releasePostgresConnection === 'function',
    'QueryRunner.transactionDepth': runner.transactionDepth === 0,
    'EntityManager.queryRunner': runner.manager?.queryRunner === runner,
    'DataSource.manager.queryRunner': manager.queryRunner === undefined,
  };
  return Object.keys(parts).filter((name) => !parts[name]);
}

/**
 * The paths to `dataSource` that do not lead to `runner`, which is the one of the current transaction. The runner is a
 * throw-away: its statements are noted and not sent.
 */
async function strayPaths(dataSource: DataSource, runner: PgQueryRunner): Promise<string[]> {
  const { manager } = dataSource;
  const noted: string[] = [];
  const note = async (text: string) => noted.push(text);
  runner.query = note as unknown as typeof runner.query;
  const reaches = async (ask: (sql: string) => Promise<unknown>, sql: string) => {
    await ask(sql);
    return noted.includes(sql);
  };
  const leadsThere = (builder: unknown) => (builder as { queryRunner?: QueryRunner }).queryRunner === runner;
  const paths: Record<string, () => unknown> = {
    'dataSource.manager': () => manager.queryRunner === runner,
    'dataSource.query': () => reaches((sql) => dataSource.query(sql), 'of the data source'),
    'manager.query': () => reaches((sql) => manager.query(sql), 'of the manager'),
    'dataSource.createQueryBuilder': () => leadsThere(dataSource.createQueryBuilder()),
    'manager.createQueryBuilder': () => leadsThere(manager.createQueryBuilder()),
    'manager.transaction': () => manager.transaction(async (inner) => inner.queryRunner === runner),
  };
  // First, while the runner has no transaction behind it.
  const stray = await strayNotes(runner);
  for (const [name, leads] of Object.entries(paths)) {
    try {
      if (!(await leads())) stray.push(name);
    } catch {
      stray.push(name);
    }
  }
  return stray;
}
