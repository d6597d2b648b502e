import { ACTING_ROLE } from './names.js';

export const REVOKE_ARGUMENTS = 'text, bigint, text, text, text, text, integer';

/** What the audit is made of, for one schema. */
export interface AuditNames {
  readonly fence: string;
  readonly audit: string;
  readonly auditIndexes: readonly [byTime: string, bypasses: string, byKey: string];
  readonly revoke: string;
  readonly bypassed: string;
}

/**
 * The audit: what was done to the fence, or past it, by hand, and what became of writes. Kinds are `revoked` (a key was taken from its
 * holder), `bypassed` (a transaction wrote a protected table with `fencing.bypass`: one row for each table, command and reason),
 * `stale` (a write was refused; `superseded_by` is what the fence named, `by` its owner) and `unknown` (a commit without an answer).
 */
export function createAudit({ fence, audit, auditIndexes, revoke, bypassed }: AuditNames): string[] {
  const [byTime, bypasses, byKey] = auditIndexes;
  return [
    `CREATE TABLE IF NOT EXISTS ${audit} (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT now(),
  kind text NOT NULL,
  key text,
  generation bigint,
  owner text,
  superseded_by bigint,
  superseded_at timestamptz,
  by text,
  reason text,
  action text,
  transaction bigint NOT NULL DEFAULT txid_current()
)`,
    `COMMENT ON TABLE ${audit} IS 'nestjs-fencing: keys that were revoked, writes that were refused or are unknown, and writes past the triggers of protected tables. Prune it with FencingService.pruneAudit.'`,
    `CREATE INDEX IF NOT EXISTS ${byTime} ON ${audit} (at)`,
    `CREATE INDEX IF NOT EXISTS ${byKey} ON ${audit} (key, id) WHERE key IS NOT NULL`,
    // A bulk write past the triggers is one row here, not one for each of its rows.
    `CREATE UNIQUE INDEX IF NOT EXISTS ${bypasses} ON ${audit} (transaction, at, action, md5(reason)) WHERE kind = 'bypassed'`,
    `CREATE OR REPLACE FUNCTION ${bypassed}(p_action text, p_reason text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF btrim(p_reason, E' \\t\\r\\n') = '' THEN
    RETURN false;
  END IF;
  INSERT INTO ${audit} (kind, by, reason, action) VALUES ('bypassed', ${ACTING_ROLE}, p_reason, p_action) ON CONFLICT DO NOTHING;
  RETURN true;
END
$$`,
    // The raise and its audit are one statement: neither is ever without the other.
    `CREATE OR REPLACE FUNCTION ${revoke}(p_key text, p_generation bigint, p_owner text, p_revoker text, p_by text, p_reason text, p_wait_ms integer,
  OUT superseded bigint, OUT raised bigint) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_owner text := p_owner;
BEGIN
  PERFORM set_config('lock_timeout', p_wait_ms::text, true);
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  superseded := p_generation;
  raised := coalesce(p_generation, 0) + 1;
  INSERT INTO ${fence} (key, generation, owner) VALUES (p_key, raised, p_revoker) ON CONFLICT (key) DO NOTHING;
  IF NOT FOUND THEN
    SELECT f.generation, CASE WHEN f.generation < p_generation THEN p_owner ELSE f.owner END, greatest(f.generation, p_generation)
      INTO STRICT raised, v_owner, superseded FROM ${fence} f WHERE f.key = p_key FOR UPDATE;
    raised := superseded + 1;
    UPDATE ${fence} f SET generation = raised, owner = p_revoker, activated_at = clock_timestamp() WHERE f.key = p_key;
  END IF;
  INSERT INTO ${audit} (kind, key, generation, owner, superseded_by, by, reason)
    VALUES ('revoked', p_key, superseded, v_owner, raised, coalesce(p_by, ${ACTING_ROLE}), p_reason);
END
$$`,
  ];
}

/** Limits of the transaction that keeps notes. Parameters, in ms: of a statement, of the wait for a lock. */
export const AUDIT_LIMITS = `SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true)`;

/**
 * Keeps notes of writes. Parameters, arrays of one length: kind, key, generation, owner, the newer generation or null, the method, age
 * in ms. Who superseded the write, and since when, is read from the fence, unless that has moved on.
 */
export function recordNotes({ fence, audit }: Pick<AuditNames, 'fence' | 'audit'>): string {
  return `INSERT INTO ${audit} (kind, key, generation, owner, superseded_by, action, at, by, superseded_at)
SELECT n.kind, n.key, n.generation, n.owner, n.current, n.action, clock_timestamp() - n.age * interval '1 millisecond', f.owner, f.activated_at
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::bigint[], $6::text[], $7::float8[])
  AS n(kind, key, generation, owner, current, action, age)
LEFT JOIN ${fence} f ON f.key = n.key AND f.generation = n.current`;
}

/** What is kept of a key, newest first. Parameters: key, how many at most. */
export function readAudit({ audit }: Pick<AuditNames, 'audit'>): string {
  return `SELECT kind, at, key, generation, owner, superseded_by, superseded_at, by, reason, action FROM ${audit}
WHERE key = $1 ORDER BY id DESC LIMIT $2`;
}
