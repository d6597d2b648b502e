/**
 * All SQL of the package.
 *
 * Why it is safe, in four sentences. `activate` raises the fence row in an autocommit statement, so once it has returned, every
 * later guard sees it. `guard` reads the row FOR SHARE and demands equality with the grant, so an activation waits for every
 * guarded transaction that passed before it, and every later one fails. The share lock is held to the end of the transaction,
 * so nothing can come between the check and the commit. The row is never deleted and never lowered.
 */

/** Raised by the guard: the fence does not name this grant. DETAIL is the fence's generation or `none`, COLUMN the refused owner. */
export const STALE_SQLSTATE = 'NF001';

/** Raised with every change of the functions or tables, and compared at boot. */
export const SCHEMA_VERSION = 'nestjs-fencing schema 1';

/** How often the server looks whether the client of a running statement is still there, ms. */
const CONNECTION_CHECK_MS = 1_000;

/** The package's SQL for one schema; without one, names are left to the connection's search_path. */
export class FencingSql {
  private readonly fence: string;
  private readonly operation: string;
  private readonly activateFunction: string;
  private readonly guardFunction: string;

  constructor(readonly schema?: string) {
    const qualify = (name: string) => (schema === undefined ? name : `${quoted(schema)}.${name}`);
    this.fence = qualify('fencing_fence');
    this.operation = qualify('fencing_operation');
    this.activateFunction = qualify('fencing_activate');
    this.guardFunction = qualify('fencing_guard');
  }

  /** Parameter: the schema. A row is answered if it exists. */
  get findSchema(): string {
    return 'SELECT 1 FROM pg_namespace WHERE nspname = $1';
  }

  /** Even with IF NOT EXISTS this needs a privilege on the database. */
  get createSchema(): string {
    return `CREATE SCHEMA ${quoted(this.schema!)}`;
  }

  /** Statements that create the tables and functions; each may be run again. */
  get create(): string[] {
    return [
      // `generation` is in no unique index: a foreign key's KEY SHARE would then wait for activations, and they for it.
      `CREATE TABLE IF NOT EXISTS ${this.fence} (
  key text PRIMARY KEY,
  generation bigint NOT NULL CHECK (generation BETWEEN 1 AND 9007199254740991),
  owner text NOT NULL,
  activated_at timestamptz NOT NULL DEFAULT clock_timestamp()
)`,
      `COMMENT ON TABLE ${this.fence} IS 'nestjs-fencing: the newest activated grant of each key. Never delete rows: an old generation could then write again.'`,
      `CREATE TABLE IF NOT EXISTS ${this.operation} (
  id text PRIMARY KEY,
  key text NOT NULL,
  generation bigint NOT NULL,
  owner text NOT NULL,
  fingerprint text NOT NULL,
  result jsonb,
  accepted_at timestamptz NOT NULL DEFAULT clock_timestamp()
)`,
      `COMMENT ON TABLE ${this.operation} IS 'nestjs-fencing: receipts of operations that were accepted, so that none is done twice.'`,
      // A volatile PL/pgSQL function takes a new snapshot for each statement, so the read after a refusal is not stale.
      `CREATE OR REPLACE FUNCTION ${this.activateFunction}(p_key text, p_generation bigint, p_owner text, p_wait_ms integer, p_durable boolean)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_generation bigint;
  v_owner text;
BEGIN
  -- The insert locks the row before it looks at it: what is refused anyway, or done already, need not wait for the lock.
  SELECT f.generation, f.owner INTO v_generation, v_owner FROM ${this.fence} f WHERE f.key = p_key;
  IF v_generation >= p_generation THEN
    RETURN CASE WHEN v_generation = p_generation AND v_owner = p_owner THEN NULL ELSE v_generation END;
  END IF;
  PERFORM set_config('lock_timeout', p_wait_ms::text, true);
  IF NOT p_durable THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  ELSIF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  INSERT INTO ${this.fence} AS f (key, generation, owner) VALUES (p_key, p_generation, p_owner)
    ON CONFLICT (key) DO UPDATE SET generation = excluded.generation, owner = excluded.owner, activated_at = clock_timestamp()
    WHERE f.generation < excluded.generation;
  IF FOUND THEN
    RETURN NULL;
  END IF;
  SELECT f.generation, f.owner INTO STRICT v_generation, v_owner FROM ${this.fence} f WHERE f.key = p_key;
  RETURN CASE WHEN v_generation = p_generation AND v_owner = p_owner THEN NULL ELSE v_generation END;
END
$$`,
      `CREATE OR REPLACE FUNCTION ${this.guardFunction}(p_key text, p_generation bigint, p_owner text, p_idle_ms integer)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_current bigint;
BEGIN
  PERFORM 1 FROM ${this.fence} f WHERE f.key = p_key AND f.generation = p_generation AND f.owner = p_owner FOR SHARE;
  IF NOT FOUND THEN
    SELECT f.generation INTO v_current FROM ${this.fence} f WHERE f.key = p_key;
    RAISE EXCEPTION USING
      ERRCODE = '${STALE_SQLSTATE}',
      MESSAGE = 'stale generation: the fence does not name this grant',
      DETAIL = coalesce(v_current::text, 'none'),
      COLUMN = p_owner,
      HINT = 'A newer owner has activated its grant. The transaction must be rolled back.';
  END IF;
  PERFORM set_config('idle_in_transaction_session_timeout', p_idle_ms::text, true);
  -- A statement that runs when its client is gone must not hold the lock to its end. Since PostgreSQL 14, and surely on Linux.
  IF current_setting('client_connection_check_interval', true) = '0' AND version() LIKE '%linux%' THEN
    PERFORM set_config('client_connection_check_interval', '${CONNECTION_CHECK_MS}', true);
  END IF;
END
$$`,
      `COMMENT ON FUNCTION ${this.guardFunction}(text, bigint, text, integer) IS '${SCHEMA_VERSION}'`,
    ];
  }

