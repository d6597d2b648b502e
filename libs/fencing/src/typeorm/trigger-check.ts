import type { DataSource, EntityMetadata } from 'typeorm';
import { FencingConfigError } from '../core/errors.js';
import type { StoreFinding } from '../core/lease-store.js';
import type { Query } from './audit.js';
import { generationColumnOf, wantsTrigger } from './generation-column.js';
import type { FoundTrigger } from './protect-table.js';
import { quoted } from './sql/names.js';
import { FIND_PROTECTION, ROW_TRIGGER, TRIGGER_VERSION } from './sql/protection.js';

/**
 * The tables of entities with a `@GenerationColumn()` that no trigger protects: whoever writes them outside a fenced write is
 * not stopped.
 * @throws FencingConfigError instead, where the fence was told to fail
 */
export async function checkTriggers(
  query: Query,
  { entityMetadatas }: DataSource,
  missingTriggers: 'warn' | 'fail',
): Promise<StoreFinding[]> {
  // Entities of one table (single-table inheritance) count once.
  const tables = new Map(
    entityMetadatas
      .filter((metadata) => generationColumnOf(metadata) && wantsTrigger(metadata))
      .map((metadata) => [metadata.tablePath, metadata]),
  );
  const wrong: { name: string; problem: string; fix: string }[] = [];
  for (const metadata of tables.values()) {
    const problem = await problemOf(query, metadata);
    if (problem) wrong.push({ name: metadata.name, problem, fix: migrationLine(metadata) });
  }
  if (wrong.length === 0) return [];
  const finding: StoreFinding = {
    problem: `${wrong.map(({ name, problem }) => `${name} ${problem}`).join('; ')}.`,
    consequence: 'What writes such a table outside a fenced write is not refused.',
    fix:
      `In a migration: ${wrong.map(({ fix }) => fix).join(' ')} ` +
      'Where only the row guard is wanted: @GenerationColumn({ trigger: false }).',
  };
  if (missingTriggers === 'warn') return [finding];
  throw new FencingConfigError(`${finding.problem} ${finding.consequence} ${finding.fix}`);
}

async function problemOf(query: Query, metadata: EntityMetadata): Promise<string | undefined> {
  const { schema, tableName } = metadata;
  const found = await query<FoundTrigger>(FIND_PROTECTION, [
    schema ? `${quoted(schema)}.${quoted(tableName)}` : quoted(tableName),
  ]);
  const row = found.find(({ trigger }) => trigger === ROW_TRIGGER);
  if (!row) return 'has a @GenerationColumn() and no trigger';
  if (found.some(({ disabled }) => disabled)) return 'has a trigger that is switched off';
  const column = generationColumnOf(metadata)!.databaseName;
  if (!row.comment.startsWith(`${TRIGGER_VERSION}: `)) return 'has the trigger of another version';
  const stamped = row.comment.slice(TRIGGER_VERSION.length + 2);
  if (stamped !== column && !stamped.startsWith(`${column} `))
    return `has a trigger that does not stamp its column ${column}`;
  return undefined;
}

function migrationLine(metadata: EntityMetadata): string {
  const column = generationColumnOf(metadata)!.databaseName;
  const options = column === 'generation' ? '' : `, { column: '${column}' }`;
  return `await protectTable(queryRunner, '${metadata.tablePath}'${options});`;
}
