import { BYPASS_HINT, GENERATIONS_SETTING, literal, PROTECTED_SQLSTATE, STALE_SQLSTATE } from './names.js';

export const ADMIT_ARGUMENTS = 'text, bigint, text, text';

/**
 * What the triggers call for a row that the guard of the transaction has not admitted already.
 *
 * Why it is safe: `admit` lets a row be written only under a generation that the fence itself names, locks that fence row like the
 * guard does, and demands that the row was never written under a higher one. So the setting alone proves nothing: one that is
 * stale or made up fails at the fence.
 */
export function createAdmission({
  fence,
  admit,
  keyPart,
}: Record<'fence' | 'admit' | 'keyPart', string>): string[] {
  return [
    // As core/key.ts escapes a value: encodeURIComponent, and the first letter of a word that JavaScript makes of a missing value.
    `CREATE OR REPLACE FUNCTION ${keyPart}(p_value text) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
  v_part text := p_value;
  v_word text;
BEGIN
  IF v_part !~ '^[-A-Za-z0-9_.!~*''()]*$' THEN
    SELECT string_agg(
        CASE WHEN c ~ '^[-A-Za-z0-9_.!~*''()]$' THEN c
          ELSE regexp_replace(upper(encode(convert_to(c, 'UTF8'), 'hex')), '(..)', E'%\\\\1', 'g') END, '' ORDER BY n)
      INTO v_part FROM regexp_split_to_table(p_value, '') WITH ORDINALITY AS characters (c, n);
  END IF;
  IF v_part ~ 'undefined|null|NaN' THEN
    FOREACH v_word IN ARRAY ARRAY['undefined', 'null', 'NaN'] LOOP
      v_part := regexp_replace(v_part, '(?<![A-Za-z0-9%])' || v_word || '(?![A-Za-z0-9%])',
        '%' || upper(encode(convert_to(left(v_word, 1), 'UTF8'), 'hex')) || substr(v_word, 2), 'g');
    END LOOP;
  END IF;
  RETURN v_part;
END
$$`,
    `CREATE OR REPLACE FUNCTION ${admit}(p_key text, p_stamp bigint, p_table text, p_template text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_setting text := nullif(current_setting('${GENERATIONS_SETTING}', true), '');
  v_generations jsonb;
  v_key text := p_key;
  v_generation bigint;
  v_current bigint;
  v_owner text;
  v_count bigint;
BEGIN
  IF v_setting LIKE '{%' THEN
    v_generations := v_setting::jsonb;
  ELSIF v_setting IS NOT NULL THEN
    -- Of a guard in another transaction, or not the key of this row.
    v_generations := jsonb_build_object(substring(v_setting from '^[0-9.]+ [0-9]+ (.*)$'), split_part(v_setting, ' ', 2)::bigint);
  END IF;
  IF v_generations IS NULL OR v_generations = '{}' THEN
    RAISE EXCEPTION USING
      ERRCODE = '${PROTECTED_SQLSTATE}',
      MESSAGE = 'protected table: a write without a generation',
      TABLE = p_table,
      HINT = 'Write ' || p_table || ' inside a fenced write' || coalesce(' under the lease ' || p_template, '') || ${literal(`. ${BYPASS_HINT}`)};
  END IF;
  IF p_template IS NULL THEN
    -- Generations of different keys are not comparable.
    SELECT min(k), count(*) INTO v_key, v_count FROM jsonb_object_keys(v_generations) k;
    IF v_count > 1 THEN
      RAISE EXCEPTION USING
        ERRCODE = '${PROTECTED_SQLSTATE}',
        MESSAGE = 'protected table: the transaction stands on several leases, and nothing says which one is the row''s',
        TABLE = p_table,
        HINT = 'Give protectTable the key of the rows of ' || p_table || ${literal(`, e.g. { key: 'report:{id}' }.`)};
    END IF;
  END IF;
  v_generation := (v_generations ->> v_key)::bigint;
  IF v_generation IS NULL THEN
    RAISE EXCEPTION USING
      ERRCODE = '${PROTECTED_SQLSTATE}',
      MESSAGE = 'protected table: the transaction does not stand on the lease of this row',
      TABLE = p_table,
      HINT = 'A row of ' || p_table || ' belongs to the lease ' || p_template || ${literal(
        ', its values escaped as leaseKey() does it. A row without a value there belongs to nobody. An update that changes them needs both leases. ',
      )} || ${literal(BYPASS_HINT)};
  END IF;
  SELECT f.generation, f.owner INTO v_current, v_owner FROM ${fence} f WHERE f.key = v_key FOR SHARE;
  IF v_current = v_generation AND coalesce(p_stamp, 0) <= v_generation THEN
    RETURN v_generation;
  END IF;
  RAISE EXCEPTION USING
    ERRCODE = '${STALE_SQLSTATE}',
    MESSAGE = 'stale generation: ' || CASE WHEN v_current = v_generation
      THEN 'the row was written under a newer one' ELSE 'the fence does not name this grant' END,
    DETAIL = coalesce(CASE WHEN v_current = v_generation THEN p_stamp ELSE v_current END::text, 'none'),
    COLUMN = coalesce(v_owner, ''),
    TABLE = p_table,
    HINT = 'A newer owner is at work. The transaction must be rolled back.';
END
$$`,
  ];
}