  /** Statements that remove everything again. */
  get drop(): string[] {
    return [
      `DROP FUNCTION IF EXISTS ${this.guardFunction}(text, bigint, text, integer)`,
      `DROP FUNCTION IF EXISTS ${this.activateFunction}(text, bigint, text, integer, boolean)`,
      `DROP TABLE IF EXISTS ${this.operation}`,
      `DROP TABLE IF EXISTS ${this.fence}`,
    ];
  }

  /** The version of what is installed, or null. Parameters: none. */
  get installedVersion(): string {
    const signature = `${this.guardFunction}(text, bigint, text, integer)`.replaceAll("'", "''");
    return `SELECT obj_description(to_regprocedure('${signature}'), 'pg_proc') AS version, current_setting('server_version_num')::int AS server`;
  }

  /** Parameters: key, generation, owner, wait in ms, durable. Answers `ahead`: null when activated. */
  get activate(): string {
    return `SELECT ${this.activateFunction}($1, $2, $3, $4, $5) AS ahead`;
  }

  /** One call per grant, for the message that begins the transaction: values are literals, escaped by the driver. */
  guardCall(literals: { key: string; generation: number; owner: string; idleMs: number }): string {
    return `SELECT ${this.guardFunction}(${literals.key}, ${literals.generation}, ${literals.owner}, ${literals.idleMs})`;
  }

  /** The guard inside a transaction that the caller opened: no row instead of an error. Parameters: key, generation, owner, idle in ms. */
  get guardQuietly(): string {
    return `SELECT set_config('idle_in_transaction_session_timeout', $4, true)
FROM (SELECT 1 FROM ${this.fence} f WHERE f.key = $1 AND f.generation = $2 AND f.owner = $3 FOR SHARE) guard`;
  }

  /** Restarts the server's clock for an idle transaction. Parameter: idle in ms. */
  get touch(): string {
    return `SELECT set_config('idle_in_transaction_session_timeout', $1, true)`;
  }

  /** Parameter: key. */
  get readFence(): string {
    return `SELECT generation, owner, activated_at FROM ${this.fence} WHERE key = $1`;
  }

  /**
   * Who holds up an activation: the transaction that has locked the row, or where several have, the oldest that may be one of
   * them. Parameter: key.
   */
  get blockers(): string {
    return `SELECT a.pid, a.application_name, a.state, round(extract(epoch FROM clock_timestamp() - a.xact_start) * 1000)::int AS open_ms
FROM pg_stat_activity a
JOIN ${this.fence} f ON f.key = $1
JOIN pg_locks l ON l.pid = a.pid AND l.relation = f.tableoid AND l.mode = 'RowShareLock' AND l.granted
WHERE a.pid <> pg_backend_pid()
ORDER BY (a.backend_xid IS NOT NULL AND a.backend_xid = f.xmax) DESC, a.xact_start LIMIT 1`;
  }

  /** Whether the user may do all that is needed. Parameters: none. */
  get privileges(): string {
    const rights = [this.fence, this.operation].flatMap((table) =>
      ['SELECT', 'INSERT', 'UPDATE'].map(
        (right) => `has_table_privilege('${table.replaceAll("'", "''")}', '${right}')`,
      ),
    );
    const signatures = [
      `${this.activateFunction}(text, bigint, text, integer, boolean)`,
      `${this.guardFunction}(text, bigint, text, integer)`,
    ];
    rights.push(
      ...signatures.map((name) => `has_function_privilege('${name.replaceAll("'", "''")}', 'EXECUTE')`),
    );
    return `SELECT ${rights.join(' AND ')} AS granted`;
  }

  /** Parameters: id, key, generation, owner, fingerprint. A row is answered if the operation is new. */
  get claimOperation(): string {
    return `INSERT INTO ${this.operation} (id, key, generation, owner, fingerprint) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (id) DO NOTHING RETURNING id`;
  }

  /** Parameters: id, result as JSON text. */
  get recordResult(): string {
    return `UPDATE ${this.operation} SET result = $2::jsonb WHERE id = $1`;
  }

  /** Parameter: id. */
  get readOperation(): string {
    return `SELECT id, key, generation, owner, fingerprint, result, result IS NULL AS no_result, accepted_at FROM ${this.operation} WHERE id = $1`;
  }
}

function quoted(identifier: string): string {
  return `"${identifier.replaceAll('"', '""')}"`;
}
