import { randomUUID } from 'node:crypto';
import type { AuditEntry, AuditNote } from '../core/audit.js';
import { GenerationsExhaustedError } from '../core/errors.js';
import type { Revocation, RevocationRequest } from '../core/fence.js';
import { driverErrorOf, isSerializationFailure, type PgQueryRunner, sqlStateOf } from './driver.js';
import { activationError, auditError, type Blocker } from './failures.js';
import { AUDIT_LIMITS } from './sql/audit.js';
import type { FencingSql } from './sql.js';

/** Sends a statement outside any transaction. */
export type Query = <Row>(text: string, parameters?: unknown[]) => Promise<Row[]>;

/** How often a statement is sent again after a serialization failure. */
const RETRIES = 5;
/** How long the statement that keeps notes may run, and wait for a lock, ms: it holds a connection of the application's pool. */
const RECORD_MS = 1_000;
const RECORD_LOCK_MS = 200;

/** Raises the fence of a key and keeps who did it, in one statement. */
export async function revoke(
  query: Query,
  sql: FencingSql,
  { key, held, by, reason, waitMs }: RevocationRequest,
): Promise<Revocation> {
  const revoker = `revoked-${randomUUID()}`;
  const parameters = [
    key,
    held?.generation ?? null,
    held?.owner ?? null,
    revoker,
    by ?? null,
    reason ?? null,
    waitMs,
  ];
  for (let attempt = 0; ; attempt++) {
    try {
      const [row] = await query<{ superseded: string | null; raised: string }>(sql.revoke, parameters);
      const { superseded, raised } = row!;
      return {
        supersededGeneration: superseded === null ? undefined : Number(superseded),
        generation: Number(raised),
      };
    } catch (error) {
      if (isSerializationFailure(error) && attempt < RETRIES) continue;
      // The fence is at its ceiling.
      if (sqlStateOf(error) === '23514') throw new GenerationsExhaustedError(key);
      throw await activationError(error, key, waitMs, () => query<Blocker>(sql.blockers, [key]));
    }
  }
}

/** Deletes what the audit kept longer than that. @returns how many rows */
export async function pruneAudit(query: Query, sql: FencingSql, olderThanMs: number): Promise<number> {
  try {
    const [row] = await query<{ pruned: number }>(sql.pruneAudit, [olderThanMs]);
    return Number(row!.pruned);
  } catch (error) {
    throw auditError(error, 'pruned', 'SELECT and DELETE on fencing_audit');
  }
}

/** Keeps notes of writes, in a transaction of its own. */
export async function record(
  runner: PgQueryRunner,
  sql: FencingSql,
  notes: readonly AuditNote[],
): Promise<void> {
  const of = <T>(value: (note: AuditNote) => T): T[] => notes.map(value);
  const rows = [
    of(({ kind }) => kind),
    of(({ key }) => key),
    of(({ generation }) => generation),
    of(({ owner }) => owner),
    of(({ current }) => current ?? null),
    of(({ where }) => where),
    of(({ ageMs }) => ageMs),
  ];
  let isOpen = false;
  try {
    // As plain statements: subscribers of the application are told of its own transactions only. In other words than those of a
    // guarded write, so that logs of statements tell them apart.
    await runner.query('BEGIN ISOLATION LEVEL READ COMMITTED');
    isOpen = true;
    await runner.query(AUDIT_LIMITS, [String(RECORD_MS), String(RECORD_LOCK_MS)]);
    await runner.query(sql.recordNotes, rows);
    await runner.query('END');
    isOpen = false;
  } catch (error) {
    // The table does not take them: trying again would change nothing.
    if (/^2[23]/.test(sqlStateOf(error) ?? '')) throw driverErrorOf(error);
    throw auditError(error, 'written', 'INSERT on fencing_audit and SELECT on fencing_fence');
  } finally {
    if (isOpen) await runner.query('ROLLBACK').catch(() => undefined);
    await runner.release();
  }
}

interface AuditRow {
  readonly kind: AuditEntry['kind'];
  readonly at: Date | string;
  readonly key: string;
  readonly generation: string | null;
  readonly owner: string | null;
  readonly superseded_by: string | null;
  readonly superseded_at: Date | string | null;
  readonly by: string | null;
  readonly reason: string | null;
  readonly action: string | null;
}

/** What is kept of a key, newest first. */
export async function readAudit(
  query: Query,
  sql: FencingSql,
  key: string,
  limit: number,
): Promise<AuditEntry[]> {
  try {
    const rows = await query<AuditRow>(sql.readAudit, [key, limit]);
    return rows.map((row) => ({
      kind: row.kind,
      at: new Date(row.at),
      key: row.key,
      generation: row.generation === null ? undefined : Number(row.generation),
      owner: row.owner ?? undefined,
      supersededBy: row.superseded_by === null ? undefined : Number(row.superseded_by),
      supersededAt: row.superseded_at === null ? undefined : new Date(row.superseded_at),
      by: row.by ?? undefined,
      reason: row.reason ?? undefined,
      where: row.action ?? undefined,
    }));
  } catch (error) {
    throw auditError(error, 'read', 'SELECT on fencing_audit');
  }
}
