import {
  BYPASS_HINT,
  BYPASS_SETTING,
  GENERATIONS_SETTING,
  literal,
  PROTECTED_SQLSTATE,
  quoted,
} from './names.js';

/** The triggers of a protected table. The name makes the row trigger the last one: what it stamps and checks is what is written. */
export const ROW_TRIGGER = 'zz_fencing_row';
export const TRUNCATE_TRIGGER = 'zz_fencing_truncate';
/** Begins the comment on a trigger function; what follows is its column and its key. */
export const TRIGGER_VERSION = 'nestjs-fencing trigger 2';

/** A table whose rows are written under the generation of a lease only. Names are not quoted yet. */
export interface ProtectedTable {
  readonly schema: string;
  readonly table: string;
  readonly column: string;
  /** The key of a row: texts and columns alternate, `texts[0] {columns[0]} texts[1] …`; without it a transaction has one lease. */
  readonly key?: {
    readonly template: string;
    readonly texts: readonly string[];
    readonly columns: readonly string[];
  };
  /** Where the package's own tables are. */
  readonly fencingSchema: string;
  readonly functionName: string;
}

/** Protects a table; may be run again, also with other settings. */
export function protectStatements(table: ProtectedTable): string[] {
  const target = `${quoted(table.schema)}.${quoted(table.table)}`;
  const trigger = `${quoted(table.schema)}.${quoted(table.functionName)}`;
  // As its owner, since whoever writes the table need not have rights on the fence; so it must not look names up where a caller says.
  return [
    `CREATE OR REPLACE FUNCTION ${trigger}() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, ${quoted(table.fencingSchema)}, pg_temp AS ${literal(triggerBody(table))}`,
    `COMMENT ON FUNCTION ${trigger}() IS ${literal(`${TRIGGER_VERSION}: ${table.column} ${table.key?.template ?? ''}`.trim())}`,
    ...unprotectTriggers(target),
    `CREATE TRIGGER ${ROW_TRIGGER} BEFORE INSERT OR UPDATE OR DELETE ON ${target} FOR EACH ROW EXECUTE FUNCTION ${trigger}()`,
    `CREATE TRIGGER ${TRUNCATE_TRIGGER} BEFORE TRUNCATE ON ${target} FOR EACH STATEMENT EXECUTE FUNCTION ${trigger}()`,
  ];
}

/** `target` is a quoted name. */
export function unprotectTriggers(target: string): string[] {
  return [ROW_TRIGGER, TRUNCATE_TRIGGER].map((name) => `DROP TRIGGER IF EXISTS ${name} ON ${target}`);
}

function triggerBody({ schema, table, column, key }: ProtectedTable): string {
  const stamp = quoted(column);
  // With their types, so that no other function of these names can be meant.
  const text = (value: string) => `${literal(value)}::text`;
  const name = text(`${schema}.${table}`);
  const rest = `${name}, ${key ? text(key.template) : 'NULL::text'}`;
  const keyOf = (row: 'NEW' | 'OLD') =>
    key
      ? key.texts
          .map(
            (one, i) =>
              (i === 0 ? '' : `fencing_key_part(${textOf(row, key.columns[i - 1]!)}) || `) + text(one),
          )
          .join(' || ')
      : 'NULL::text';
  // The setting is of the guard of this very transaction, which has locked the fence row of this key. Otherwise the fence is asked.
  const admit = (row: 'NEW' | 'OLD', stamp: string) => `
    IF v_admitted >= coalesce(${stamp}, 0)${key ? ` AND v_setting = concat_ws(' ', v_here, v_admitted, ${keyOf(row)})` : ''} THEN
      v_generation := v_admitted;
    ELSE
      v_generation := fencing_admit(${keyOf(row)}, ${stamp}, ${rest});
    END IF;`;
  const sameKey =
    key?.columns.map((one) => `${textOf('NEW', one)} = ${textOf('OLD', one)}`).join(' AND ') || 'true';
  return `
DECLARE
  v_bypass text := current_setting('${BYPASS_SETTING}', true);
  v_setting text := current_setting('${GENERATIONS_SETTING}', true);
  v_here text := txid_current_if_assigned() || '.' || 'fencing_fence'::regclass::oid;
  v_admitted bigint;
  v_generation bigint;
BEGIN
  IF v_bypass <> '' THEN
    IF fencing_bypassed(TG_OP || ' ' || ${name}, v_bypass) THEN
      IF TG_OP = 'DELETE' THEN
        RETURN OLD;
      END IF;
      RETURN NEW;
    END IF;
  END IF;
  IF TG_OP = 'TRUNCATE' THEN
    RAISE EXCEPTION USING
      ERRCODE = '${PROTECTED_SQLSTATE}',
      MESSAGE = 'protected table: it may not be truncated',
      TABLE = ${name},
      HINT = ${literal(`DELETE its rows inside a fenced write. ${BYPASS_HINT}`)};
  END IF;
  IF split_part(v_setting, ' ', 1) = v_here THEN
    v_admitted := split_part(v_setting, ' ', 2)::bigint;
  END IF;
  IF TG_OP <> 'INSERT' THEN${admit('OLD', `OLD.${stamp}`)}
    IF TG_OP = 'DELETE' THEN
      RETURN OLD;
    END IF;
    IF ${sameKey} THEN
      NEW.${stamp} := v_generation;
      RETURN NEW;
    END IF;
  END IF;
  ${admit('NEW', 'NULL::bigint').trim()}
  NEW.${stamp} := v_generation;
  RETURN NEW;
END
`;
}

/** By its bytes: a collation may hold two different texts equal. */
function textOf(row: 'NEW' | 'OLD', column: string): string {
  return `${row}.${quoted(column)}::text COLLATE "C"`;
}

// ------------------------------------------------------------------------------------------------------------- look-ups

/** Parameter: a quoted name. Schema, name and columns of the table, with what a column's text is. */
export const DESCRIBE_TABLE = `SELECT n.nspname AS schema, c.relname AS table, c.relkind AS kind, a.attname AS column,
  CASE WHEN b.typtype = 'e' THEN 'enum' ELSE format_type(b.oid, NULL) END AS type, a.attgenerated <> '' AS generated
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
WHERE c.oid = to_regclass($1)`;

/** Parameter: the quoted signature of `fencing_admit`. The schema it is found in. */
export const FIND_FENCING_SCHEMA = `SELECT n.nspname AS schema FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE p.oid = to_regprocedure($1)`;

/** Parameters: quoted signature of a trigger function, quoted name of a table. Another table that the function serves. */
export const FIND_OTHER_TABLE = `SELECT t.tgrelid::regclass::text AS name FROM pg_trigger t
WHERE t.tgfoid = to_regprocedure($1) AND t.tgrelid <> to_regclass($2)
  AND t.tgrelid NOT IN (SELECT relid FROM pg_partition_tree(to_regclass($2))) LIMIT 1`;

/** Parameter: quoted name of a table. What protects it; `disabled` where somebody switched a trigger off. */
export const FIND_PROTECTION = `SELECT t.tgname AS trigger, n.nspname AS schema, p.proname AS function, t.tgenabled NOT IN ('O', 'A') AS disabled,
  coalesce(obj_description(p.oid, 'pg_proc'), '') AS comment
FROM pg_trigger t
JOIN pg_proc p ON p.oid = t.tgfoid
JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE t.tgrelid = to_regclass($1) AND t.tgname IN ('${ROW_TRIGGER}', '${TRUNCATE_TRIGGER}')`;
