/**
 * All SQL of the lease store in PostgreSQL: the steps of its contract (see `core/lease-store.ts`) as functions of the server.
 *
 * Why a step is atomic, in three sentences. A request is one autocommit statement, which first takes the locks of the buckets that
 * its keys belong to, in the order of their numbers, and keeps them to its commit: so two requests never wait for each other in a
 * ring, and the steps of one bucket come one after the other. A volatile PL/pgSQL function takes a new snapshot for each statement
 * (under READ COMMITTED, which the functions demand), so a step sees what the one before it committed. Nothing in it waits for
 * a client, so no lock outlives the statement, whatever becomes of the process that sent it.
 *
 * The tables are UNLOGGED: nothing waits for the disk, and a crash of the server empties them. Like any loss of a lease store that
 * costs the running leases, and nothing else: the next generation is above all earlier ones by the clock, or by the fence's floor.
 *
 * Where the fence is in the same database, a request may also activate what it grants. That is a second transaction of the same
 * request (`fencing_lease_take`): the first one has committed and let go of the buckets, so the fence's wait for the disk, or for a
 * replica, keeps nobody else waiting; and a fence that cannot be raised at once is left to an activation of its own.
 */

import { literal, quoted } from '../sql/names.js';

/** Raised with every change of the functions or tables, and compared at boot. */
export const LEASE_SCHEMA_VERSION = 'nestjs-fencing leases 2';

/** Raised where a function is called in another isolation than READ COMMITTED. */
export const ISOLATION_SQLSTATE = 'NF002';

/** The first number of the advisory locks of the buckets; the second is the bucket. */
const BUCKET_LOCKS = 0x6e_66_6c_73;
/** Less than a request may take. */
const LOCK_WITHIN_MS = 1_500;
/** How long an activation in the request of its grant waits for the fence's row: hardly, other steps wait behind it. */
const ACTIVATE_WITHIN_MS = 1;
/** A row is removed this long after its end: a step that has just looked at it may still be at work. */
const SWEEP_GRACE = `interval '1 second'`;

/** The SQL for one schema; without one, names are left to the connection's search_path. */
export class LeaseSql {
  private readonly lease: string;
  private readonly counter: string;

  constructor(readonly schema?: string) {
    this.lease = this.named('fencing_lease');
    this.counter = this.named('fencing_lease_counter');
  }

  /** Parameter: the schema. A row is answered if it exists. */
  readonly findSchema = 'SELECT 1 FROM pg_namespace WHERE nspname = $1';

  /** Even where it exists this needs a privilege on the database. */
  get createSchema(): string {
    return `CREATE SCHEMA IF NOT EXISTS ${quoted(this.schema!)}`;
  }

  /** Statements that create the tables and functions; each may be run again. */
  get create(): string[] {
    return [
      `CREATE UNLOGGED TABLE IF NOT EXISTS ${this.lease} (
  key text PRIMARY KEY,
  owner text,
  generation bigint NOT NULL,
  expires_at timestamptz NOT NULL,
  kept_for text,
  waiters text[] NOT NULL DEFAULT '{}',
  waiters_until timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 70)`,
      `COMMENT ON TABLE ${this.lease} IS 'nestjs-fencing: leases, and the processes that wait for them. May be emptied at any time: running leases are then lost.'`,
      `CREATE UNLOGGED TABLE IF NOT EXISTS ${this.counter} (
  bucket integer PRIMARY KEY,
  last bigint NOT NULL
) WITH (fillfactor = 50)`,
      `COMMENT ON TABLE ${this.counter} IS 'nestjs-fencing: the last generation issued for each bucket of keys. May be emptied at any time.'`,
      this.lockFunction,
      this.issueFunction,
      this.grantFunction,
      this.enqueueFunction,
      this.serveFunction,
      this.acquireFunction,
      this.releaseFunction,
      this.withdrawFunction,
      this.stepsFunction,
      this.takeProcedure,
      this.renewFunction,
      this.sweepFunction,
      `COMMENT ON FUNCTION ${this.named('fencing_lease_steps')}(jsonb) IS '${LEASE_SCHEMA_VERSION}'`,
    ];
  }

  /** Statements that remove everything again. */
  get drop(): string[] {
    return [
      ...Object.entries(SIGNATURES).map(
        ([name, types]) => `DROP ROUTINE IF EXISTS ${this.named(name)}(${types})`,
      ),
      `DROP TABLE IF EXISTS ${this.counter}`,
      `DROP TABLE IF EXISTS ${this.lease}`,
    ];
  }

