import type { DataSource, MigrationInterface, QueryRunner } from 'typeorm';
import { FencingSql } from './sql.js';

/** Creates the tables and functions of the package in the DataSource's schema. */
export class CreateFencing1764000000000 implements MigrationInterface {
  readonly name = 'CreateFencing1764000000000';

  async up(runner: QueryRunner): Promise<void> {
    for (const statement of this.sqlFor(runner).create) await runner.query(statement);
  }

  async down(runner: QueryRunner): Promise<void> {
    for (const statement of this.sqlFor(runner).drop) await runner.query(statement);
  }

  /** @internal */
  protected sqlFor(runner: QueryRunner): FencingSql {
    // `connection` until TypeORM 0.3, `dataSource` since 1.0.
    const { dataSource, connection } = runner as { dataSource?: DataSource; connection?: DataSource };
    return new FencingSql(((dataSource ?? connection)!.options as { schema?: string }).schema);
  }
}

/** For `migrations: [...fencingMigrations, …]` of the DataSource. */
export const fencingMigrations: (new () => MigrationInterface)[] = [CreateFencing1764000000000];

/** The same for a schema of its own, as `typeOrmFence({ schema })` names it: `fencingMigrationsIn('locks')`. The schema must exist. */
export function fencingMigrationsIn(schema: string): (new () => MigrationInterface)[] {
  return [
    class extends CreateFencing1764000000000 {
      protected override sqlFor(): FencingSql {
        return new FencingSql(schema);
      }
    },
  ];
}
