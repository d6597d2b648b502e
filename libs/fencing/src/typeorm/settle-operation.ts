import type { Clock } from '../core/clock.js';
import { CommitUnknownError } from '../core/errors.js';
import type { WriteOutcome } from '../core/fence.js';
import { backoff, sleep, within } from '../core/timing.js';
import { driverErrorOf, type PgClient, type PgQueryRunner, sqlStateOf } from './driver.js';
import { commitNotAccepted, setupError } from './failures.js';
import { type Claim, type ReceiptRow, resultOf } from './operations.js';
import type { FencingSql } from './sql.js';

/** How long the answer is waited for after the server's own limit, ms. */
const ANSWER_MS = 1_000;
/** The SQLSTATE of a `lock_timeout` that has passed. */
const LOCK_TIMEOUT = '55P03';

/** A write with an operation id whose COMMIT had no answer. */
export interface LostCommit<T> {
  readonly claim: Claim;
  /** What the body returned. */
  readonly result: T;
  /** How the connection ended. */
  readonly cause: unknown;
}

/** Where and how long it is looked for. */
export interface Search {
  readonly sql: FencingSql;
  readonly createRunner: () => PgQueryRunner;
  readonly clock: Clock;
  /** A whole number; while it lasts, a database that does not answer is asked again. */
  readonly waitMs: number;
}

/**
 * Waits until the transaction of a lost commit has ended, and answers what became of it. The lost connection must have been
 * given back to the pool, which may have no other.
 * @throws StoreUnavailableError where it was not committed, CommitUnknownError where that could not be found out,
 * OperationConflictError where it was not committed and its id was taken by another payload
 */
export async function settleOperation<T>(
  { claim, result, cause }: LostCommit<T>,
  search: Search,
): Promise<WriteOutcome<T>> {
  const { operation, grant, transaction } = claim;
  let receipt: ReceiptRow | undefined;
  try {
    receipt = await find(claim, search);
  } catch (error) {
    throw new CommitUnknownError(grant.key, cause, driverErrorOf(error));
  }
  if (!receipt) throw commitNotAccepted(grant.key, cause);
  if (receipt.owner === grant.owner && receipt.transaction === transaction)
    return { result, duplicate: false, committed: true };
  // Somebody else sent the operation once the lost transaction had ended.
  return { result: resultOf<T>(receipt, operation), duplicate: true, committed: false };
}

/** The receipt of the operation, or `undefined`: then the lost transaction did not commit and never will. */
async function find(claim: Claim, search: Search): Promise<ReceiptRow | undefined> {
  const { clock } = search;
  const until = clock.now() + search.waitMs;
  for (let attempt = 0; ; attempt++) {
    let found: Found;
    try {
      found = await look(claim, search, () => Math.max(1, Math.ceil(until - clock.now())));
    } catch (error) {
      const pause = backoff(attempt);
      if (sqlStateOf(error) === LOCK_TIMEOUT || setupError(error) || clock.now() + pause >= until)
        throw error;
      await sleep(clock, pause);
      continue;
    }
    if (found.isFree) return undefined;
    // Asked again, the id would look free.
    if (!found.receipt) throw new Error('the receipt was deleted meanwhile');
    return found.receipt;
  }
}

interface Found {
  readonly isFree: boolean;
  readonly receipt: ReceiptRow | undefined;
}

/** One try, on a connection of its own. */
async function look(
  { operation, grant }: Claim,
  { sql, createRunner, clock }: Search,
  leftMs: () => number,
): Promise<Found> {
  const runner = createRunner();
  const connecting = runner.connect() as Promise<PgClient>;
  let client: PgClient;
  try {
    client = await within(clock, leftMs(), connecting, () => new Error('no connection in time'));
  } catch (error) {
    // One that comes after all goes straight back.
    void connecting.then(() => runner.release()).catch(() => undefined);
    throw error;
  }
  try {
    const waitMs = leftMs();
    const text = sql.receipts.settleOperation({
      id: client.escapeLiteral(operation.id),
      key: client.escapeLiteral(grant.key),
      generation: grant.generation,
      owner: client.escapeLiteral(grant.owner),
      fingerprint: client.escapeLiteral(operation.fingerprint),
      waitMs,
    });
    // Several statements in one message have as many results.
    const answer = client.query(text) as unknown as Promise<{ rows: unknown[] }[]>;
    const silent = () => new Error('no answer');
    const [, , inserted, found] = await within(clock, waitMs + ANSWER_MS, answer, silent);
    await runner.release();
    return { isFree: inserted!.rows.length > 0, receipt: found!.rows[0] as ReceiptRow | undefined };
  } catch (error) {
    // It may still be running, or be in a failed transaction.
    await runner.releasePostgresConnection(error as Error);
    throw error;
  }
}
