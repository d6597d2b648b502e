import { OperationConflictError } from '../core/errors.js';
import type { OperationRequest } from '../core/fence.js';
import { assertJson } from '../core/operation.js';
import type { GuardedTransaction } from './guarded-transaction.js';
import type { FencingSql } from './sql.js';

/**
 * Runs `effect` at most once for an operation id, inside the transaction of the effect: the receipt is claimed first, so a
 * second sender waits for the first one's commit and then gets the stored result.
 * @throws OperationConflictError where the id was accepted with another payload
 */
export async function runOnce<T>(
  sql: FencingSql,
  transaction: GuardedTransaction,
  operation: OperationRequest,
  effect: () => Promise<T>,
): Promise<{ result: T; duplicate: boolean }> {
  const { runner, authority } = transaction;
  const [{ key, generation, owner }] = authority.grants as [(typeof authority.grants)[number]];
  const claimed = (await runner.query(sql.claimOperation, [
    operation.id,
    key,
    generation,
    owner,
    operation.fingerprint,
  ])) as unknown[];
  if (claimed.length > 0) {
    const result = await effect();
    assertJson(operation.where, result);
    await runner.query(sql.recordResult, [
      operation.id,
      result === undefined ? null : JSON.stringify(result),
    ]);
    return { result, duplicate: false };
  }
  // A statement of its own: the one above does not see a receipt that was committed while it waited.
  const [receipt] = (await runner.query(sql.readOperation, [operation.id])) as {
    fingerprint: string;
    result: unknown;
    no_result: boolean;
  }[];
  if (receipt?.fingerprint !== operation.fingerprint) throw new OperationConflictError(operation.id);
  return { result: (receipt.no_result ? undefined : receipt.result) as T, duplicate: true };
}
