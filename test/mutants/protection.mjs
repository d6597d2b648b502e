// Mechanisms of protected tables, of the way round them, and of revocation, each taken out. See scripts/mutants.mjs.

const typeorm = 'libs/fencing/src/typeorm/';
const sql = `${typeorm}sql.ts`;
const names = `${typeorm}sql/names.ts`;
const admission = `${typeorm}sql/admission.ts`;
const protection = `${typeorm}sql/protection.ts`;
const audit = `${typeorm}sql/audit.ts`;
const helper = `${typeorm}protect-table.ts`;
const boot = `${typeorm}trigger-check.ts`;
const failures = `${typeorm}failures.ts`;
const service = 'libs/fencing/src/nest/fencing.service.ts';

/** @param {string} title */
const tables = (title) => ({ test: 'protected-tables', title });
/** @param {string} title */
const migration = (title) => ({ test: 'protect-table', title });
/** @param {string} title */
const revocation = (title) => ({ test: 'revocation', title });

/** @type {import('../../scripts/mutants.mjs').Mutant[]} */
export default [
  // ----------------------------------------------------------------------------------- the generation of a transaction
  {
    invariant: 'a fenced write brings its generation along',
    file: sql,
    from: `concat_ws(' ', txid_current() || '.' || f.tableoid, p_generation, p_key)`,
    to: `''`,
    ...tables('UPDATE is accepted, and stamped'),
  },
  {
    invariant: 'a fenced write inside a transaction of the application brings its generation along',
    file: sql,
    from: `, true), \${withGeneration('$1::text', '$2::bigint')}`,
    to: `, true)`,
    ...tables('stays in a transaction of the application'),
  },
  {
    invariant: 'what the guard has admitted ends with its transaction',
    file: sql,
    from: `p_generation, p_key)), true),`,
    to: `p_generation, p_key)), false),`,
    ...tables('ends with it: the next one on the same connection'),
  },
  {
    invariant: 'the generation ends with its transaction',
    file: names,
    from: `))::text, true)\`;`,
    to: `))::text, false)\`;`,
    ...tables('ends with it: the next one on the same connection'),
  },
  {
    invariant: 'a transaction has the generations of all its leases',
    file: names,
    from: `(\${known} || jsonb_build_object(\${key}, \${generation}))`,
    to: `('{}'::jsonb || jsonb_build_object(\${key}, \${generation}))`,
    ...tables('each row is stamped with the generation of its own key'),
  },
  {
    invariant: 'a fenced write brings the generations of all its keys along',
    file: 'libs/fencing/src/typeorm/guard-message.ts',
    from: `Object.fromEntries(grants.map(`,
    to: `Object.fromEntries(grants.slice(-1).map(`,
    ...tables('each row is stamped with the generation of its own key'),
  },
  // -------------------------------------------------------------------------------------------- what the trigger demands
  {
    invariant: 'I2: the trigger holds the generation against the fence',
    file: admission,
    from: `IF v_current = v_generation AND coalesce(p_stamp, 0) <= v_generation THEN`,
    to: `IF coalesce(p_stamp, 0) <= v_generation THEN`,
    ...tables('where nothing guards the transaction|where the transaction guard is taken out'),
  },
  {
    invariant: 'I1: no row is written under an older generation than its own',
    file: admission,
    from: `IF v_current = v_generation AND coalesce(p_stamp, 0) <= v_generation THEN`,
    to: `IF v_current = v_generation THEN`,
    ...tables('a row that carries a newer generation is refused'),
  },
  {
    invariant: 'I3: the trigger locks the fence row to the end of the transaction',
    file: admission,
    from: `WHERE f.key = v_key FOR SHARE;`,
    to: `WHERE f.key = v_key;`,
    ...tables('activation waiting'),
  },
  {
    invariant: 'generations of different keys are not compared',
    file: admission,
    from: `IF v_count > 1 THEN`,
    to: `IF v_count > 9 THEN`,
    ...tables('takes one lease only'),
  },
  {
    invariant: 'a row belongs to the lease of its key',
    file: admission,
    from: `v_generation := (v_generations ->> v_key)::bigint;`,
    to: `SELECT min(k) INTO v_key FROM jsonb_object_keys(v_generations) k; v_generation := (v_generations ->> v_key)::bigint;`,
    ...tables('of another key is refused'),
  },
  {
    invariant: 'what the guard has admitted counts in its own transaction only',
    file: protection,
    from: `IF split_part(v_setting, ' ', 1) = v_here THEN`,
    to: `IF v_setting NOT LIKE '{%' THEN v_here := split_part(v_setting, ' ', 1);`,
    ...tables('left over from the guard of another transaction'),
  },
  {
    invariant: 'what the guard of one fence has admitted does not count at the tables of another',
    file: protection,
    from: `IF split_part(v_setting, ' ', 1) = v_here THEN`,
    to: `IF split_part(split_part(v_setting, ' ', 1), '.', 1) = split_part(v_here, '.', 1) THEN v_here := split_part(v_setting, ' ', 1);`,
    ...tables('of one fence does not count'),
  },
  {
    invariant: 'what the guard has admitted are the rows of its key',
    file: protection,
    from: `\${key ? \` AND v_setting = concat_ws(' ', v_here, v_admitted, \${keyOf(row)})\` : ''}`,
    to: ``,
    ...tables('of another key is refused'),
  },
  {
    invariant: 'I1: what the guard has admitted is not written over what a newer owner wrote',
    file: protection,
    from: `IF v_admitted >= coalesce(\${stamp}, 0)`,
    to: `IF v_admitted >= 0`,
    ...tables('a row that carries a newer generation is refused'),
  },
  {
    invariant: 'an update is stamped',
    file: protection,
    from: `IF \${sameKey} THEN
      NEW.\${stamp} := v_generation;`,
    to: `IF \${sameKey} THEN`,
    ...tables('UPDATE is accepted, and stamped'),
  },
  {
    invariant: 'an insert is stamped, whatever it says itself',
    file: protection,
    from: `\${admit('NEW', 'NULL::bigint').trim()}
  NEW.\${stamp} := v_generation;`,
    to: `\${admit('NEW', 'NULL::bigint').trim()}`,
    ...tables('INSERT with a stamp of its own is accepted'),
  },
  {
    invariant: 'a row that changes its key needs the lease of the new key',
    file: protection,
    from: `.join(' AND ') || 'true';`,
    to: `.join(' AND ') && 'true';`,
    ...tables('a row that changes its key needs'),
  },
  {
    invariant: 'a row that changes its key needs the lease of the old key',
    file: protection,
    from: `IF TG_OP <> 'INSERT' THEN`,
    to: `IF TG_OP = 'DELETE' THEN`,
    ...tables('a row that changes its key needs'),
  },
  {
    invariant: 'the keys of a row are compared by their bytes',
    file: protection,
    from: `::text COLLATE "C"\`;`,
    to: `\`;`,
    ...migration('where a collation holds two texts equal'),
  },
  {
    invariant: 'a delete is a write',
    file: protection,
    from: `BEFORE INSERT OR UPDATE OR DELETE ON`,
    to: `BEFORE INSERT OR UPDATE ON`,
    ...tables('DELETE on another pool'),
  },
  {
    invariant: 'a protected table is not truncated',
    file: protection,
    from: `IF TG_OP = 'TRUNCATE' THEN`,
    to: `IF TG_OP = 'TRUNCATE' THEN RETURN NULL;`,
    ...tables('TRUNCATE on another pool|cannot be truncated'),
  },
  {
    invariant: 'the trigger works for roles without rights on the fence',
    file: protection,
    from: `SECURITY DEFINER`,
    to: ``,
    ...tables('a role that has no rights on the fence'),
  },
  {
    invariant: 'the trigger looks names up where its owner says, not where its caller does',
    file: protection,
    from: `SET search_path = pg_catalog, \${quoted(table.fencingSchema)}, pg_temp AS`,
    to: `AS`,
    ...migration('whatever the search path of the writer'),
  },
  {
    invariant: 'the row trigger comes after all others',
    file: protection,
    from: `'zz_fencing_row'`,
    to: `'aa_fencing_row'`,
    ...migration('sees what other triggers'),
  },
  {
    invariant: 'a value is escaped in the database as in a method: special characters',
    file: admission,
    from: `IF v_part !~ '^[-A-Za-z0-9_.!~*''()]*$' THEN`,
    to: `IF v_part ~ '%' THEN`,
    ...migration('as core/key.ts escapes it'),
  },
  {
    invariant: 'a value is escaped in the database as in a method: words of missing values',
    file: admission,
    from: `IF v_part ~ 'undefined|null|NaN' THEN`,
    to: `IF v_part ~ 'undefined|null' THEN`,
    ...migration('as core/key.ts escapes it'),
  },
  {
    invariant: 'a refusal of the trigger in a fenced write has a type of its own',
    file: failures,
    from: `if (sqlStateOf(error) !== PROTECTED_SQLSTATE) return undefined;`,
    to: `return undefined;`,
    ...tables('of another key is refused|cannot be truncated'),
  },
  // -------------------------------------------------------------------------------------------------------- protectTable
  {
    invariant: 'two long names do not share a trigger function',
    file: helper,
    from: `if (Buffer.byteLength(name) <= LONGEST_NAME_BYTES) return name;`,
    to: `return name;`,
    ...migration('as long as names can be'),
  },
  {
    invariant: 'the trigger function of a renamed table is not replaced',
    file: helper,
    from: `if (other) {`,
    to: `if (other && !other) {`,
    ...migration('renamed later'),
  },
  {
    invariant: 'unprotectTable leaves nothing behind',
    file: helper,
    from: `for (const one of functions) await queryRunner.query(\`DROP FUNCTION \${one}\`);`,
    to: `void functions;`,
    ...migration('comes and goes'),
  },
  {
    invariant: 'a key is made of columns whose text is the same everywhere',
    file: helper,
    from: `if (!KEY_TYPES.includes(column.type) || column.generated)`,
    to: `if (column.generated)`,
    ...migration('a place of type'),
  },
  {
    invariant: 'the boot names tables without their trigger',
    file: boot,
    from: `if (!row) return 'has a @GenerationColumn() and no trigger';`,
    to: `if (!row) return undefined;`,
    ...migration('named in one warning'),
  },
  {
    invariant: 'the boot names triggers that are switched off',
    file: protection,
    from: `t.tgenabled NOT IN ('O', 'A') AS disabled`,
    to: `false AS disabled`,
    ...migration('switched off'),
  },
  {
    invariant: 'missingTriggers: fail stops the boot',
    file: boot,
    from: `if (missingTriggers === 'warn') return [finding];`,
    to: `return [finding];`,
    ...migration('missingTriggers: fail'),
  },
  // ------------------------------------------------------------------------------------------------------ the way round
  {
    invariant: 'the way round needs a reason',
    file: audit,
    from: `IF btrim(p_reason, E' \\\\t\\\\r\\\\n') = '' THEN`,
    to: `IF p_reason = '' THEN`,
    ...tables('needs a reason'),
  },
  {
    invariant: 'the way round is audited',
    file: audit,
    from: `INSERT INTO \${audit} (kind, by, reason, action) VALUES ('bypassed', \${ACTING_ROLE}, p_reason, p_action) ON CONFLICT DO NOTHING;`,
    to: ``,
    ...tables('with a reason works'),
  },
  {
    invariant: 'a bulk write past the trigger is one row of the audit',
    file: audit,
    from: `CREATE UNIQUE INDEX IF NOT EXISTS`,
    to: `CREATE INDEX IF NOT EXISTS`,
    ...tables('is audited once for each'),
  },
  {
    invariant: 'the audit names the role that wrote, not the owner of the trigger',
    file: names,
    from: `\`coalesce(nullif(current_setting('role', true), 'none'), session_user::text)\``,
    to: `\`current_user::text\``,
    ...tables('a role that has no rights on the fence'),
  },
  // --------------------------------------------------------------------------------------------------------- revocation
  {
    invariant: 'a revocation is audited, or does not happen',
    file: audit,
    from: `VALUES ('revoked', p_key, superseded, v_owner, raised, coalesce(p_by, \${ACTING_ROLE}), p_reason);`,
    to: `SELECT 'revoked', p_key, superseded, v_owner, raised, coalesce(p_by, \${ACTING_ROLE}), p_reason WHERE p_reason IS NULL;`,
    ...revocation('neither happens without the other|who, why, when'),
  },
  {
    invariant: 'a grant that the database has not seen is superseded (a key without a fence)',
    file: audit,
    from: `raised := coalesce(p_generation, 0) + 1;`,
    to: `raised := 1;`,
    ...revocation('the database has not seen yet'),
  },
  {
    invariant: 'a grant that the database has not seen is superseded (a key with one)',
    file: audit,
    from: `greatest(f.generation, p_generation)`,
    to: `f.generation`,
    ...revocation('also where it knows an older one'),
  },
  {
    invariant: 'two revocations at once are two',
    file: audit,
    from: `FROM \${fence} f WHERE f.key = p_key FOR UPDATE;`,
    to: `FROM \${fence} f WHERE f.key = p_key;`,
    ...revocation('by ten at once'),
  },
  {
    invariant: 'a revocation does not wait for ever',
    file: audit,
    from: `PERFORM set_config('lock_timeout', p_wait_ms::text, true);`,
    to: `PERFORM set_config('lock_timeout', '20s', true);`,
    ...revocation('one that does not end is named'),
  },
  {
    invariant: 'a revoked key is free at once',
    file: service,
    from: `if (held) await store.release({ key, owner: held.owner });`,
    to: ``,
    ...revocation('only freed|at the next renewal'),
  },
  {
    invariant: 'a silent lease store does not keep the fence from being raised',
    file: service,
    from: `const [asked] = await Promise.allSettled([store.inspect(key)]);`,
    to: `const [asked] = await Promise.allSettled([store.inspect(key)]); if (asked.status === 'rejected') throw asked.reason;`,
    ...revocation('while the lease store is silent'),
  },
  {
    invariant: 'pruning the audit goes by age',
    file: sql,
    from: `WHERE at < clock_timestamp() - $1::float8 * interval '1 millisecond'`,
    to: `WHERE $1::float8 IS NOT NULL`,
    ...revocation('goes by age'),
  },
];
