import { createHash } from 'node:crypto';
import type { QueryRunner } from 'typeorm';
import { FencingConfigError } from '../core/errors.js';
import { readTemplate } from '../core/key.js';
import { checkNames, show } from '../core/options.js';
import { FencingSql } from './sql.js';
import { quoted } from './sql/names.js';
import {
  DESCRIBE_TABLE,
  FIND_FENCING_SCHEMA,
  FIND_OTHER_TABLE,
  FIND_PROTECTION,
  protectStatements,
  unprotectTriggers,
} from './sql/protection.js';

/** Options of `protectTable`. */
export interface ProtectTableOptions {
  /** The name of the generation column in the database. @default 'generation' */
  column?: string;
  /**
   * The lease key of a row, with the columns of the table (their names in the database) as its places: `'report:{customer_id}'`. A row
   * may then be written only by a transaction that holds this very key; values are escaped as `@Leased('report:{0}')` and
   * `leaseKey` escape them. Columns may be text, whole numbers, uuid, boolean or enums.
   * @default none: any row, by a transaction that stands on exactly one lease
   */
  key?: string;
  /** The schema of the package's own tables, where `typeOrmFence({ schema })` names one. @default the DataSource's own */
  fencingSchema?: string;
}

/** A trigger of the package that was found on a table. */
export interface FoundTrigger {
  readonly trigger: string;
  readonly schema: string;
  readonly function: string;
  readonly disabled: boolean;
  readonly comment: string;
}

/** Of which types the text is the same in the database and in JavaScript. */
const KEY_TYPES = ['text', 'character varying', 'smallint', 'integer', 'bigint', 'uuid', 'boolean', 'enum'];
const LONGEST_NAME_BYTES = 63;

/**
 * For migrations: from here on the table's rows can be written in fenced writes only, whoever writes them (raw SQL, psql, another
 * program, an old deployment). A trigger stamps each row with the generation that it is written under, and refuses a write without
 * one, or under one that is older than the row's; TRUNCATE is refused. May be run again, to change the options.
 *
 * ```ts
 * await protectTable(queryRunner, 'report', { key: 'report:{customer_id}' });
 * ```
 * The triggers run as the role that calls this; it needs SELECT and UPDATE on `fencing_fence`, INSERT on `fencing_audit` and EXECUTE on
 * the functions of the package. Locks the table for writes while the migration runs.
 *
 * @param table as TypeORM names it: `report`, `schema.report`; a part with a dot in double quotes
 * @throws FencingConfigError where the table, a column or the tables of the package are missing, or a column has the wrong
 * type; LeaseKeyError where the key could be none
 */
export async function protectTable(
  queryRunner: QueryRunner,
  table: string,
  options: ProtectTableOptions = {},
): Promise<void> {
  const where = `protectTable('${String(table)}')`;
  checkNames(where, options, ['column', 'key', 'fencingSchema']);
  const { column = 'generation' } = options;
  const target = targetOf(where, queryRunner, table);
  const columns = await query<Described>(queryRunner, DESCRIBE_TABLE, [target]);
  const [first] = columns;
  if (!first || !['r', 'p'].includes(first.kind)) {
    throw new FencingConfigError(
      `${where}: there is no table ${target}. Create it first, in the same migration.`,
    );
  }
  checkStamp(where, columns, column);
  const key = readKey(where, columns, options.key);
  const fencingSchema = await findFencingSchema(where, queryRunner, options.fencingSchema);
  const functionName = functionNameOf(first.table);
  const signature = `${quoted(first.schema)}.${quoted(functionName)}()`;
  const [other] = await query<{ name: string }>(queryRunner, FIND_OTHER_TABLE, [signature, target]);
  if (other) {
    throw new FencingConfigError(
      `${where}: the function ${functionName} still serves the table ${other.name}, which was renamed. Call unprotectTable for it, and protectTable again.`,
    );
  }
  const { schema, table: name } = first;
  for (const statement of protectStatements({
    schema,
    table: name,
    column,
    key,
    fencingSchema,
    functionName,
  }))
    await queryRunner.query(statement);
}

/**
 * For migrations: removes what `protectTable` installed. The column and its stamps stay. Does nothing to a table that is not
 * protected: `await unprotectTable(queryRunner, 'report')`.
 * @throws FencingConfigError where the table is missing
 */
export async function unprotectTable(queryRunner: QueryRunner, table: string): Promise<void> {
  const where = `unprotectTable('${String(table)}')`;
  const target = targetOf(where, queryRunner, table);
  if ((await query(queryRunner, DESCRIBE_TABLE, [target])).length === 0)
    throw new FencingConfigError(`${where}: there is no table ${target}.`);
  const found = await query<FoundTrigger>(queryRunner, FIND_PROTECTION, [target]);
  if (found.length === 0) return;
  const functions = new Set(found.map((one) => `${quoted(one.schema)}.${quoted(one.function)}()`));
  for (const statement of unprotectTriggers(target)) await queryRunner.query(statement);
  for (const one of functions) await queryRunner.query(`DROP FUNCTION ${one}`);
}

