/** What is read of a receipt; the result as text, whatever parsers of JSON the application has given the driver. */
const RECEIPT =
  'id, key, generation, owner, fingerprint, result::text AS result, accepted_at, xmin::text AS transaction';

/** The table of receipts: what was accepted under an operation id, written in the transaction of its effect. */
export class ReceiptSql {
  /** @param table qualified */
  constructor(readonly table: string) {}

  get create(): string[] {
    return [
      `CREATE TABLE IF NOT EXISTS ${this.table} (
  id text PRIMARY KEY,
  key text NOT NULL,
  generation bigint NOT NULL,
  owner text NOT NULL,
  fingerprint text NOT NULL,
  result jsonb,
  accepted_at timestamptz NOT NULL DEFAULT clock_timestamp()
)`,
      `COMMENT ON TABLE ${this.table} IS 'nestjs-fencing: receipts of operations that were accepted, so that none is done twice.'`,
    ];
  }

  /**
   * Parameters: id, key, generation, owner, fingerprint. A row is answered if the operation is new; its `transaction` is the
   * one that will be written in the receipt.
   */
  get claimOperation(): string {
    return `INSERT INTO ${this.table} (id, key, generation, owner, fingerprint) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (id) DO NOTHING RETURNING xmin::text AS transaction`;
  }

  /** The effect is done: `accepted_at` is the time of it, however long it took. Parameters: id, result as JSON text. */
  get recordResult(): string {
    return `UPDATE ${this.table} SET result = $2::jsonb, accepted_at = clock_timestamp() WHERE id = $1`;
  }

  /** Parameter: id. */
  get readOperation(): string {
    return `SELECT ${RECEIPT} FROM ${this.table} WHERE id = $1`;
  }

  /**
   * What became of a transaction that had claimed an operation and whose COMMIT had no answer: one message, sent on another
   * connection. Its third result has a row if that transaction did not commit; otherwise the fourth is the receipt.
   *
   * Why it is right. The lost transaction has inserted the receipt: its claim was answered before COMMIT was sent. So this
   * INSERT of the same id waits, in the unique index, until that transaction has ended: committed, rolled back, killed, or cut
   * by its idle limit because the COMMIT never reached the server. If the id is free then, the lost transaction did not commit
   * and never will. If it is not, the receipt is read in a statement of its own, whose snapshot is younger than the wait (READ
   * COMMITTED, whatever the database's default is), and `transaction` tells whether the lost one wrote it, or one that came
   * after it. Once this has answered, the lost transaction is over and so are its locks: the lease may go on. A commit that
   * waits for a replica still holds its claim, so it is waited for as well.
   *
   * It locks no fence row: it keeps no activation waiting, waits for no other write of the same lease, and does not care how
   * many keys there were. ROLLBACK is part of the message, so the INSERT never remains, whatever becomes of this client. On a
   * read-only copy of the database it fails, rather than answer from old data.
   */
  settleOperation(literals: {
    id: string;
    key: string;
    generation: number;
    owner: string;
    fingerprint: string;
    waitMs: number;
  }): string {
    const { id, key, generation, owner, fingerprint, waitMs } = literals;
    return [
      'START TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE',
      `SELECT set_config('lock_timeout', '${waitMs}', true)`,
      `INSERT INTO ${this.table} (id, key, generation, owner, fingerprint) VALUES (${id}, ${key}, ${generation}, ${owner}, ${fingerprint}) ON CONFLICT (id) DO NOTHING RETURNING id`,
      `SELECT ${RECEIPT} FROM ${this.table} WHERE id = ${id}`,
      'ROLLBACK',
    ].join('; ');
  }

  /**
   * Deletes the old ones among the next receipts in the order of their ids, and says where the next page begins (`last`: null
   * after the last one): each statement is short, all of them together read the table once. Parameters: the id to begin after,
   * age in ms, size of a page.
   */
  get pruneOperations(): string {
    return `WITH page AS (SELECT id, accepted_at FROM ${this.table} WHERE id > $1 ORDER BY id LIMIT $3),
gone AS (
  DELETE FROM ${this.table} o USING page
  WHERE o.id = page.id AND page.accepted_at < clock_timestamp() - $2::float8 * interval '1 millisecond' RETURNING 1
)
SELECT (SELECT max(id) FROM page) AS last, (SELECT count(*) FROM gone)::int AS pruned`;
  }
}
