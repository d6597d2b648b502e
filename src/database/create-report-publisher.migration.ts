import type { MigrationInterface, QueryRunner } from 'typeorm';

/** The tables of the reference app, with a few customers to try it on. */
export class CreateReportPublisher1764000000001 implements MigrationInterface {
  readonly name = 'CreateReportPublisher1764000000001';

  async up(runner: QueryRunner): Promise<void> {
    await runner.query(`
      CREATE TABLE ledger_entry (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        customer_id text NOT NULL,
        amount_cents bigint NOT NULL
      );
      CREATE INDEX ON ledger_entry (customer_id, id);
      CREATE TABLE report (
        customer_id text PRIMARY KEY,
        entries integer NOT NULL,
        total_cents bigint NOT NULL,
        generation bigint NOT NULL,
        published_at timestamptz NOT NULL
      );
      CREATE TABLE hourly_summary (
        hour timestamptz PRIMARY KEY,
        reports integer NOT NULL,
        total_cents bigint NOT NULL
      );
      CREATE TABLE account (
        id text PRIMARY KEY,
        balance_cents bigint NOT NULL CHECK (balance_cents >= 0)
      );
      INSERT INTO ledger_entry (customer_id, amount_cents)
        SELECT customer, 100 * n FROM unnest(ARRAY['alice', 'bob']) AS customer, generate_series(1, 250) AS n;
      INSERT INTO account VALUES ('alice', 10000), ('bob', 10000);
    `);
  }

  async down(runner: QueryRunner): Promise<void> {
    await runner.query('DROP TABLE account, hourly_summary, report, ledger_entry');
  }
}
