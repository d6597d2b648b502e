import type { DataSource, EntityMetadata, QueryRunner } from 'typeorm';

/** The part of a `pg` client that the fence uses. */
export interface PgClient {
  query(text: string, values?: unknown[]): Promise<{ command: string; rows: Record<string, unknown>[] }>;
  escapeLiteral(text: string): string;
  on(event: 'error', listener: (error: Error) => void): unknown;
  removeListener(event: 'error', listener: (error: Error) => void): unknown;
  /** False while a statement is running. */
  readonly readyForQuery?: boolean;
  /** `I` outside a transaction, `T` inside one, `E` inside a failed one, as the server said last. Older versions of pg lack it. */
  getTransactionStatus?(): string | null;
}

/** What TypeORM's query runner for PostgreSQL has besides its public face; `typeorm-fence` checks at boot that it is there. */
export interface PgQueryRunner extends QueryRunner {
  /** Gives the connection back; with an error the pool throws it away. */
  releasePostgresConnection(error?: Error): Promise<void>;
  /** 1 inside a transaction, one more for each open savepoint. */
  transactionDepth: number;
}

/** Of a query runner, or of the metadata of an entity. */
export function dataSourceOf(part: QueryRunner | EntityMetadata): DataSource | undefined {
  // `connection` until TypeORM 0.3, `dataSource` since 1.0.
  const { dataSource, connection } = part as { dataSource?: DataSource; connection?: DataSource };
  return dataSource ?? connection;
}

/** The SQLSTATE of an error of PostgreSQL, also inside TypeORM's QueryFailedError. */
export function sqlStateOf(error: unknown): string | undefined {
  try {
    const { code, driverError } = (error ?? {}) as { code?: unknown; driverError?: { code?: unknown } };
    const state = driverError?.code ?? code;
    // With a digit: EPIPE is no SQLSTATE.
    return typeof state === 'string' && /^(?=.*\d)[0-9A-Z]{5}$/.test(state) ? state : undefined;
  } catch {
    return undefined; // What cannot be looked at, such as a proxy that throws.
  }
}

/** The error of the driver itself: without the statement and its parameters, which may carry what callers passed in. */
export function driverErrorOf(error: unknown): unknown {
  return (error as { driverError?: unknown } | undefined)?.driverError ?? error;
}

/** Whether the error came from the database or its connection, not from the application's code. */
export function isDatabaseError(error: unknown): boolean {
  const name = (error as Error | undefined)?.name ?? '';
  return (
    name === 'QueryFailedError' ||
    name.startsWith('QueryRunner') ||
    name === 'TransactionNotStartedError' ||
    sqlStateOf(error) !== undefined
  );
}

/** The server ended the session: a termination, a shutdown, an idle limit, a broken connection. */
export function isConnectionLoss(error: unknown): boolean {
  const state = sqlStateOf(error);
  if (state !== undefined) return /^(57P0[0-5]|25P03|25P04|08\w{3})$/.test(state);
  const message = String((driverErrorOf(error) as Error | undefined)?.message ?? '');
  return /connection (terminated|error)|not queryable|ECONNRE|EPIPE|read timeout|socket/i.test(message);
}

/** A serialization failure or a deadlock: the same transaction may succeed when it is run again. */
export function isSerializationFailure(error: unknown): boolean {
  const state = sqlStateOf(error);
  return state === '40001' || state === '40P01';
}
