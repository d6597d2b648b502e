import { protectTable, unprotectTable } from 'nestjs-fencing/typeorm';
import type { MigrationInterface, QueryRunner } from 'typeorm';

// #region migration
export class ProtectReport1764000000002 implements MigrationInterface {
  async up(queryRunner: QueryRunner): Promise<void> {
    await queryRunner.query('ALTER TABLE report ADD COLUMN generation bigint NOT NULL DEFAULT 0');
    await protectTable(queryRunner, 'report', { key: 'report:{customer_id}' });
  }

  async down(queryRunner: QueryRunner): Promise<void> {
    await unprotectTable(queryRunner, 'report');
    await queryRunner.query('ALTER TABLE report DROP COLUMN generation');
  }
}
// #endregion