  /** The version of what is installed, or null, and what the server is. Parameters: none. */
  get installed(): string {
    const steps = literal(`${this.named('fencing_lease_steps')}(jsonb)`);
    return `SELECT obj_description(to_regprocedure(${steps}), 'pg_proc') AS version, current_setting('server_version_num')::int AS server, current_setting('transaction_isolation') AS isolation`;
  }

  /** Whether the user may do all that is needed. Parameters: none. */
  get privileges(): string {
    const rights = [this.lease, this.counter].flatMap((table) =>
      ['SELECT', 'INSERT', 'UPDATE', 'DELETE'].map(
        (right) => `has_table_privilege(${literal(table)}, '${right}')`,
      ),
    );
    const functions = Object.entries(SIGNATURES).map(
      ([name, types]) => `has_function_privilege(${literal(`${this.named(name)}(${types})`)}, 'EXECUTE')`,
    );
    return `SELECT ${[...rights, ...functions].join(' AND ')} AS granted`;
  }

  /** Parameter: the steps, as a JSON array. Answers `answers`: a JSON array, one answer for each step. */
  get steps(): string {
    return `SELECT ${this.named('fencing_lease_steps')}($1::jsonb)::text AS answers`;
  }

  /**
   * The same, and grants whose step says `activate` are activated. Parameters: the steps, the fence's function that activates (its
   * name as SQL), whether activations wait for the disk. Not inside a transaction.
   */
  get take(): string {
    return `CALL ${this.named('fencing_lease_take')}($1::jsonb, $2, $3, NULL)`;
  }

  /** Parameters: keys, owners, ttls in ms, buckets. Answers `answers`: a JSON array of booleans, in order. */
  get renew(): string {
    return `SELECT array_to_json(${this.named('fencing_lease_renew')}($1, $2, $3, $4))::text AS answers`;
  }

  /** Parameter: how many rows at most. Answers `removed`. */
  get sweep(): string {
    return `SELECT ${this.named('fencing_lease_sweep')}($1) AS removed`;
  }

  /** Parameter: key. Answers `owner`, `generation`, `remaining_ms` of a lease that is held. */
  get inspect(): string {
    return `SELECT l.owner, l.generation::text AS generation, ${remainingMs('l.expires_at', 'clock_timestamp()')}::text AS remaining_ms
FROM ${this.lease} l WHERE l.key = $1 AND l.owner IS NOT NULL AND l.expires_at > clock_timestamp()`;
  }

  /** Which function and table of which server have these names. Parameters: signature of the function, name of the table. */
  readonly findFence = `SELECT (SELECT d.oid::text FROM pg_database d WHERE d.datname = current_database()) AS database,
extract(epoch FROM pg_postmaster_start_time())::text AS server, to_regprocedure($1)::oid::text AS activate, to_regclass($2)::oid::text AS fence`;

  // -------------------------------------------------------------------------------------------------------- functions

  private get lockFunction(): string {
    return this.fn(
      'fencing_lease_lock',
      'p_buckets integer[]',
      'void',
      `DECLARE
  v_bucket integer;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = '${ISOLATION_SQLSTATE}', MESSAGE = 'leases need READ COMMITTED, this session runs in ' || current_setting('transaction_isolation');
  END IF;
  -- Whoever asked has given up by then; the session must not stay in line for a lock that somebody holds by hand.
  PERFORM set_config('lock_timeout', '${LOCK_WITHIN_MS}', true);
  FOR v_bucket IN SELECT DISTINCT b FROM unnest(p_buckets) AS b ORDER BY b LOOP
    PERFORM pg_advisory_xact_lock(${BUCKET_LOCKS}, v_bucket);
  END LOOP;
END`,
    );
  }

  /** The next generation of a bucket: max(last issued + 1, clock in microseconds, floor + 1); null past 2^53 - 1. */
  private get issueFunction(): string {
    return this.fn(
      'fencing_lease_issue',
      'p_bucket integer, p_floor bigint',
      'bigint',
      `DECLARE
  v_generation bigint;
BEGIN
  SELECT c.last + 1 INTO v_generation FROM ${this.counter} c WHERE c.bucket = p_bucket;
  v_generation := greatest(v_generation, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, p_floor + 1);
  IF v_generation > 9007199254740991 THEN
    RETURN NULL;
  END IF;
  INSERT INTO ${this.counter} AS c (bucket, last) VALUES (p_bucket, v_generation)
    ON CONFLICT (bucket) DO UPDATE SET last = excluded.last;
  RETURN v_generation;
END`,
    );
  }

