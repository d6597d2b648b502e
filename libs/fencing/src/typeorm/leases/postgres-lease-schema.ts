import type { DataSource, MigrationInterface, QueryRunner } from 'typeorm';
import { LeaseSql } from './postgres-leases-sql.js';

/** Creates the tables and functions of `postgresLeases` in the DataSource's schema. */
export class CreateFencingLeases1764000000010 implements MigrationInterface {
  readonly name = 'CreateFencingLeases1764000000010';

  async up(runner: QueryRunner): Promise<void> {
    for (const statement of this.sqlFor(runner).create) await runner.query(statement);
  }

  async down(runner: QueryRunner): Promise<void> {
    for (const statement of this.sqlFor(runner).drop) await runner.query(statement);
  }

  /** @internal */
  protected sqlFor(runner: QueryRunner): LeaseSql {
    // `connection` until TypeORM 0.3, `dataSource` since 1.0.
    const { dataSource, connection } = runner as { dataSource?: DataSource; connection?: DataSource };
    return new LeaseSql(((dataSource ?? connection)!.options as { schema?: string }).schema);
  }
}

/** For `migrations: [...fencingMigrations, ...fencingLeaseMigrations, …]` where leases are kept by `postgresLeases`. */
export const fencingLeaseMigrations: (new () => MigrationInterface)[] = [CreateFencingLeases1764000000010];

/** The same for a schema of its own, as `postgresLeases({ schema })` names it: `fencingLeaseMigrationsIn('locks')`. The schema must exist. */
export function fencingLeaseMigrationsIn(schema: string): (new () => MigrationInterface)[] {
  return [
    class extends CreateFencingLeases1764000000010 {
      protected override sqlFor(): LeaseSql {
        return new LeaseSql(schema);
      }
    },
  ];
}
