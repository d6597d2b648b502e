import { StaleGenerationError } from '../core/errors.js';
import type { IsolationLevel, WriteAuthority } from '../core/fence.js';
import type { Grant } from '../core/lease-store.js';
import { driverErrorOf, type PgClient } from './driver.js';
import type { FencingSql } from './sql.js';

/** What changes the meaning of a literal, with either setting of standard_conforming_strings. */
const SPECIAL = /['\\]/;

/**
 * The one message that begins a transaction and guards it: the server goes on to the next statement only if the one before has
 * passed, and nothing of the body is sent before the answer to all of them is in.
 */
export function beginMessage(
  sql: FencingSql,
  client: PgClient,
  { grants }: WriteAuthority,
  isolation: IsolationLevel | undefined,
  idleMs: number,
): string {
  const begin = isolation ? `START TRANSACTION ISOLATION LEVEL ${isolation}` : 'START TRANSACTION';
  const generations = grants.length > 1 ? literal(client, generationsOf(grants)) : undefined;
  let message = begin;
  for (const { key, generation, owner } of grants) {
    message += `; ${sql.guardCall({
      key: literal(client, key),
      generation,
      owner: literal(client, owner),
      idleMs,
      generations,
    })}`;
  }
  return message;
}

/** What the caller gets where the guard, or the trigger of a protected table, has refused. */
export function staleError(grants: readonly Grant[], error: unknown): StaleGenerationError {
  const cause = driverErrorOf(error);
  const { detail, column } = cause as { detail?: string; column?: string };
  const current = detail === undefined || detail === 'none' ? undefined : Number(detail);
  const grant = grants.find(({ owner }) => owner === column) ?? grants[0]!;
  return new StaleGenerationError(grant.key, grant.generation, current, cause);
}

function generationsOf(grants: readonly Grant[]): string {
  return JSON.stringify(Object.fromEntries(grants.map(({ key, generation }) => [key, generation])));
}

/** As the driver escapes it, which looks at each character; most texts have nothing to escape. */
function literal(client: PgClient, text: string): string {
  return SPECIAL.test(text) ? client.escapeLiteral(text) : `'${text}'`;
}
