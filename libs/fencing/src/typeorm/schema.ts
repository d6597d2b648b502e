import type { DataSource, MigrationInterface, QueryRunner } from 'typeorm';
import { FencingSql } from './sql.js';

/** Creates the tables and functions of the package in the DataSource's schema. */
export class CreateFencing1764000000000 implements MigrationInterface {
  readonly name = 'CreateFencing1764000000000';

  async up(runner: QueryRunner): Promise<void> {
    for (const statement of sqlFor(runner).create) await runner.query(statement);
  }

  async down(runner: QueryRunner): Promise<void> {
    for (const statement of sqlFor(runner).drop) await runner.query(statement);
  }
}

/** For `migrations: [...fencingMigrations, …]` of the DataSource. */
export const fencingMigrations = [CreateFencing1764000000000];

function sqlFor(runner: QueryRunner): FencingSql {
  const { connection } = runner as { connection?: DataSource; dataSource?: DataSource };
  const dataSource = connection ?? (runner as { dataSource?: DataSource }).dataSource ?? runner.manager.connection;
  return new FencingSql((dataSource.options as { schema?: string }).schema);
}
