import { ADMIT_ARGUMENTS, createAdmission } from './sql/admission.js';
import { createAudit, readAudit, recordNotes, REVOKE_ARGUMENTS } from './sql/audit.js';
import { GENERATIONS_SETTING, quoted, STALE_SQLSTATE, withGeneration } from './sql/names.js';
import { ReceiptSql } from './sql/receipts.js';

/**
 * The SQL of the fence itself. What is kept of things done by hand is in `sql/audit.ts`, receipts are in `sql/receipts.ts`, and
 * what protects tables is in `sql/admission.ts` and `sql/protection.ts`.
 *
 * Why it is safe, in four sentences. `activate` raises the fence row in an autocommit statement, so once it has returned, every
 * later guard sees it. `guard` reads the row FOR SHARE and demands equality with the grant, so an activation waits for every
 * guarded transaction that passed before it, and every later one fails. The share lock is held to the end of the transaction,
 * so nothing can come between the check and the commit. The row is never deleted and never lowered.
 */

export { STALE_SQLSTATE };

/** Raised with every change of the functions or tables, and compared at boot. */
export const SCHEMA_VERSION = 'nestjs-fencing schema 3';

/** How often the server looks whether the client of a running statement is still there, ms. */
const CONNECTION_CHECK_MS = 1_000;

const GUARD_ARGUMENTS = 'text, bigint, text, integer, text';
/** Of the guard of schema 1, a function. */
const OLD_GUARD_ARGUMENTS = 'text, bigint, text, integer';

/** The package's SQL for one schema; without one, names are left to the connection's search_path. */
export class FencingSql {
  /** Of operations. */
  readonly receipts: ReceiptSql;
  private readonly fence: string;
  private readonly audit: string;
  private readonly activateFunction: string;
  private readonly guardProcedure: string;
  private readonly revokeFunction: string;
  private readonly admitFunction: string;
  private readonly qualify: (name: string) => string;

