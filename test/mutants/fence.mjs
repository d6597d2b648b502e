// Mechanisms of the fence and of guarded transactions, each taken out. See scripts/mutants.mjs.

const typeorm = 'libs/fencing/src/typeorm/';
const sql = `${typeorm}sql.ts`;
const transaction = `${typeorm}guarded-transaction.ts`;
const connection = `${typeorm}transaction-connection.ts`;
const message = `${typeorm}guard-message.ts`;
const quiet = `${typeorm}quiet-transaction.ts`;
const writes = `${typeorm}guarded-writes.ts`;
const receiptSql = `${typeorm}sql/receipts.ts`;
const statements = `${typeorm}statements.ts`;
const fence = `${typeorm}typeorm-fence.ts`;
const routing = `${typeorm}routing.ts`;
const savepoints = `${typeorm}savepoints.ts`;
const failures = `${typeorm}failures.ts`;
const driver = `${typeorm}driver.ts`;
const databaseCheck = `${typeorm}database-check.ts`;
const typeormCheck = `${typeorm}typeorm-check.ts`;
const settle = `${typeorm}settle-operation.ts`;
const operationCore = 'libs/fencing/src/core/operation.ts';
const control = `${typeorm}transaction-control.ts`;

/** @param {string} title */
const activation = (title) => ({ test: 'fence-activation', title });
/** @param {string} title */
const guard = (title) => ({ test: 'fence-guard', title });
/** @param {string} title */
const boundaries = (title) => ({ test: 'fence-boundaries', title });
/** @param {string} title */
const leaseEnd = (title) => ({ test: 'fence-lease-end', title });
/** @param {string} title */
const operations = (title) => ({ test: 'fence-operations', title });
/** @param {string} title */
const unknown = (title) => ({ test: 'test/unknown-commits.e2e', title });
/** @param {string} title */
const receipts = (title) => ({ test: 'operations-receipts', title });
/** @param {string} title */
const callers = (title) => ({ test: 'fence-callers', title });
/** @param {string} title */
const schema = (title) => ({ test: 'fence-schema', title });
/** @param {string} title */
const faults = (title) => ({ test: 'database-faults', title });
/** @param {string} title */
const orm = (title) => ({ test: 'database-typeorm', title });