  /** Grants the lease under a new generation, whatever was there. Null past 2^53 - 1: nothing has changed then. */
  private get grantFunction(): string {
    return this.fn(
      'fencing_lease_grant',
      'p_bucket integer, p_key text, p_owner text, p_ttl_ms float8, p_floor bigint, p_waiter text',
      'bigint',
      `DECLARE
  v_generation bigint := ${this.named('fencing_lease_issue')}(p_bucket, p_floor);
BEGIN
  IF v_generation IS NULL THEN
    RETURN NULL;
  END IF;
  INSERT INTO ${this.lease} AS l (key, owner, generation, expires_at)
    VALUES (p_key, p_owner, v_generation, clock_timestamp() + p_ttl_ms * interval '1 ms')
    ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, generation = excluded.generation, expires_at = excluded.expires_at,
      kept_for = NULL, waiters = array_remove(l.waiters, p_waiter);
  RETURN v_generation;
END`,
    );
  }

  private get enqueueFunction(): string {
    return this.fn(
      'fencing_lease_enqueue',
      'p_key text, p_waiter text, p_for_ms float8',
      'void',
      `DECLARE
  v_now timestamptz := clock_timestamp();
BEGIN
  UPDATE ${this.lease} l SET
    waiters = CASE WHEN l.waiters_until <= v_now THEN ARRAY[p_waiter] WHEN p_waiter = ANY (l.waiters) THEN l.waiters
      ELSE l.waiters || p_waiter END,
    waiters_until = greatest(l.waiters_until, v_now + p_for_ms * interval '1 ms')
    WHERE l.key = p_key;
END`,
    );
  }

  /** Frees the lease for the first process that waits for it and is not p_except: keeps it for that one, and wakes it. */
  private get serveFunction(): string {
    return this.fn(
      'fencing_lease_serve',
      'p_key text, p_except text, p_channel text, p_keep_ms integer',
      'boolean',
      `DECLARE
  v_now timestamptz := clock_timestamp();
  v_waiters text[];
BEGIN
  SELECT l.waiters INTO v_waiters FROM ${this.lease} l WHERE l.key = p_key AND l.waiters_until > v_now;
  IF v_waiters[1] = p_except THEN
    v_waiters := v_waiters[2:];
    UPDATE ${this.lease} l SET waiters = v_waiters WHERE l.key = p_key;
  END IF;
  IF v_waiters[1] IS NULL THEN
    RETURN false;
  END IF;
  UPDATE ${this.lease} l SET owner = NULL, kept_for = v_waiters[1], expires_at = v_now + p_keep_ms * interval '1 ms', waiters = v_waiters[2:]
    WHERE l.key = p_key;
  PERFORM pg_notify(p_channel, v_waiters[1] || ' ' || p_keep_ms || ' ' || p_key);
  RETURN true;
END`,
    );
  }

  private get acquireFunction(): string {
    return this.fn(
      'fencing_lease_acquire',
      'p_step jsonb',
      'jsonb',
      `DECLARE
  v_key text := p_step->>'key';
  v_owner text := p_step->>'owner';
  v_waiter text := p_step->>'waiter';
  v_ttl_ms float8 := p_step->>'ttlMs';
  v_floor bigint := p_step->>'floor';
  v_now timestamptz := clock_timestamp();
  v_lease ${this.lease}%ROWTYPE;
  v_generation bigint;
BEGIN
  SELECT * INTO v_lease FROM ${this.lease} l WHERE l.key = v_key;
  IF v_lease.expires_at > v_now THEN
    IF v_lease.owner = v_owner AND v_lease.generation > v_floor THEN
      UPDATE ${this.lease} l SET expires_at = v_now + v_ttl_ms * interval '1 ms' WHERE l.key = v_key;
      RETURN jsonb_build_object('generation', v_lease.generation);
    ELSIF v_lease.owner IS DISTINCT FROM v_owner AND (v_lease.kept_for = v_waiter) IS NOT TRUE THEN
      IF v_waiter IS NOT NULL THEN
        PERFORM ${this.named('fencing_lease_enqueue')}(v_key, v_waiter, (p_step->>'forMs')::float8);
      END IF;
      RETURN jsonb_build_object('busyMs', ${remainingMs('v_lease.expires_at', 'v_now')});
    END IF;
  END IF;
  v_generation := ${this.named('fencing_lease_grant')}((p_step->>'bucket')::integer, v_key, v_owner, v_ttl_ms, v_floor, v_waiter);
  RETURN CASE WHEN v_generation IS NULL THEN '{"exhausted": true}' ELSE jsonb_build_object('generation', v_generation) END;
END`,
    );
  }

