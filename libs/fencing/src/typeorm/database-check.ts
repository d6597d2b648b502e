import { FencingConfigError, StaleGenerationError, StoreUnavailableError } from '../core/errors.js';
import type { Fence, WriteAuthority } from '../core/fence.js';
import { driverErrorOf, type PgQueryRunner } from './driver.js';
import { missingPrivilege, notInstalled, setupError } from './failures.js';
import { type FencingSql, SCHEMA_VERSION } from './sql.js';

/** Sessions that create the schema at the same time take turns by this advisory lock. */
const SCHEMA_LOCK = 0x6e_66_63_31;

/** A grant that nobody ever had. */
export const NOBODYS: WriteAuthority = {
  grants: [{ key: 'nestjs-fencing/boot-check', generation: 1, owner: 'nobody' }],
  remainingMs: () => 10_000,
  ended: () => undefined,
  onEnd: () => () => undefined,
  onRenewed: () => () => undefined,
};

/** Creates what is missing of the tables, functions and the schema. */
export async function ensureSchema(runner: PgQueryRunner, sql: FencingSql): Promise<void> {
  try {
    await runner.startTransaction();
    await runner.query('SELECT pg_advisory_xact_lock($1)', [SCHEMA_LOCK]);
    const found =
      sql.schema === undefined || ((await runner.query(sql.findSchema, [sql.schema])) as unknown[])[0];
    if (!found) await runner.query(sql.createSchema);
    for (const statement of sql.create) await runner.query(statement);
    await runner.commitTransaction();
  } catch (error) {
    if (runner.isTransactionActive) await runner.rollbackTransaction().catch(() => undefined);
    throw new FencingConfigError(
      `ensureSchema could not create the tables of nestjs-fencing: ${String((error as Error).message)}`,
      driverErrorOf(error),
    );
  } finally {
    await runner.release();
  }
}

/** @throws FencingConfigError where something is missing, old or not allowed */
export async function checkDatabase(
  query: <Row>(text: string) => Promise<Row[]>,
  { installedVersion, privileges }: FencingSql,
): Promise<void> {
  try {
    const [installed] = await query<{ version: string | null; server: number }>(installedVersion);
    if (installed!.server < 120_000) throw new FencingConfigError('The fence needs PostgreSQL 12 or newer.');
    if (installed!.version === null) throw notInstalled();
    if (installed!.version !== SCHEMA_VERSION) {
      throw new FencingConfigError(
        `The database has '${installed!.version}' and this version of the package needs '${SCHEMA_VERSION}'. ` +
          'Run the newer fencingMigrations. Where they have run in an older form, run this in a migration of your own: it can be run ' +
          'again and keeps what is there: for (const Migration of fencingMigrations) await new Migration().up(queryRunner);',
      );
    }
    const [allowed] = await query<{ granted: boolean }>(privileges);
    if (!allowed!.granted) throw missingPrivilege();
  } catch (error) {
    if (error instanceof FencingConfigError) throw error;
    const cause = driverErrorOf(error);
    throw (
      setupError(error) ?? new StoreUnavailableError('database', 'the check of the fence failed.', { cause })
    );
  }
}

/** A write under a grant that nobody has must be refused, or nothing would be guarded. */
export async function checkGuard(fence: Fence): Promise<void> {
  try {
    await fence.write({ authority: NOBODYS, retries: 0, body: async () => undefined });
  } catch (error) {
    if (error instanceof StaleGenerationError) return;
    throw error;
  }
  throw new FencingConfigError('The guard of the fence let a grant pass that nobody has.');
}
