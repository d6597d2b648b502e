import { FencingConfigError, StoreUnavailableError } from '../core/errors.js';
import { driverErrorOf, sqlStateOf } from './driver.js';
import { setupError } from './failures.js';
import type { FencingSql } from './sql.js';

/** Receipts looked at by one statement: it takes some milliseconds, and holds no lock longer. */
const PAGE = 5_000;

interface Page {
  readonly last: string | null;
  readonly pruned: number;
}

type Query = <Row>(text: string, parameters: unknown[]) => Promise<Row[]>;

/** Deletes the receipts that are older than `olderThanMs`, page by page. Answers how many. */
export async function pruneReceipts(sql: FencingSql, query: Query, olderThanMs: number): Promise<number> {
  let pruned = 0;
  try {
    let after: string | null = '';
    do {
      const [page]: Page[] = await query(sql.receipts.pruneOperations, [after, olderThanMs, PAGE]);
      pruned += Number(page!.pruned);
      after = page!.last;
    } while (after !== null);
    return pruned;
  } catch (error) {
    const cause = driverErrorOf(error);
    if (sqlStateOf(error) === '42501') {
      throw new FencingConfigError(
        'The database user may not prune receipts: it needs DELETE on fencing_operation.',
        cause,
      );
    }
    throw (
      setupError(error) ??
      new StoreUnavailableError(
        'database',
        `receipts could not be pruned (${pruned} were). Call it again; those stay gone.`,
        { cause },
      )
    );
  }
}