  private get releaseFunction(): string {
    return this.fn(
      'fencing_lease_release',
      'p_step jsonb',
      'jsonb',
      `DECLARE
  v_key text := p_step->>'key';
  v_channel text := p_step->>'channel';
  v_hold_ms bigint := p_step->>'holdMs';
  v_keep_ms integer := p_step->>'keepMs';
  v_next jsonb := p_step->'next';
  v_now timestamptz := clock_timestamp();
  v_lease ${this.lease}%ROWTYPE;
  v_generation bigint;
BEGIN
  SELECT * INTO v_lease FROM ${this.lease} l WHERE l.key = v_key;
  IF (v_lease.owner = p_step->>'owner' AND v_lease.expires_at > v_now) IS NOT TRUE THEN
    RETURN '{"held": false}';
  END IF;
  IF v_hold_ms IS NOT NULL THEN
    UPDATE ${this.lease} l SET expires_at = v_now + v_hold_ms * interval '1 ms' WHERE l.key = v_key;
    IF v_lease.waiters_until > v_now AND cardinality(v_lease.waiters) > 0 THEN
      PERFORM pg_notify(v_channel, '- ' || v_hold_ms || ' ' || v_key);
    END IF;
    RETURN '{"held": true}';
  END IF;
  IF (v_next->>'mayOvertake')::boolean IS NOT TRUE THEN
    IF ${this.named('fencing_lease_serve')}(v_key, v_next->>'waiter', v_channel, v_keep_ms) THEN
      IF v_next IS NULL THEN
        RETURN '{"held": true}';
      END IF;
      PERFORM ${this.named('fencing_lease_enqueue')}(v_key, v_next->>'waiter', (v_next->>'forMs')::float8);
      RETURN jsonb_build_object('held', true, 'waitMs', v_keep_ms);
    END IF;
  END IF;
  IF v_next IS NOT NULL THEN
    v_generation := ${this.named('fencing_lease_grant')}((p_step->>'bucket')::integer, v_key, v_next->>'owner', (v_next->>'ttlMs')::float8, 0, NULL);
    IF v_generation IS NOT NULL THEN
      RETURN jsonb_build_object('held', true, 'generation', v_generation);
    END IF;
  END IF;
  UPDATE ${this.lease} l SET expires_at = '-infinity' WHERE l.key = v_key;
  RETURN '{"held": true}';
END`,
    );
  }

  private get withdrawFunction(): string {
    return this.fn(
      'fencing_lease_withdraw',
      'p_step jsonb',
      'jsonb',
      `DECLARE
  v_key text := p_step->>'key';
  v_waiter text := p_step->>'waiter';
  v_kept boolean;
BEGIN
  UPDATE ${this.lease} l SET waiters = array_remove(l.waiters, v_waiter) WHERE l.key = v_key
    RETURNING l.kept_for = v_waiter AND l.expires_at > clock_timestamp() INTO v_kept;
  -- Nested: AND may call the function whatever the first part says.
  IF v_kept THEN
    IF NOT ${this.named('fencing_lease_serve')}(v_key, v_waiter, p_step->>'channel', (p_step->>'keepMs')::integer) THEN
      UPDATE ${this.lease} l SET expires_at = '-infinity', kept_for = NULL WHERE l.key = v_key;
    END IF;
  END IF;
  RETURN '{}';
END`,
    );
  }

  private get stepsFunction(): string {
    return this.fn(
      'fencing_lease_steps',
      'p_steps jsonb',
      'jsonb',
      `DECLARE
  v_step jsonb;
  v_answers jsonb := '[]';
BEGIN
  PERFORM ${this.named('fencing_lease_lock')}(ARRAY(SELECT (s->>'bucket')::integer FROM jsonb_array_elements(p_steps) s));
  FOR v_step IN SELECT s FROM jsonb_array_elements(p_steps) WITH ORDINALITY AS e(s, n) ORDER BY n LOOP
    v_answers := v_answers || jsonb_build_array(CASE v_step->>'do'
      WHEN 'acquire' THEN ${this.named('fencing_lease_acquire')}(v_step)
      WHEN 'release' THEN ${this.named('fencing_lease_release')}(v_step)
      WHEN 'withdraw' THEN ${this.named('fencing_lease_withdraw')}(v_step)
    END);
  END LOOP;
  RETURN v_answers;
END`,
    );
  }