/** @type {import('../../scripts/mutants.mjs').Mutant[]} */
export default [
  {
    invariant: 'I3, I4: nothing is written after a commit of unknown outcome under the same grant',
    file: 'libs/fencing/src/core/fenced-writes.ts',
    from: `for (const lease of leases) lease.lose('unsettled');`,
    to: `void leases;`,
    test: 'core/fenced-writes',
  },
  {
    invariant: 'I7: a row that is ahead of its lease heals',
    file: 'libs/fencing/src/core/fenced-writes.ts',
    from: `await this.keeper.raise(lease, currentGeneration);`,
    to: `void bodyBegan;`,
    test: 'protected-tables',
    title: 'ahead of its lease heals',
  },
  // ------------------------------------------------------------------------------------------------------- activation
  {
    invariant: 'the fence never goes down',
    file: sql,
    from: `WHERE f.generation < excluded.generation;`,
    to: `WHERE f.generation <> excluded.generation;`,
    ...activation('as it is after the wait'),
  },
  {
    invariant: 'one generation is never activated for two owners',
    file: sql,
    from: `IF v_generation >= p_generation THEN
    RETURN CASE WHEN v_generation = p_generation AND v_owner = p_owner`,
    to: `IF v_generation >= p_generation THEN
    RETURN CASE WHEN v_generation = p_generation`,
    ...activation('same generation of another owner'),
  },
  {
    invariant: 'a refused activation answers the fence as it is after the wait',
    file: sql,
    from: `SELECT f.generation, f.owner INTO STRICT v_generation, v_owner FROM \${this.fence} f WHERE f.key = p_key;`,
    to: ``,
    ...activation('as it is after the wait'),
  },
  {
    invariant: 'I6: the same grant again is content',
    file: sql,
    from: `IF v_generation >= p_generation THEN
    RETURN CASE WHEN v_generation = p_generation AND v_owner = p_owner THEN NULL ELSE v_generation END;`,
    to: `IF v_generation >= p_generation THEN
    RETURN v_generation;`,
    ...activation('I6'),
  },
  {
    invariant: 'a refused activation does not wait for the writes of the newer owner',
    file: sql,
    from: `IF v_generation >= p_generation THEN`,
    to: `IF false THEN`,
    ...activation('does not wait for'),
  },
  {
    invariant: 'the wait of an activation is bounded',
    file: sql,
    from: `PERFORM set_config('lock_timeout', p_wait_ms::text, true);`,
    to: `PERFORM set_config('lock_timeout', '20s', true);`,
    ...activation('when the wait is over'),
  },
  {
    invariant: 'an activation that waited too long names the transaction that was in the way',
    file: sql,
    from: `ORDER BY (a.backend_xid IS NOT NULL AND a.backend_xid = f.xmax) DESC, a.xact_start`,
    to: `ORDER BY a.xact_start`,
    ...activation('names the transaction'),
  },
  {
    invariant: 'an activation leaves no setting behind',
    file: sql,
    from: `PERFORM set_config('synchronous_commit', 'off', true);`,
    to: `PERFORM set_config('synchronous_commit', 'off', false);`,
    ...activation('leaves no setting behind'),
  },
  {
    invariant: 'a durable activation waits for the disk, whatever the server is set to',
    file: sql,
    from: `PERFORM set_config('synchronous_commit', 'on', true);`,
    to: `NULL;`,
    ...activation('survives a crash'),
  },
  {
    invariant: 'a serialization failure of an activation is tried again',
    file: fence,
    from: `if (isSerializationFailure(error) && attempt < RETRIES_BEFORE_BODY) continue;`,
    to: ``,
    ...activation('repeatable read, an activation that had to wait'),
  },

  // ------------------------------------------------------------------------------------------------------------ guard
  {
    invariant: 'I3: the guard locks the row to the end of the transaction',
    file: sql,
    from: `AND f.owner = p_owner FOR SHARE;`,
    to: `AND f.owner = p_owner;`,
    ...guard('I3: keeps every newer grant out'),
  },
  {
    invariant: 'I1, I3: the lock is one that an activation waits for',
    file: sql,
    from: `AND f.owner = p_owner FOR SHARE;`,
    to: `AND f.owner = p_owner FOR KEY SHARE;`,
    ...guard('I3: keeps every newer grant out'),
  },
  {
    invariant: 'I2: the guard demands the generation',
    file: sql,
    from: `f.key = p_key AND f.generation = p_generation AND f.owner = p_owner FOR SHARE`,
    to: `f.key = p_key FOR SHARE`,
    ...guard('I2'),
  },
  {
    invariant: 'the guard demands the owner',
    file: sql,
    from: `f.key = p_key AND f.generation = p_generation AND f.owner = p_owner FOR SHARE`,
    to: `f.key = p_key AND f.generation = p_generation FOR SHARE`,
    ...guard('the same generation of another owner'),
  },
  {
    invariant: 'the guard demands equality: a grant that was never activated may not write',
    file: sql,
    from: `f.key = p_key AND f.generation = p_generation AND f.owner = p_owner FOR SHARE`,
    to: `f.key = p_key AND f.generation <= p_generation FOR SHARE`,
    ...guard('never activated'),
  },
  {
    invariant: 'every one of several keys is guarded',
    file: message,
    from: `for (const { key, generation, owner } of grants) {`,
    to: `for (const { key, generation, owner } of grants.slice(0, 1)) {`,
    ...guard('one of several keys is stale'),
  },
  {
    invariant: 'a refusal of several keys says which',
    file: message,
    from: `grants.find(({ owner }) => owner === column) ?? grants[0]!`,
    to: `grants[0]!`,
    ...guard('one of several keys is stale'),
  },
  {
    invariant: 'values of the guard are escaped',
    file: message,
    from: `SPECIAL.test(text) ? client.escapeLiteral(text) : \`'\${text}'\``,
    to: `\`'\${text}'\``,
    ...guard('the key'),
  },
  {
    invariant: 'a fenced write runs in the isolation level that it asks for',
    file: message,
    from: `isolation ? \`START TRANSACTION ISOLATION LEVEL \${isolation}\` : 'START TRANSACTION'`,
    to: `'START TRANSACTION'`,
    ...guard('which is what the body runs in'),
  },
  {
    invariant: 'a serialization failure of the guard is tried again before the body',
    file: writes,
    from: `beforeBody++ >= RETRIES_BEFORE_BODY`,
    to: `beforeBody++ >= 0`,
    ...guard('and refuses when it is committed'),
  },
  {
    invariant: 'the body is run again only as often as retries says',
    file: writes,
    from: `attempt++ >= request.retries`,
    to: `attempt++ >= 3`,
    ...boundaries('without retries'),
  },
  {
    invariant: 'the body is run again after a serialization failure',
    file: writes,
    from: `attempt++ >= request.retries`,
    to: `true`,
    ...boundaries('as often as'),
  },
  {
    invariant: 'a deadlock is a serialization failure',
    file: driver,
    from: `state === '40001' || state === '40P01'`,
    to: `state === '40001'`,
    ...boundaries('a deadlock'),
  },
  {
    invariant: 'a transaction that was begun without the guard runs no body',
    file: transaction,
    from: `if (!this.guarded) {`,
    to: `if (false) {`,
    ...orm('begins transactions differently'),
  },
  {
    invariant:
      'a transaction whose BEGIN or guard has failed is rolled back before its connection is given back',
    file: transaction,
    from: `Object.assign(this.runner, BEGUN);`,
    to: ``,
    ...boundaries('without retries|as often as'),
  },
  {
    invariant: 'subscribers of the application hear of a fenced write that begins and commits',
    file: quiet,
    from: `dataSourceOf(runner)?.subscribers.length !== 0 ||`,
    to: `false ||`,
    ...orm('hear the write inside'),
  },
  {
    invariant: 'a TypeORM that notes something else of a transaction stops the boot',
    file: quiet,
    from: `.filter(([name, value]) => old[name] !== value)`,
    to: `.filter(([name, value]) => name in ENDED && old[name] !== value)`,
    ...orm('works differently'),
  },

  // -------------------------------------------------------------------------- nothing gets out of the transaction
  {
    invariant: 'nothing is sent after COMMIT or ROLLBACK went out',
    file: statements,
    from: `if (this.isSealed) throw this.tooLate();`,
    to: ``,
    ...boundaries('lets nothing out'),
  },
  {
    invariant: 'ROLLBACK seals the transaction',
    file: transaction,
    from: `await this.statements.seal();
    return send('ROLLBACK');`,
    to: `return send('ROLLBACK');`,
    ...boundaries('Promise.all'),
  },
  {
    invariant: 'all of it is undone where a transaction inside was left open',
    file: transaction,
    from: `this.runner.transactionDepth = Math.min(this.runner.transactionDepth, 1);`,
    to: ``,
    ...boundaries('transaction inside that was not awaited'),
  },
  {
    invariant: 'a transaction that was ended behind its back is noticed',
    file: statements,
    from: `if (client.getTransactionStatus?.() !== 'I') return;`,
    to: `return;`,
    ...boundaries('behind its back'),
  },
  {
    invariant: 'no statement of the body ends the transaction',
    file: statements,
    from: `if (controlsTransaction(text)) {`,
    to: `if (/^commit/i.test(text)) {`,
    ...boundaries('hidden behind the first'),
  },
  {
    invariant: 'texts and comments of SQL are not taken for statements',
    file: control,
    from: `return withoutQuoted(sql)`,
    to: `return sql`,
    test: 'transaction-control',
  },
  {
    invariant: 'savepoints side by side take turns',
    file: savepoints,
    from: `const turn = level.last.then(() => current.run(`,
    to: `const turn = Promise.resolve().then(() => current.run(`,
    ...operations('side by side'),
  },
  {
    invariant: 'transactions of the application take turns with them',
    file: routing,
    from: `return takeTurn(current as PgQueryRunner, () => original.transaction(...isolation, work));`,
    to: `return original.transaction(...isolation, work);`,
    ...boundaries('side by side'),
  },
  {
    invariant: 'transactions of its own manager take turns as well',
    file: `${typeorm}statement-gate.ts`,
    from: `takeTurn(runner, () => transaction(...args)) as never`,
    to: `transaction(...args) as never`,
    ...boundaries('side by side'),
  },
  {
    invariant: 'nothing is committed over a stream of rows that is open',
    file: statements,
    from: `!stream.readableEnded && !stream.destroyed`,
    to: `false`,
    test: 'guarded-transaction',
    title: 'stream of rows',
  },
  {
    invariant: 'no setting of a fenced write is left for the next user of the connection (R8)',
    file: sql,
    from: `PERFORM set_config('idle_in_transaction_session_timeout', p_idle_ms::text, true),`,
    to: `PERFORM set_config('idle_in_transaction_session_timeout', p_idle_ms::text, false),`,
    ...boundaries('R8'),
  },

  // -------------------------------------------------------------------------------------------- tied to the lease
  {
    invariant: 'a lease that has ended takes no connection',
    file: writes,
    from: `const reason = request.authority.ended();
      if (reason) throw reason;`,
    to: ``,
    ...leaseEnd('takes no connection'),
  },
  {
    invariant: 'the wait for a connection ends with the lease',
    file: transaction,
    from: `this.stopWaiting?.(reason);`,
    to: ``,
    ...leaseEnd('waits for a connection'),
  },
  {
    invariant: 'the clock is looked at when the connection comes',
    file: transaction,
    from: `const reason = this.authority.ended() ?? this.statements.endReason;
    if (reason) throw reason;
    this.stops.push(gateRunner`,
    to: `this.stops.push(gateRunner`,
    ...leaseEnd('is over when the connection comes'),
  },
  {
    invariant: 'an open transaction ends with its lease',
    file: transaction,
    from: `if (this.connection) void this.throwAway(reason);`,
    to: ``,
    ...leaseEnd('need not wait for the body'),
  },
  {
    invariant: 'a statement whose client is gone ends soon',
    file: sql,
    from: `THEN set_config('client_connection_check_interval', '\${CONNECTION_CHECK_MS}', true) END`,
    to: `THEN NULL END`,
    ...leaseEnd('runs on and on'),
  },
  {
    invariant: 'a transaction is not committed once its lease has ended',
    file: transaction,
    from: `const reason = this.authority.ended() ?? this.statements.endReason;
    if (reason) throw reason;
    if (this.runner`,
    to: `if (this.runner`,
    ...leaseEnd('not committed once'),
  },
  {
    invariant: 'a paused transaction is cut when its lease is over',
    file: sql,
    from: `PERFORM set_config('idle_in_transaction_session_timeout', p_idle_ms::text, true),`,
    to: `PERFORM`,
    ...leaseEnd('not longer'),
  },
  {
    invariant: 'a healthy transaction is not cut: renewals move the limit',
    file: transaction,
    from: `this.stops.push(this.authority.onRenewed(() => this.touch()));`,
    to: ``,
    ...leaseEnd('while its lease is renewed'),
  },
  {
    invariant: 'a renewal during a statement moves the limit after it',
    file: statements,
    from: `this.due?.();`,
    to: ``,
    ...leaseEnd('new limit after a statement'),
  },
  {
    invariant: 'a transaction leaves no listener behind',
    file: transaction,
    from: `this.stopAll();
    if (this.phase !== 'committed')`,
    to: `if (this.phase !== 'committed')`,
    ...leaseEnd('no listener behind'),
  },

  // ------------------------------------------------------------------------------------------------------- operations
  {
    invariant: 'I10: the receipt is claimed before the effect',
    file: receiptSql,
    from: `ON CONFLICT (id) DO NOTHING RETURNING xmin::text AS transaction`,
    to: `ON CONFLICT (id) DO UPDATE SET owner = excluded.owner RETURNING xmin::text AS transaction`,
    ...operations('I10'),
  },
  {
    invariant: 'another payload under the same id is refused',
    file: `${typeorm}operations.ts`,
    from: `if (receipt?.fingerprint !== fingerprint) throw`,
    to: `if (!receipt) throw`,
    ...operations('another payload'),
  },
  {
    invariant: 'null and nothing are different results',
    file: `${typeorm}operations.ts`,
    from: `result === null ? undefined : JSON.parse(result)`,
    to: `JSON.parse(result as string)`,
    ...operations('gives the result'),
  },
  {
    invariant: 'a result that JSON would change is refused',
    file: `${typeorm}operations.ts`,
    from: `assertJson(operation.where, result);`,
    to: ``,
    ...operations('refused by name'),
  },
  {
    invariant: 'a result that jsonb cannot hold is refused by name',
    file: 'libs/fencing/src/core/operation.ts',
    from: `/\\0|\\p{Surrogate}/u.test(value)`,
    to: `false`,
    ...operations('refused by name'),
  },
  {
    invariant: 'a joined operation that fails is undone alone',
    file: savepoints,
    from: `await runner.rollbackTransaction().catch(() => undefined);`,
    to: `await runner.commitTransaction().catch(() => undefined);`,
    ...operations('undone alone'),
  },
  {
    invariant: 'an operation inside an operation does not wait for it',
    file: savepoints,
    from: `inside?.runner === runner ? inside : outermost.get(runner)`,
    to: `outermost.get(runner)`,
    ...operations('may contain another'),
  },

  // ------------------------------------------------------------------------------------- transactions of the application
  {
    invariant: 'dataSource.transaction() is seen',
    file: routing,
    from: `return original.transaction(...isolation, (inner: EntityManager) => {`,
    to: `if (Date.now()) return original.transaction(...isolation, work);
    return original.transaction(...isolation, (inner: EntityManager) => {`,
    ...callers('every kind of transaction'),
  },
  {
    invariant: 'field report 31: a refusal does not abort the transaction of the application',
    file: sql,
    from: `FROM (SELECT 1 FROM \${this.fence} f WHERE f.key = $1 AND f.generation = $2 AND f.owner = $3 FOR SHARE) guard`,
    to: `FROM (SELECT 1 / count(*) FROM \${this.fence} f WHERE f.key = $1 AND f.generation = $2 AND f.owner = $3) guard`,
    ...callers('that is stale is refused'),
  },
  {
    invariant: 'I3 in a transaction of the application: the guard locks',
    file: sql,
    from: `f.owner = $3 FOR SHARE) guard`,
    to: `f.owner = $3) guard`,
    ...callers('is part of it'),
  },
  {
    invariant: 'each write in a transaction of the application is guarded anew',
    file: writes,
    from: `await transaction.guardInside();`,
    to: `if (!known) await transaction.guardInside();`,
    ...callers('guarded anew'),
  },
  {
    invariant: 'nothing piles up on the connection of a transaction of the application',
    file: writes,
    from: `const known = guarded.find((other) => !other.isOver && other.guards(authority.grants));`,
    to: `const known = undefined as GuardedTransaction | undefined;`,
    ...callers('nothing piles up'),
  },
  {
    invariant: 'no 25P02 reaches the caller',
    file: statements,
    from: `sqlStateOf(error) === '25P02'`,
    to: `sqlStateOf(error) === ''`,
    ...callers('25P02'),
  },
  {
    invariant: 'a lease that is not the one of the transaction may not write in it',
    file: writes,
    from: `if (!transaction.guards(authority.grants)) throw new LeaseOrderError(authority.grants[0]!.key);`,
    to: ``,
    ...callers('not the one of the transaction'),
  },
  {
    invariant: 'an isolation level that the transaction of the application does not have is refused',
    file: writes,
    from: `if (actual === isolation) return;`,
    to: `if (actual) return;`,
    ...callers('refuses to ask for another'),
  },
  {
    invariant: 'field report 12: a fenced write inside a fenced write takes no connection',
    file: writes,
    from: `if (surrounding instanceof GuardedTransaction) return this.join(surrounding, request);`,
    to: ``,
    test: 'database-pool',
    title: 'never two at a time',
  },

  // ----------------------------------------------------------------------------------------------- faults of the database
  {
    invariant: 'COMMIT that is answered with ROLLBACK is no commit',
    file: connection,
    from: `command === 'COMMIT' ? COMMITTED : ROLLED_BACK`,
    to: `command ? COMMITTED : ROLLED_BACK`,
    ...faults('answered with ROLLBACK'),
  },
  {
    invariant: 'a commit whose answer is lost is unknown, not failed',
    file: connection,
    from: `(await this.wasRefused(error)) ? 'refused' : 'unknown'`,
    to: `(await this.wasRefused(error)) || error ? 'refused' : 'unknown'`,
    ...faults('whose answer is lost, without an operation id: unknown'),
  },
  {
    invariant: 'an error in answer to COMMIT is a refusal in every language of the server',
    file: connection,
    from: `if (state === undefined || state === '25P03') return state === '25P03';`,
    to: `if ((error as { severity?: string }).severity !== 'ERROR') return state === '25P03';`,
    test: 'typeorm/guarded-transaction',
  },
  {
    invariant: 'a crash in answer to COMMIT leaves it unknown',
    file: connection,
    from: `() => true,
      () => false,`,
    to: `() => true,
      () => true,`,
    test: 'typeorm/guarded-transaction',
  },
  {
    invariant: 'no COMMIT is sent on a connection that broke',
    file: statements,
    from: `if (isConnectionLoss(this.failure)) throw this.failure;`,
    to: ``,
    ...faults('which the body swallows'),
  },
  {
    invariant: 'the cause that the server gave is not hidden behind "already released"',
    file: connection,
    from: `this.error ??= error;`,
    to: `void error;`,
    ...faults('idle_in_transaction'),
  },
  {
    invariant: 'no connection is unavailable, with its cause',
    file: transaction,
    from: `if (!this.connection || (!this.statements.isOpen`,
    to: `if ((!this.statements.isOpen`,
    ...faults('no server at all'),
  },
  {
    invariant: 'an operating system error is not taken for an SQLSTATE',
    file: driver,
    from: `/^(?=.*\\d)[0-9A-Z]{5}$/`,
    to: `/^[0-9A-Z]{5}$/`,
    test: 'typeorm/driver',
  },

  // -------------------------------------------------------------------------------------------------- unknown commits
  {
    invariant: 'I4: a lost commit is looked for only once its transaction has ended',
    file: receiptSql,
    from: '`INSERT INTO ${this.table} (id, key, generation, owner, fingerprint) VALUES (${id}, ${key}, ${generation}, ${owner}, ${fingerprint}) ON CONFLICT (id) DO NOTHING RETURNING id`,',
    to: '`SELECT 1 WHERE NOT EXISTS (SELECT FROM ${this.table} WHERE id = ${id})`,',
    ...unknown('still runs is waited for'),
  },
  {
    invariant: 'I10: looking for a lost commit leaves no receipt behind',
    file: receiptSql,
    from: `'ROLLBACK',`,
    to: `'COMMIT',`,
    ...unknown('without leaving anything'),
  },
  {
    invariant: 'the search for a lost commit is bounded by the server',
    file: receiptSql,
    from: `set_config('lock_timeout', '\${waitMs}', true)\``,
    to: `set_config('lock_timeout', '0', true)\``,
    ...unknown('does not come in time'),
  },
  {
    invariant: 'I4: the receipt of another owner is not taken for the own commit',
    file: settle,
    from: `if (receipt.owner === grant.owner && receipt.transaction === transaction)`,
    to: `if (receipt)`,
    ...unknown('another owner sent again'),
  },
  {
    invariant: 'I4: nor is that of another transaction of the same owner',
    file: settle,
    from: `&& receipt.transaction === transaction`,
    to: ``,
    ...unknown('a duplicate'),
  },
  {
    invariant: 'I10: a receipt of another payload is no answer to a lost commit',
    file: `${typeorm}operations.ts`,
    from: `if (receipt?.fingerprint !== fingerprint) throw`,
    to: `if (!receipt) throw`,
    ...unknown('another payload'),
  },
  {
    invariant: 'a database that is away for a moment is asked again',
    file: settle,
    from: `if (sqlStateOf(error) === LOCK_TIMEOUT || setupError(error) || clock.now() + pause >= until)`,
    to: `if (pause)`,
    ...unknown('comes back in time'),
  },
  {
    invariant: 'a lost commit is looked for as long as its session may live, whatever became of the lease',
    file: writes,
    from: `Math.ceil(transaction.outlivesMs) + SETTLE_MARGIN_MS`,
    to: `Math.ceil(authority.remainingMs()) + SETTLE_MARGIN_MS`,
    ...unknown('until the idle limit'),
  },
  {
    invariant: 'what the server refused at COMMIT is not looked for',
    file: writes,
    from: `if (!done || !transaction.isUnknown)`,
    to: `if (!done)`,
    ...unknown('refused the COMMIT'),
  },
  {
    invariant: 'field report 12: a lost connection goes back to the pool before another one is asked for',
    file: writes,
    from: `// Gives the lost connection back to the pool, which may have no other.
      await transaction.rollback();`,
    to: ``,
    ...unknown('that was a duplicate|without leaving anything'),
  },
  {
    invariant: 'a duplicate is one, whatever became of its empty commit',
    file: writes,
    from: `if (done.duplicate) return { result: done.result, duplicate: true, committed: false };`,
    to: `if (done.duplicate) throw error;`,
    ...unknown('that was a duplicate'),
  },
  {
    invariant: 'a lost commit that is found ends no lease',
    file: settle,
    from: `return { result, duplicate: false, committed: true };`,
    to: `throw new CommitUnknownError(grant.key, cause);`,
    test: 'unknown-commits-leases',
    title: 'goes on as held where the operation turns out to be accepted',
  },
  {
    invariant: 'an unknown commit of another database does not end the leases around it',
    file: 'libs/fencing/src/core/fenced-writes.ts',
    from: `if (error instanceof CommitUnknownError && leases.some(({ key }) => key === error.key))`,
    to: `if (error instanceof CommitUnknownError)`,
    test: 'core/fenced-writes',
  },
  {
    invariant: 'receipts that are not old enough are kept',
    file: receiptSql,
    from: `AND page.accepted_at < clock_timestamp() - $2::float8 * interval '1 millisecond'`,
    to: `AND $2::float8 > 0`,
    ...receipts('deletes those that are old enough'),
  },
  {
    invariant: 'receipts that a write may still need are not pruned',
    file: 'libs/fencing/src/nest/fencing.service.ts',
    from: `checkMs(where, 'olderThanMs', options.olderThanMs, YOUNGEST_TO_PRUNE_MS);`,
    to: `checkMs(where, 'olderThanMs', options.olderThanMs, 0);`,
    ...receipts('is refused by name, and deletes nothing'),
  },
  {
    invariant: 'a receipt is as old as its effect, not as its claim',
    file: receiptSql,
    from: `SET result = $2::jsonb, accepted_at = clock_timestamp() WHERE`,
    to: `SET result = $2::jsonb WHERE`,
    ...receipts('dated by the end'),
  },
  {
    invariant: 'field report 12: a receipt is read without a second connection',
    file: fence,
    from: `const surrounding = this.writes.surrounding();`,
    to: `const surrounding = this.dataSource ? undefined : this.writes.surrounding();`,
    ...receipts('field report 12'),
  },
  {
    invariant: 'a bigint and a text are two payloads',
    file: operationCore,
    from: 'return { [`${MARK}bigint`]: value.toString() };',
    to: 'return `${value}n`;',
    test: 'core/operation',
  },
  {
    invariant: 'no object passes for a bigint',
    file: operationCore,
    from: `key.startsWith(MARK) ? MARK + key : key`,
    to: `key`,
    test: 'core/operation',
  },
  {
    invariant: 'two payloads that JSON makes {} of are not taken for one',
    file: operationCore,
    from: `if (isOpaque(value)) refuse(`,
    to: `if (false) refuse(`,
    test: 'core/operation',
  },

  // --------------------------------------------------------------------------------------------------------- set-up
  {
    invariant: 'ten processes may boot at the same time',
    file: databaseCheck,
    from: `await runner.query('SELECT pg_advisory_xact_lock($1)', [SCHEMA_LOCK]);`,
    to: ``,
    ...schema('ten processes'),
  },
  {
    invariant: 'tables of another version stop the boot',
    file: databaseCheck,
    from: `if (installed!.version !== SCHEMA_VERSION) {`,
    to: `if (false) {`,
    ...schema('another version'),
  },
  {
    invariant: 'missing privileges stop the boot',
    file: databaseCheck,
    from: `if (!allowed!.granted) throw missingPrivilege();`,
    to: ``,
    ...schema('without INSERT ON fences.fencing_operation'),
  },
  {
    invariant: 'a guard that lets everybody pass stops the boot',
    file: fence,
    from: `await checkGuard(this);`,
    to: ``,
    ...schema('lets everybody pass'),
  },
  {
    invariant: 'missing tables are named by every call',
    file: failures,
    from: `if (state === '42883' || state === '42P01' || state === '3F000')`,
    to: `if (state === '3F000')`,
    ...schema('named by every call'),
  },
  {
    invariant: 'a schema is quoted',
    file: `${typeorm}sql/names.ts`,
    from: `return \`"\${identifier.replaceAll('"', '""')}"\`;`,
    to: `return identifier;`,
    ...schema('can be in the schema'),
  },
  {
    invariant: 'a TypeORM that does not lead every path into the transaction stops the boot',
    file: typeormCheck,
    from: `if (!(await leads())) stray.push(name);`,
    to: `await leads();`,
    ...orm('works differently'),
  },
  {
    invariant: 'the manager of the DataSource is in the transaction',
    file: routing,
    from: `define(manager, 'queryRunner', { get: () => currentRunner() });`,
    to: `define(manager, 'queryRunner', { get: () => undefined });`,
    test: 'write-paths',
    title: 'undone when the method throws',
  },
  {
    invariant: 'a repository that is made in a fenced write does not keep its transaction',
    file: routing,
    from: `runInFrame({ leases: [] }, () => make(of))`,
    to: `make(of)`,
    test: 'write-paths',
    title: 'does not bring what others write',
  },
  {
    invariant: 'a kept query runner streams past no guard',
    file: routing,
    from: `['query', 'stream'] as const`,
    to: `['query'] as const`,
    test: 'write-paths',
    title: 'a stream of a query runner that was kept is refused',
  },
  {
    invariant: 'a stream that would write after the commit is refused',
    file: 'libs/fencing/src/core/fenced-writes.ts',
    from: `if (isStream(result))`,
    to: `if (result === where && isStream(result))`,
    test: 'write-paths',
    title: 'would write after its commit',
  },
  {
    invariant: 'a stored result is read as it was written, whatever parsers pg has',
    file: `${typeorm}sql/receipts.ts`,
    from: `result::text AS result`,
    to: `result`,
    ...receipts('is the same where the application reads'),
  },
  {
    invariant: 'two fences on one DataSource do not hide each other',
    file: routing,
    from: `let here = routed.get(dataSource);`,
    to: `let here = undefined as Routed | undefined;`,
    ...orm('shared by two fences'),
  },
  {
    invariant: 'R4: the fence is at the master',
    file: fence,
    from: `create('master') as PgQueryRunner`,
    to: `create('slave') as PgQueryRunner`,
    ...orm('R4'),
  },
];
