/**
 * Raised by the guard, and by the trigger of a protected table: the write is of an older generation. DETAIL is the newer one, or
 * `none`; COLUMN is the refused owner.
 */
export const STALE_SQLSTATE = 'NF001';

/** Raised by the trigger of a protected table: the transaction has no generation for the row. TABLE names the table. */
export const PROTECTED_SQLSTATE = 'NF002';

/**
 * The transaction's generations: set by the guard, read by the triggers; ends with the transaction. Two forms:
 *
 * - `<transaction>.<fence table> <generation> <key>`, both by their numbers: the guard of one lease has locked the row of the key
 *   there, in that transaction. It keeps the lock to the end, so within that transaction nothing needs to be looked at again.
 * - `{"key": generation}`: several leases, or a transaction that the application opened. The triggers look at the fence.
 */
export const GENERATIONS_SETTING = 'fencing.generations';

/** An operator's reason to write past the triggers: `SET LOCAL fencing.bypass = 'reason'`. */
export const BYPASS_SETTING = 'fencing.bypass';
export const BYPASS_HINT = `Operators: SET LOCAL ${BYPASS_SETTING} = 'the reason' goes round it, and is audited.`;

export function quoted(identifier: string): string {
  return `"${identifier.replaceAll('"', '""')}"`;
}

/** Text as a literal, right whether or not the session reads backslashes in plain literals. */
export function literal(text: string): string {
  const inQuotes = `'${text.replaceAll('\\', '\\\\').replaceAll("'", "''")}'`;
  return text.includes('\\') ? ` E${inQuotes}` : inQuotes;
}

/** The generations so far, and one more. In SQL, both are expressions. */
export function withGeneration(key: string, generation: string): string {
  const known = `coalesce(nullif(current_setting('${GENERATIONS_SETTING}', true), ''), '{}')::jsonb`;
  return `set_config('${GENERATIONS_SETTING}', (${known} || jsonb_build_object(${key}, ${generation}))::text, true)`;
}

/** The role that a session acts as, also inside functions that run as their owner. */
export const ACTING_ROLE = `coalesce(nullif(current_setting('role', true), 'none'), session_user::text)`;
