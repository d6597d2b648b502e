// Mechanisms of the lease store in PostgreSQL, each taken out. See scripts/mutants.mjs.

const sql = 'libs/fencing/src/typeorm/postgres-leases-sql.ts';
const store = 'libs/fencing/src/typeorm/postgres-lease-store.ts';
const sender = 'libs/fencing/src/typeorm/postgres-step-sender.ts';
const wakeUps = 'libs/fencing/src/typeorm/postgres-wake-ups.ts';
const connections = 'libs/fencing/src/typeorm/postgres-connections.ts';

/** @param {string} title */
const contract = (title) => ({ test: 'postgres-lease-store', title: `the contract .*${title}` });
/** @param {string} title */
const own = (title) => ({ test: 'postgres-lease-store', title });
/** @param {string} title */
const app = (title) => ({ test: 'postgres-leases', title });

/** @type {import('../../scripts/mutants.mjs').Mutant[]} */
export default [
  // ------------------------------------------------------------------------------------------------- one atomic step each
  {
    invariant: 'a step of a bucket comes after the one before it: it takes the lock of the bucket (Postgres)',
    file: sql,
    from: 'PERFORM pg_advisory_xact_lock(${BUCKET_LOCKS}, v_bucket);',
    to: 'NULL;',
    ...contract('(grants a key once|whatever many workers)'),
  },
  {
    invariant: 'I5: release compares the owner (Postgres)',
    file: sql,
    from: `(v_lease.owner = p_step->>'owner' AND v_lease.expires_at > v_now) IS NOT TRUE`,
    to: `(v_lease.expires_at > v_now) IS NOT TRUE`,
    ...contract('I5: release'),
  },
  {
    invariant: 'I5: renewal compares the owner (Postgres)',
    file: sql,
    from: `WHERE l.key = w.key AND l.owner = w.owner AND l.expires_at`,
    to: `WHERE l.key = w.key AND l.expires_at`,
    ...contract('I5: renewal'),
  },
  {
    invariant: 'a renewal does not bring back a lease that is over (field report 7, Postgres)',
    file: sql,
    from: `AND l.owner = w.owner AND l.expires_at > clock_timestamp() RETURNING`,
    to: `AND l.owner = w.owner RETURNING`,
    ...contract('(never creates a key|frees the key when its ttl)'),
  },
  {
    invariant: 'I6: an acquisition that is sent again is no second one (Postgres)',
    file: sql,
    from: `IF v_lease.owner = v_owner AND v_lease.generation > v_floor THEN`,
    to: `IF false THEN`,
    ...contract('I6: answers a repeated acquisition'),
  },
  {
    invariant: 'a grant is above the floor (Postgres)',
    file: sql,
    from: `(extract(epoch FROM clock_timestamp()) * 1000000)::bigint, p_floor + 1)`,
    to: `(extract(epoch FROM clock_timestamp()) * 1000000)::bigint)`,
    ...contract('issues above the floor'),
  },
  {
    invariant: 'I7: the clock stands in for a counter that was lost (Postgres)',
    file: sql,
    from: `(extract(epoch FROM clock_timestamp()) * 1000000)::bigint, p_floor + 1)`,
    to: `p_floor + 1)`,
    ...contract('I7: after it lost'),
  },
  {
    invariant: 'generations are above the last one issued (Postgres)',
    file: sql,
    from: `SELECT c.last + 1 INTO v_generation`,
    to: `SELECT 0 INTO v_generation`,
    ...own('count on from a counter'),
  },
  {
    invariant: 'generations stop at 2^53 - 1 (Postgres)',
    file: sql,
    from: `IF v_generation > 9007199254740991 THEN`,
    to: `IF false THEN`,
    ...contract('reaches the largest safe integer'),
  },
  {
    invariant: 'a waiter that gives up takes nothing from the holder (Postgres; found by the random load)',
    file: sql,
    from: `RETURNING l.kept_for = v_waiter AND l.expires_at > clock_timestamp() INTO v_kept;`,
    to: `RETURNING true INTO v_kept;`,
    ...contract('a waiter that withdraws while others wait'),
  },
  {
    invariant: 'a release gives the key to the process that waits, not to the successor (Postgres)',
    file: sql,
    from: `IF (v_next->>'mayOvertake')::boolean IS NOT TRUE THEN`,
    to: `IF v_next IS NULL THEN`,
    ...contract('refuses the hand-over'),
  },
  {
    invariant: 'a release wakes the process that waits (Postgres)',
    file: sql,
    from: `PERFORM pg_notify(p_channel, v_waiters[1] || ' ' || p_keep_ms || ' ' || p_key);`,
    to: `NULL;`,
    // By listening: one that polls is told anyway.
    test: 'postgres-lease-store',
    title: 'the contract those who wait wakes a waiting process',
  },
  {
    invariant: 'a step sees what the one before it committed: READ COMMITTED is demanded (Postgres)',
    file: sql,
    from: `IF current_setting('transaction_isolation') <> 'read committed' THEN`,
    to: `IF false THEN`,
    ...own('do not run in READ COMMITTED'),
  },
  {
    invariant: 'no session waits for longer than its request may take (Postgres)',
    file: sql,
    from: "PERFORM set_config('lock_timeout', '${LOCK_WITHIN_MS}', true);",
    to: 'NULL;',
    test: 'postgres-leases-limits',
    title: 'whose rows somebody has locked',
  },
  {
    invariant: 'what PostgreSQL cannot do now may be tried again (field report 17, Postgres)',
    file: store,
    from: `retryable: state === undefined || PASSING.test(state)`,
    to: `retryable: state === undefined`,
    test: 'postgres-leases-limits',
    title: 'read-only',
  },
  // --------------------------------------------------------------------------------------------------------- what is kept
  {
    invariant: 'I11: rows that are over are removed (Postgres)',
    file: store,
    from: `if (performance.now() >= this.sweepAt) this.sweep();`,
    to: ``,
    ...own('I11: keep nothing'),
  },
  {
    invariant: 'a sweep leaves alone those who wait (Postgres)',
    file: sql,
    from: `greatest(o.expires_at, o.waiters_until) <`,
    to: `o.expires_at <`,
    ...own('a sweep leaves alone'),
  },
  {
    invariant: 'no lease waits for the disk (Postgres)',
    file: sql,
    from: 'CREATE UNLOGGED TABLE IF NOT EXISTS ${this.lease} (',
    to: 'CREATE TABLE IF NOT EXISTS ${this.lease} (',
    ...own('are UNLOGGED'),
  },
  // ----------------------------------------------------------------------------------------------------- connections, hints
  {
    invariant: 'the steps of a process keep their order (Postgres)',
    file: sender,
    from: `if (this.underWay) return;`,
    to: ``,
    ...app('the release is never overtaken'),
  },
  {
    invariant: 'a request to a silent server is given up (Postgres)',
    file: connections,
    from: `query_timeout: ANSWER_WITHIN_MS, keepAlive: true, }); // A broken`,
    to: `keepAlive: true, }); // A broken`,
    ...own('that is silent is given up'),
  },
  {
    invariant: 'the lease store waits for no connection of the application (Postgres)',
    file: connections,
    from: `const pool = new driver.Pool({`,
    to: `const pool = (this.target as DataSource).driver ? ((this.target as DataSource).driver as unknown as { master: PgPool }).master : new driver.Pool({`,
    ...app('field report 12'),
  },
  {
    invariant: 'I9: a connection that listens is replaced when it breaks (Postgres)',
    file: wakeUps,
    from: `this.current = undefined; client.end().catch(() => undefined); this.again();`,
    to: `this.current = undefined; client.end().catch(() => undefined);`,
    ...own('I9: a connection that listens'),
  },
  {
    invariant: 'I9: whoever waited while nobody listened looks again (Postgres)',
    file: wakeUps,
    from: `if (this.attempt > 0) this.listeners.tellAll();`,
    to: ``,
    ...own('I9: a connection that listens'),
  },
  {
    invariant: 'a hint that overtook its answer is heard (Postgres)',
    file: wakeUps,
    from: `for (const { hint } of this.recent.filter((one) => one.key === key && one.at >= since)) listener(hint);`,
    to: ``,
    ...contract('a hint that came before'),
  },
  {
    invariant: 'a connection that cannot LISTEN is found at boot (Postgres)',
    file: store,
    from: `return heard ? [] : [DEAF];`,
    to: `return [];`,
    ...own('with a connection that cannot LISTEN'),
  },
];