  /**
   * Takes steps, and activates what was granted. The answer to a grant whose fence was raised has `activated`. Whatever keeps a
   * fence from being raised at once (its row is locked by a write of the previous owner, it is ahead, it is not there) is no error
   * here, since the grants are committed: the activation that follows waits where it must, and says what is wrong.
   */
  private get takeProcedure(): string {
    return `CREATE OR REPLACE PROCEDURE ${this.named('fencing_lease_take')}(p_steps jsonb, p_activate text, p_durable boolean, INOUT answers text)
LANGUAGE plpgsql AS $$
DECLARE
  v_claim jsonb;
  v_answers jsonb := ${this.named('fencing_lease_steps')}(p_steps);
  v_ahead bigint;
BEGIN
  -- Without a wait for the disk, and the locks of the buckets go.
  COMMIT;
  FOR i IN 0 .. jsonb_array_length(p_steps) - 1 LOOP
    -- Whom the step may have granted the key.
    v_claim := coalesce(p_steps->i->'next', p_steps->i);
    IF v_claim->'activate' = 'true' AND v_answers->i ? 'generation' THEN
      BEGIN
        EXECUTE format('SELECT %s($1, $2, $3, ${ACTIVATE_WITHIN_MS}, $4)', p_activate) INTO STRICT v_ahead
          USING p_steps->i->>'key', (v_answers->i->>'generation')::bigint, v_claim->>'owner', p_durable;
        IF v_ahead IS NULL THEN
          v_answers := jsonb_set(v_answers, ARRAY[i::text, 'activated'], 'true');
        END IF;
      EXCEPTION WHEN OTHERS THEN
        NULL;
      END;
    END IF;
  END LOOP;
  answers := v_answers::text;
END
$$`;
  }

  /** Renews for owners that still hold. Never creates a row. */
  private get renewFunction(): string {
    return this.fn(
      'fencing_lease_renew',
      'p_keys text[], p_owners text[], p_ttls float8[], p_buckets integer[]',
      'boolean[]',
      `DECLARE
  v_answers boolean[];
BEGIN
  PERFORM ${this.named('fencing_lease_lock')}(p_buckets);
  WITH wanted AS (
    SELECT * FROM unnest(p_keys, p_owners, p_ttls) WITH ORDINALITY AS w(key, owner, ttl_ms, n)
  ), renewed AS (
    UPDATE ${this.lease} l SET expires_at = clock_timestamp() + w.ttl_ms * interval '1 ms' FROM wanted w
      WHERE l.key = w.key AND l.owner = w.owner AND l.expires_at > clock_timestamp() RETURNING l.key, l.owner
  )
  SELECT array_agg(r.key IS NOT NULL ORDER BY w.n) INTO v_answers FROM wanted w LEFT JOIN renewed r ON r.key = w.key AND r.owner = w.owner;
  RETURN v_answers;
END`,
    );
  }

  /** Removes rows whose lease and waiters are over: bounded, and without waiting for anybody. */
  private get sweepFunction(): string {
    return this.fn(
      'fencing_lease_sweep',
      'p_limit integer',
      'integer',
      `DECLARE
  v_removed integer;
BEGIN
  DELETE FROM ${this.lease} l WHERE l.ctid = ANY (ARRAY(
    SELECT o.ctid FROM ${this.lease} o WHERE greatest(o.expires_at, o.waiters_until) < clock_timestamp() - ${SWEEP_GRACE}
      LIMIT p_limit FOR UPDATE SKIP LOCKED
  ));
  GET DIAGNOSTICS v_removed = ROW_COUNT;
  RETURN v_removed;
END`,
    );
  }

  private fn(name: string, parameters: string, returns: string, body: string): string {
    return `CREATE OR REPLACE FUNCTION ${this.named(name)}(${parameters})
RETURNS ${returns} LANGUAGE plpgsql VOLATILE AS $$
${body}
$$`;
  }

  private named(name: string): string {
    return this.schema === undefined ? name : `${quoted(this.schema)}.${name}`;
  }
}

/** The functions, with the types of their parameters. */
const SIGNATURES = {
  fencing_lease_sweep: 'integer',
  fencing_lease_renew: 'text[], text[], float8[], integer[]',
  fencing_lease_take: 'jsonb, text, boolean, text',
  fencing_lease_steps: 'jsonb',
  fencing_lease_withdraw: 'jsonb',
  fencing_lease_release: 'jsonb',
  fencing_lease_acquire: 'jsonb',
  fencing_lease_serve: 'text, text, text, integer',
  fencing_lease_enqueue: 'text, text, float8',
  fencing_lease_grant: 'integer, text, text, float8, bigint, text',
  fencing_lease_issue: 'integer, bigint',
  fencing_lease_lock: 'integer[]',
};

/** Whole milliseconds until `end`, at least 1. */
function remainingMs(end: string, now: string): string {
  return `greatest(1, ceil(extract(epoch FROM ${end} - ${now}) * 1000))::bigint`;
}
