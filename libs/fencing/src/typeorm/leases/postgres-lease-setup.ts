import { FencingConfigError } from '../../core/errors.js';
import { sqlStateOf } from '../driver.js';
import { ISOLATION_SQLSTATE, LEASE_SCHEMA_VERSION, type LeaseSql } from './postgres-leases-sql.js';

export type Query = (text: string, values?: unknown[]) => Promise<Record<string, unknown>[]>;

/** Sessions that create the schema at the same time take turns by this advisory lock. */
const SCHEMA_LOCK = 0x6e_66_63_31;

/**
 * Creates what is missing of the tables, functions and the schema.
 * @throws FencingConfigError where the server refuses it
 */
export async function ensureLeaseSchema(query: Query, sql: LeaseSql): Promise<void> {
  try {
    const found = sql.schema === undefined || (await query(sql.findSchema, [sql.schema]))[0];
    // One message of several statements is one transaction, so the lock is kept to its end.
    const statements = [...(found ? [] : [sql.createSchema]), ...sql.create];
    await query([`SELECT pg_advisory_xact_lock(${SCHEMA_LOCK})`, ...statements].join(';\n'));
  } catch (error) {
    if (sqlStateOf(error) === undefined) throw error;
    throw new FencingConfigError(
      `ensureSchema could not create the tables of postgresLeases: ${String((error as Error).message)}`,
      error,
    );
  }
}

/** @throws FencingConfigError where something is missing, old or not allowed */
export async function checkLeaseSchema(query: Query, sql: LeaseSql): Promise<void> {
  const [installed] = await query(sql.installed);
  const { server, version, isolation } = installed as {
    server: number;
    version: string | null;
    isolation: string;
  };
  if (server < 120_000) throw new FencingConfigError('postgresLeases needs PostgreSQL 12 or newer.');
  if (isolation !== 'read committed') throw wrongIsolation(isolation);
  if (version === null) throw notInstalled();
  if (version !== LEASE_SCHEMA_VERSION) {
    throw new FencingConfigError(
      `The database has '${version}' and this version of the package needs '${LEASE_SCHEMA_VERSION}'. ` +
        'Run the newer fencingLeaseMigrations.',
    );
  }
  const [allowed] = await query(sql.privileges);
  if (!allowed!.granted) throw missingPrivilege();
}

/** A set-up that cannot work, as far as the SQLSTATE tells. */
export function leaseSetupError(error: unknown): FencingConfigError | undefined {
  const state = sqlStateOf(error);
  // Undefined function, undefined table, no such schema.
  if (state === '42883' || state === '42P01' || state === '3F000') return notInstalled(error);
  if (state === '42501') return missingPrivilege(error);
  if (state === ISOLATION_SQLSTATE) return wrongIsolation('another isolation level', error);
  return undefined;
}

function notInstalled(cause?: unknown): FencingConfigError {
  return new FencingConfigError(
    'The tables of postgresLeases are missing in the database. Add fencingLeaseMigrations to the DataSource and run migrations, ' +
      'or use postgresLeases({ ensureSchema: true }) in development.',
    cause,
  );
}

function missingPrivilege(cause?: unknown): FencingConfigError {
  return new FencingConfigError(
    'The database user may not use the tables of postgresLeases: it needs USAGE on their schema, EXECUTE on the functions fencing_lease_*, ' +
      'and SELECT, INSERT, UPDATE and DELETE on fencing_lease and fencing_lease_counter.',
    cause,
  );
}

function wrongIsolation(isolation: string, cause?: unknown): FencingConfigError {
  return new FencingConfigError(
    `postgresLeases needs sessions whose default_transaction_isolation is 'read committed', got '${isolation}'. ` +
      'Set it for the database user (ALTER ROLE … SET default_transaction_isolation), and ask for another level where a transaction needs it.',
    cause,
  );
}