  constructor(readonly schema?: string) {
    this.qualify = (name) => (schema === undefined ? name : `${quoted(schema)}.${name}`);
    this.fence = this.qualify('fencing_fence');
    this.receipts = new ReceiptSql(this.qualify('fencing_operation'));
    this.audit = this.qualify('fencing_audit');
    this.activateFunction = this.qualify('fencing_activate');
    this.guardProcedure = this.qualify('fencing_guard');
    this.revokeFunction = this.qualify('fencing_revoke');
    this.admitFunction = this.qualify('fencing_admit');
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
      ...this.receipts.create,
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
      `DROP FUNCTION IF EXISTS ${this.guardProcedure}(${OLD_GUARD_ARGUMENTS})`,
      // A procedure: CALL needs no plan and answers no row, which makes the guard a third cheaper than SELECT of a function.
      `CREATE OR REPLACE PROCEDURE ${this.guardProcedure}(p_key text, p_generation bigint, p_owner text, p_idle_ms integer, p_generations text)
LANGUAGE plpgsql AS $$
DECLARE
  v_current bigint;
BEGIN
  -- One statement, since each costs a third of it. What it sets before it has the lock is undone where the row is not the one: by RAISE.
  -- A statement that runs when its client is gone must not hold the lock to its end: looked for since PostgreSQL 14, and surely on Linux.
  PERFORM set_config('idle_in_transaction_session_timeout', p_idle_ms::text, true),
    set_config('${GENERATIONS_SETTING}', coalesce(p_generations, concat_ws(' ', txid_current() || '.' || f.tableoid, p_generation, p_key)), true),
    CASE WHEN current_setting('client_connection_check_interval', true) = '0' AND version() LIKE '%linux%'
      THEN set_config('client_connection_check_interval', '${CONNECTION_CHECK_MS}', true) END
    FROM ${this.fence} f WHERE f.key = p_key AND f.generation = p_generation AND f.owner = p_owner FOR SHARE;
  IF NOT FOUND THEN
    SELECT f.generation INTO v_current FROM ${this.fence} f WHERE f.key = p_key;
    RAISE EXCEPTION USING
      ERRCODE = '${STALE_SQLSTATE}',
      MESSAGE = 'stale generation: the fence does not name this grant',
      DETAIL = coalesce(v_current::text, 'none'),
      COLUMN = p_owner,
      HINT = 'A newer owner has activated its grant. The transaction must be rolled back.';
  END IF;
END
$$`,
      ...createAudit({
        fence: this.fence,
        audit: this.audit,
        auditIndexes: ['fencing_audit_at', 'fencing_audit_bypassed', 'fencing_audit_key'],
        revoke: this.revokeFunction,
        bypassed: this.qualify('fencing_bypassed'),
      }),
      ...createAdmission({
        fence: this.fence,
        admit: this.admitFunction,
        keyPart: this.qualify('fencing_key_part'),
      }),
      `COMMENT ON PROCEDURE ${this.guardProcedure}(${GUARD_ARGUMENTS}) IS '${SCHEMA_VERSION}'`,
    ];
  }

  /** Statements that remove everything again. Tables that are still protected can then not be written. */
  get drop(): string[] {
    return [
      `DROP FUNCTION IF EXISTS ${this.admitFunction}(${ADMIT_ARGUMENTS})`,
      `DROP FUNCTION IF EXISTS ${this.qualify('fencing_key_part')}(text)`,
      `DROP FUNCTION IF EXISTS ${this.qualify('fencing_bypassed')}(text, text)`,
      `DROP FUNCTION IF EXISTS ${this.revokeFunction}(${REVOKE_ARGUMENTS})`,
      `DROP PROCEDURE IF EXISTS ${this.guardProcedure}(${GUARD_ARGUMENTS})`,
      `DROP FUNCTION IF EXISTS ${this.activateFunction}(text, bigint, text, integer, boolean)`,
      `DROP TABLE IF EXISTS ${this.audit}`,
      `DROP TABLE IF EXISTS ${this.receipts.table}`,
      `DROP TABLE IF EXISTS ${this.fence}`,
    ];
  }

  /** The version of what is installed, or null. Parameters: none. */
  get installedVersion(): string {
    const guard = (args: string) =>
      `to_regprocedure('${`${this.guardProcedure}(${args})`.replaceAll("'", "''")}')`;
    return `SELECT obj_description(coalesce(${guard(GUARD_ARGUMENTS)}, ${guard(OLD_GUARD_ARGUMENTS)}), 'pg_proc') AS version, current_setting('server_version_num')::int AS server`;
  }

  /** Parameters: key, generation, owner, wait in ms, durable. Answers `ahead`: null when activated. */
  get activate(): string {
    return `SELECT ${this.activateFunction}($1, $2, $3, $4, $5) AS ahead`;
  }

  /**
   * One call per grant, for the message that begins the transaction: values are literals, escaped by the driver. `generations`:
   * where there are several grants, those of all of them as JSON, for the triggers.
   */
  guardCall(literals: {
    key: string;
    generation: number;
    owner: string;
    idleMs: number;
    generations?: string;
  }): string {
    const { key, generation, owner, idleMs, generations = 'NULL' } = literals;
    return `CALL ${this.guardProcedure}(${key}, ${generation}, ${owner}, ${idleMs}, ${generations})`;
  }

  /** The guard inside a transaction that the caller opened: no row instead of an error. Parameters: key, generation, owner, idle in ms. */
  get guardQuietly(): string {
    return `SELECT set_config('idle_in_transaction_session_timeout', $4, true), ${withGeneration('$1::text', '$2::bigint')}
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
    const rights = [this.fence, this.receipts.table].flatMap((table) =>
      ['SELECT', 'INSERT', 'UPDATE'].map(
        (right) => `has_table_privilege('${table.replaceAll("'", "''")}', '${right}')`,
      ),
    );
    rights.push(`has_table_privilege('${this.audit.replaceAll("'", "''")}', 'INSERT')`);
    const signatures = [
      `${this.activateFunction}(text, bigint, text, integer, boolean)`,
      `${this.guardProcedure}(${GUARD_ARGUMENTS})`,
      `${this.revokeFunction}(${REVOKE_ARGUMENTS})`,
    ];
    rights.push(
      ...signatures.map((name) => `has_function_privilege('${name.replaceAll("'", "''")}', 'EXECUTE')`),
    );
    return `SELECT ${rights.join(' AND ')} AS granted`;
  }

  /**
   * Raises the fence above every grant so far, with its audit. Parameters: key, generation and owner that the lease store names
   * (or null), owner that the fence names from now on, by, reason, wait in ms. Answers `superseded` and `raised`.
   */
  get revoke(): string {
    return `SELECT superseded, raised FROM ${this.revokeFunction}($1, $2, $3, $4, $5, $6, $7)`;
  }

  /** See `recordNotes`. */
  get recordNotes(): string {
    return recordNotes({ fence: this.fence, audit: this.audit });
  }

  /** Parameters: key, how many at most. */
  get readAudit(): string {
    return readAudit({ audit: this.audit });
  }

  /** Parameter: age in ms. Answers how many rows of the audit went. */
  get pruneAudit(): string {
    return `WITH gone AS (DELETE FROM ${this.audit} WHERE at < clock_timestamp() - $1::float8 * interval '1 millisecond' RETURNING 1)
SELECT count(*)::int AS pruned FROM gone`;
  }

  /** The signature of the function that the triggers call, for look-ups. */
  get admitSignature(): string {
    return `${this.admitFunction}(${ADMIT_ARGUMENTS})`;
  }
}
