import type { MigrationInterface, QueryRunner } from 'typeorm';

/** The tables of the payments, with two orders to try them on. */
export class CreatePayments1764000000002 implements MigrationInterface {
  readonly name = 'CreatePayments1764000000002';

  async up(runner: QueryRunner): Promise<void> {
    await runner.query(`
      CREATE TABLE customer_order (
        id text PRIMARY KEY,
        amount_cents integer NOT NULL CHECK (amount_cents > 0),
        status text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'charging', 'charged', 'declined')),
        charge_id text
      );
      CREATE TABLE outbox_charge (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        idempotency_key text NOT NULL UNIQUE,
        order_id text NOT NULL REFERENCES customer_order,
        amount_cents integer NOT NULL,
        answered_at timestamptz
      );
      CREATE INDEX ON outbox_charge (id) WHERE answered_at IS NULL;
      INSERT INTO customer_order (id, amount_cents) VALUES ('order-1', 1999), ('order-2', 4500);
    `);
  }

  async down(runner: QueryRunner): Promise<void> {
    await runner.query('DROP TABLE outbox_charge, customer_order');
  }
}
