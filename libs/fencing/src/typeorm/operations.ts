import { OperationConflictError } from '../core/errors.js';
import type { OperationRequest, Receipt } from '../core/fence.js';
import type { Grant } from '../core/lease-store.js';
import { assertJson } from '../core/operation.js';
import type { GuardedTransaction } from './guarded-transaction.js';
import type { FencingSql } from './sql.js';

/** A receipt as PostgreSQL answers it. */
export interface ReceiptRow {
  readonly id: string;
  readonly key: string;
  readonly generation: string;
  readonly owner: string;
  readonly fingerprint: string;
  readonly result: string | null;
  readonly accepted_at: Date | string;
  /** The one that wrote it. */
  readonly transaction: string;
}

/** An operation that a transaction has claimed and not committed yet. */
export interface Claim {
  readonly operation: OperationRequest;
  readonly grant: Grant;
  readonly transaction: string;
}

export type OperationOutcome<T> =
  | { readonly result: T; readonly duplicate: false; readonly claim: Claim }
  | { readonly result: T; readonly duplicate: true; readonly claim?: undefined };

/**
 * Runs `effect` at most once for an operation id, inside the transaction of the effect: the receipt is claimed first, so a
 * second sender waits for the first one's commit and then gets the stored result.
 * @throws OperationConflictError where the id was accepted with another payload
 */
export async function runOnce<T>(
  sql: FencingSql,
  { runner, authority }: GuardedTransaction,
  operation: OperationRequest,
  effect: () => Promise<T>,
): Promise<OperationOutcome<T>> {
  const { id, fingerprint } = operation;
  const grant = authority.grants[0]!;
  const { key, generation, owner } = grant;
  const [claimed] = (await runner.query(sql.receipts.claimOperation, [
    id,
    key,
    generation,
    owner,
    fingerprint,
  ])) as {
    transaction: string;
  }[];
  if (claimed) {
    const result = await effect();
    assertJson(operation.where, result);
    await runner.query(sql.receipts.recordResult, [id, result === undefined ? null : JSON.stringify(result)]);
    return { result, duplicate: false, claim: { operation, grant, transaction: claimed.transaction } };
  }
  // A statement of its own: the one above does not see a receipt that was committed while it waited.
  const [receipt] = (await runner.query(sql.receipts.readOperation, [id])) as ReceiptRow[];
  return { result: resultOf<T>(receipt, operation), duplicate: true };
}

/** @throws OperationConflictError where the receipt is of another payload */
export function resultOf<T>(receipt: ReceiptRow | undefined, { id, fingerprint }: OperationRequest): T {
  if (receipt?.fingerprint !== fingerprint) throw new OperationConflictError(id);
  return parsed(receipt) as T;
}

export function receiptOf(row: ReceiptRow): Receipt {
  const { id, key, generation, owner, fingerprint, accepted_at } = row;
  return {
    id,
    key,
    generation: Number(generation),
    owner,
    fingerprint,
    result: parsed(row),
    acceptedAt: new Date(accepted_at),
  };
}

function parsed({ result }: ReceiptRow): unknown {
  return result === null ? undefined : JSON.parse(result);
}
