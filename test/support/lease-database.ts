import { randomBytes } from 'node:crypto';
import type { LeaseStore } from 'nestjs-fencing';
import type { LeaseAuthority } from 'nestjs-fencing/testing';
import { postgresLeases, type PostgresLeasesOptions } from 'nestjs-fencing/typeorm';
import pg from 'pg';

/** A schema of the test's own with leases in it, seen by as many stores as are opened. */
export interface LeaseDatabase extends LeaseAuthority {
  readonly schema: string;
  readonly sql: pg.Client;
  open(options?: PostgresLeasesOptions): LeaseStore;
  lose(): Promise<void>;
  close(): Promise<void>;
}

export async function leaseDatabase(options: PostgresLeasesOptions = {}): Promise<LeaseDatabase> {
  const { dataSource } = options;
  const url = options.url ?? (dataSource === undefined ? process.env.DATABASE_URL! : undefined);
  const schema = `Leases ${randomBytes(6).toString('hex')}`;
  const sql = new pg.Client({ connectionString: process.env.DATABASE_URL });
  await sql.connect();
  return {
    schema,
    sql,
    open: (more = {}) =>
      postgresLeases({ url, schema, ensureSchema: true, ...options, ...more }).createStore(),
    lose: async () => {
      await sql.query(`TRUNCATE "${schema}".fencing_lease, "${schema}".fencing_lease_counter`);
    },
    close: async () => {
      await sql.query(`DROP SCHEMA IF EXISTS "${schema}" CASCADE`);
      await sql.end();
    },
  };
}
