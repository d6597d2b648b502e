import {
  FencingConfigError,
  type FencingError,
  RowProtectedError,
  StoreUnavailableError,
} from '../core/errors.js';
import {
  driverErrorOf,
  isConnectionLoss,
  isDatabaseError,
  isSerializationFailure,
  sqlStateOf,
} from './driver.js';
import { PROTECTED_SQLSTATE } from './sql/names.js';

export function notInstalled(cause?: unknown): FencingConfigError {
  return new FencingConfigError(
    'The tables of nestjs-fencing are missing in the database. Add fencingMigrations to the DataSource and run migrations, ' +
      'or use typeOrmFence({ ensureSchema: true }) in development.',
    cause,
  );
}

export function missingPrivilege(cause?: unknown): FencingConfigError {
  return new FencingConfigError(
    'The database user may not use the tables of nestjs-fencing: it needs USAGE on their schema, EXECUTE on fencing_activate, ' +
      'fencing_guard and fencing_revoke, SELECT, INSERT and UPDATE on fencing_fence and fencing_operation, and INSERT on fencing_audit.',
    cause,
  );
}

/** A set-up that cannot work, as far as the SQLSTATE tells; only of the package's own statements. */
export function setupError(error: unknown): FencingConfigError | undefined {
  const state = sqlStateOf(error);
  // Undefined function, undefined table, no such schema.
  if (state === '42883' || state === '42P01' || state === '3F000') return notInstalled(driverErrorOf(error));
  if (state === '42501') return missingPrivilege(driverErrorOf(error));
  return undefined;
}

/** No connection, or no answer to BEGIN and the guard: the body did not run. */
export function beginError(key: string, error: unknown): unknown {
  if (isSerializationFailure(error)) return error;
  const cause = driverErrorOf(error);
  return (
    setupError(error) ??
    new StoreUnavailableError('database', `a fenced write could not begin (${reasonOf(cause)}).`, {
      key,
      cause,
    })
  );
}

/** Who was in the way of an activation. */
export interface Blocker {
  readonly pid: number;
  readonly application_name: string;
  readonly state: string;
  readonly open_ms: number;
}

export async function activationError(
  error: unknown,
  key: string,
  waitedMs: number,
  findBlocker: () => Promise<Blocker[]>,
): Promise<FencingError> {
  const cause = driverErrorOf(error);
  const wrong = setupError(error);
  if (wrong) return wrong;
  if (sqlStateOf(error) !== '55P03') {
    return new StoreUnavailableError('database', `an activation failed (${reasonOf(cause)}).`, {
      key,
      cause,
    });
  }
  const [by] = await findBlocker().catch(() => []);
  const who = by
    ? `: backend ${by.pid} (${by.application_name || 'no application_name'}, ${by.state}, open for ${by.open_ms} ms)`
    : '';
  return new StoreUnavailableError(
    'database',
    `the previous owner's transaction was still open after ${waitedMs} ms${who}.`,
    { key, cause },
  );
}

/** The connection broke before COMMIT was sent; anything else is given as it is. */
export function bodyError(key: string, error: unknown, connectionError: Error | undefined): unknown {
  if (error !== connectionError && !isDatabaseError(error)) return error;
  if (!connectionError && !isConnectionLoss(error)) return error;
  // What the connection itself reported says most; "already released" says nothing.
  const own = isConnectionLoss(error) ? driverErrorOf(error) : undefined;
  const cause = sqlStateOf(connectionError) ? connectionError : (own ?? connectionError);
  return new StoreUnavailableError(
    'database',
    `the connection of a fenced write broke (${reasonOf(cause)}); nothing of it was committed.`,
    { key, cause },
  );
}

/** The trigger of a protected table refused a row of a fenced write, as far as the SQLSTATE tells. */
export function protectedError(key: string, error: unknown): RowProtectedError | undefined {
  if (sqlStateOf(error) !== PROTECTED_SQLSTATE) return undefined;
  const cause = driverErrorOf(error);
  return new RowProtectedError(key, (cause as { table?: string }).table ?? 'of the package', cause);
}

/** The audit could not be `what`: read, written or pruned. `needs`: the privileges for it. */
export function auditError(error: unknown, what: string, needs: string): FencingError {
  if (sqlStateOf(error) === '42501')
    return new FencingConfigError(
      `The audit could not be ${what}: the database user needs ${needs}.`,
      driverErrorOf(error),
    );
  const cause = driverErrorOf(error);
  return (
    setupError(error) ??
    new StoreUnavailableError('database', `the audit could not be ${what} (${reasonOf(cause)}).`, { cause })
  );
}

/** COMMIT had no answer, and the database says that it did not happen. */
export function commitNotAccepted(key: string, cause: unknown): StoreUnavailableError {
  return new StoreUnavailableError(
    'database',
    `the connection of a fenced write broke at its COMMIT (${reasonOf(cause)}), and the operation has no receipt: nothing of ` +
      'it was committed, and nothing of it will be. It may be sent again.',
    { key, cause },
  );
}

function reasonOf(cause: unknown): string {
  return sqlStateOf(cause) ?? String((cause as Error | undefined)?.message ?? cause);
}
