import pg from 'pg';
import { FencingSql } from '../../libs/fencing/src/typeorm/sql.js';

/** What may be taken out of the fence, to see that the checker notices. */
export type Without = 'fence' | 'activation' | 'guard-lock';

/** One committed write of one key. `seq` counts under the lock of the key's row: it is the order of the commits. */
export interface LogRow {
  readonly key: string;
  readonly seq: number;
  readonly attempt: string;
  readonly generation: number;
  readonly owner: string;
  /** The newest `seq` that the call read after its lease was activated. */
  readonly readSeq: number;
  readonly field: 'value' | 'balance' | 'entry';
  /** What the writer read and wrote; null for an append, which reads nothing. */
  readonly read: number | null;
  readonly written: number | null;
  readonly operation: string | null;
}

/** The state of one key. */
export interface CellRow {
  readonly key: string;
  readonly seq: number;
  readonly value: number;
  readonly balance: number;
}

export interface ReceiptRow {
  readonly id: string;
  readonly seq: number | null;
  readonly generation: number;
  readonly owner: string;
}

export interface FenceRow {
  readonly key: string;
  readonly generation: number;
  readonly owner: string;
}

/** The database at the end. */
export interface Tables {
  readonly log: readonly LogRow[];
  readonly cells: readonly CellRow[];
  /** Attempts of the appends that are there. */
  readonly entries: readonly string[];
  readonly receipts: readonly ReceiptRow[];
  readonly fences: readonly FenceRow[];
}

/** Nothing here is unique but the order of a key's writes: the tables must not prevent what the checker looks for. */
const CREATE = [
  `CREATE TABLE campaign_cell (key text PRIMARY KEY, seq int NOT NULL, value float8 NOT NULL, balance float8 NOT NULL)`,
  `CREATE TABLE campaign_log (key text, seq int, attempt text NOT NULL, generation bigint NOT NULL, owner text NOT NULL,
     read_seq int NOT NULL, field text NOT NULL, read float8, written float8, operation text, PRIMARY KEY (key, seq))`,
  `CREATE TABLE campaign_entry (id serial PRIMARY KEY, key text NOT NULL, attempt text NOT NULL)`,
];

/** Creates the package's tables, whole or with a part of the mechanism taken out, and those of the campaign. */
export async function createTables(
  url: string,
  keys: readonly string[],
  balance: number,
  without?: Without,
): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    for (const statement of fencingStatements(without)) await client.query(statement);
    for (const statement of CREATE) await client.query(statement);
    for (const key of keys)
      await client.query('INSERT INTO campaign_cell VALUES ($1, 0, 0, $2)', [key, balance]);
  } finally {
    await client.end();
  }
}

/**
 * The package's own statements, or a broken variant of them:
 * `fence`: nothing is activated and every guard passes;
 * `activation`: the fence is raised by the write's own transaction only, so not before the body reads;
 * `guard-lock`: the guard reads the fence without locking it.
 */
export function fencingStatements(without?: Without): string[] {
  const { create } = new FencingSql();
  if (!without) return create;
  return create.map((statement) => {
    const isGuard = statement.includes('PROCEDURE fencing_guard(') && statement.startsWith('CREATE');
    const isActivate = statement.includes('FUNCTION fencing_activate(') && statement.startsWith('CREATE');
    if (isActivate && without !== 'guard-lock') return replace(statement, /\$\$[^]*\$\$/, NO_ACTIVATION);
    if (!isGuard) return statement;
    switch (without) {
      case 'fence':
        return replace(statement, /\$\$[^]*\$\$/, '$$$$ BEGIN RETURN; END $$$$');
      case 'activation':
        return replace(statement, /\nBEGIN\n/, `\nBEGIN\n${RAISE_IN_WRITE}\n`);
      case 'guard-lock':
        return replace(statement, / FOR SHARE/, '');
    }
  });
}

const NO_ACTIVATION = '$$$$ BEGIN RETURN NULL; END $$$$';
const RAISE_IN_WRITE = `  INSERT INTO fencing_fence AS f (key, generation, owner) VALUES (p_key, p_generation, p_owner)
    ON CONFLICT (key) DO UPDATE SET generation = excluded.generation, owner = excluded.owner
    WHERE f.generation < excluded.generation;`;

function replace(statement: string, what: RegExp, by: string): string {
  const changed = statement.replace(what, by);
  if (changed === statement)
    throw new Error(`the control changed nothing: ${String(what)} is not in the SQL`);
  return changed;
}

/** All tables as of one moment. */
export async function readTables(url: string): Promise<Tables> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    await client.query('BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY');
    const rows = async <Row>(sql: string) => (await client.query(sql)).rows as Row[];
    return {
      log: await rows(`SELECT key, seq, attempt, generation::float8 AS generation, owner, read_seq AS "readSeq", field, read,
         written, operation FROM campaign_log ORDER BY key, seq`),
      cells: await rows('SELECT key, seq, value, balance FROM campaign_cell ORDER BY key'),
      entries: (await rows<{ attempt: string }>('SELECT attempt FROM campaign_entry ORDER BY id')).map(
        ({ attempt }) => attempt,
      ),
      receipts: await rows(`SELECT id, (result->>'seq')::int AS seq, generation::float8 AS generation, owner
         FROM fencing_operation ORDER BY id`),
      fences: await rows(
        'SELECT key, generation::float8 AS generation, owner FROM fencing_fence ORDER BY key',
      ),
    };
  } finally {
    await client.end();
  }
}