// ------------------------------------------------------------------------------------------------------------- parts

interface Described {
  readonly schema: string;
  readonly table: string;
  readonly kind: string;
  readonly column: string;
  readonly type: string;
  readonly generated: boolean;
}

/** The quoted name of a table; without a schema in it, that of the DataSource, as TypeORM has it. */
function targetOf(where: string, queryRunner: QueryRunner, table: unknown): string {
  const part = '"(?:[^"]|"")+"|[^".]+';
  const match =
    typeof table === 'string' &&
    !table.includes('\0') &&
    new RegExp(`^(?:(${part})\\.)?(${part})$`).exec(table);
  if (!match) {
    throw new FencingConfigError(
      `${where}: the table must be its name, or schema.name; a part with a dot in double quotes. Got ${show(table)}.`,
    );
  }
  const plain = (name: string) => (name.startsWith('"') ? name.slice(1, -1).replaceAll('""', '"') : name);
  const schema = match[1] === undefined ? schemaOf(queryRunner) : plain(match[1]);
  return (schema === undefined ? '' : `${quoted(schema)}.`) + quoted(plain(match[2]!));
}

function checkStamp(where: string, columns: readonly Described[], column: string): void {
  const stamp = columns.find((one) => one.column === column);
  if (stamp?.type === 'bigint' && !stamp.generated) return;
  throw new FencingConfigError(
    stamp
      ? `${where}: the column ${column} must be bigint and not computed, it is ${stamp.generated ? 'computed' : stamp.type}.`
      : `${where}: the table has no column ${column}. Add @GenerationColumn() to the entity (ALTER TABLE … ADD COLUMN ${column} bigint NOT NULL DEFAULT 0), or say which: { column: '…' }.`,
  );
}

function readKey(where: string, columns: readonly Described[], key: string | undefined) {
  if (key === undefined) return undefined;
  if (typeof key !== 'string')
    throw new FencingConfigError(
      `${where}: key must be a text such as 'report:{customer_id}', got ${show(key)}.`,
    );
  const { texts, places } = readTemplate(where, key, (place) => {
    const column = columns.find((one) => one.column === place);
    if (!column)
      throw new FencingConfigError(
        `${where}: {${place}} of the key is no column of the table (names as in the database).`,
      );
    if (!KEY_TYPES.includes(column.type) || column.generated)
      throw new FencingConfigError(
        `${where}: {${place}} of the key is ${column.generated ? 'computed by the database after triggers have run' : `of type ${column.type}, whose text is not the same everywhere`}. ` +
          `A key may have columns of the types ${KEY_TYPES.join(', ')}.`,
      );
  });
  return { template: key, texts, columns: places };
}

async function findFencingSchema(where: string, queryRunner: QueryRunner, schema: unknown): Promise<string> {
  if (schema !== undefined && (typeof schema !== 'string' || schema === ''))
    throw new FencingConfigError(
      `${where}: fencingSchema must be the name of a schema, got ${show(schema)}.`,
    );
  const sql = new FencingSql(schema ?? schemaOf(queryRunner));
  const [found] = await query<{ schema: string }>(queryRunner, FIND_FENCING_SCHEMA, [sql.admitSignature]);
  if (found) return found.schema;
  throw new FencingConfigError(
    `${where}: the tables of nestjs-fencing are missing in ${schema === undefined ? "the DataSource's schema" : schema}, or older than this version. ` +
      'Run fencingMigrations first; where they are in a schema of their own, name it: { fencingSchema: … }.',
  );
}

/** One function for each table, so that it names its columns: nothing is looked up per row. */
function functionNameOf(table: string): string {
  const name = `fencing_protect_${table}`;
  if (Buffer.byteLength(name) <= LONGEST_NAME_BYTES) return name;
  return `fencing_protect_${createHash('sha256').update(table).digest('hex').slice(0, 32)}`;
}

function schemaOf(queryRunner: QueryRunner): string | undefined {
  // `connection` until TypeORM 0.3, `dataSource` since 1.0.
  const { dataSource, connection } = queryRunner as unknown as Record<
    'dataSource' | 'connection',
    { options: { schema?: string } } | undefined
  >;
  return (dataSource ?? connection)!.options.schema;
}

async function query<Row>(queryRunner: QueryRunner, text: string, parameters: unknown[]): Promise<Row[]> {
  return (await queryRunner.query(text, parameters)) as Row[];
}
