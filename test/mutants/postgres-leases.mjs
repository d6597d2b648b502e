// Mechanisms of the lease store in PostgreSQL, each taken out. See scripts/mutants.mjs.

const sql = 'libs/fencing/src/typeorm/leases/postgres-leases-sql.ts';
const store = 'libs/fencing/src/typeorm/leases/postgres-lease-store.ts';
const sender = 'libs/fencing/src/typeorm/leases/postgres-step-sender.ts';
const wakeUps = 'libs/fencing/src/typeorm/leases/postgres-wake-ups.ts';
const connections = 'libs/fencing/src/typeorm/leases/postgres-connections.ts';

/** @param {string} title */
const contract = (title) => ({ test: 'postgres-lease-store', title: `the contract .*${title}` });
/** @param {string} title */
const own = (title) => ({ test: 'postgres-lease-store', title });
/** @param {string} title */
const app = (title) => ({ test: 'postgres-leases', title });

const joined = 'libs/fencing/src/typeorm/leases/postgres-joined-fence.ts';
/** @param {string} title */
const activates = (title) => ({ test: 'postgres-leases-activation', title });

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
  // ----------------------------------------------------------------------------------- granted and activated in one request
  {
    invariant: 'leases wait for no commit of the fence: theirs comes first (Postgres)',
    file: sql,
    from: `-- Without a wait for the disk, and the locks of the buckets go. COMMIT;`,
    to: ``,
    ...activates('a commit of the fence that waits for a replica'),
  },
  {
    invariant: 'I1: a grant below the fence is not called activated (Postgres)',
    file: sql,
    from: `IF v_ahead IS NULL THEN`,
    to: `IF true THEN`,
    ...own('activates what it grants .*never lowers'),
  },
  {
    invariant: 'a fence that cannot be raised at once fails no grant (Postgres)',
    file: sql,
    from: `EXCEPTION WHEN OTHERS THEN NULL; END;`,
    to: `END;`,
    ...own('activates what it grants .*does not pass a write'),
  },
  {
    invariant: 'an activation in the request of its grant waits for nobody (Postgres)',
    file: sql,
    from: `const ACTIVATE_WITHIN_MS = 1;`,
    to: `const ACTIVATE_WITHIN_MS = 10_000;`,
    ...own('activates what it grants .*does not pass a write'),
  },
  {
    invariant: 'the successor is activated as itself, not as the owner before it (Postgres)',
    file: sql,
    from: `v_claim := coalesce(p_steps->i->'next', p_steps->i);`,
    to: `v_claim := p_steps->i;`,
    ...own('activates what it grants .*raises the fence to a successor'),
  },
  {
    invariant: 'only what asks for it is activated (Postgres)',
    file: sql,
    from: `IF v_claim->'activate' = 'true' AND`,
    to: `IF`,
    ...own('activates what it grants .*leaves the fence alone'),
  },
  {
    invariant: 'I2: an activation in the request of its grant is as durable as one of its own (Postgres)',
    file: joined,
    from: `this.certain = { function: name('fencing_activate'), durable };`,
    to: `this.certain = { function: name('fencing_activate'), durable: false };`,
    ...activates('I2: the fence is as high'),
  },
  {
    invariant: 'a fence is activated only through the DataSource that its writes go through (Postgres)',
    file: joined,
    from: `fence instanceof TypeOrmFence && fence.activation.dataSource === this.dataSource`,
    to: `fence instanceof TypeOrmFence`,
    ...activates('leases by a URL of their own'),
  },
  {
    invariant: 'a fence is activated only where both sessions find the same one (Postgres)',
    file: joined,
    from: `if (found === JSON.stringify(its) && !found.includes('null'))`,
    to: `if (found)`,
    ...activates('sessions of the application that find another fence'),
  },
  {
    invariant:
      'an activation that a replica holds up does not hold up the steps after it, time and again (Postgres)',
    file: store,
    from: `this.joined.rest(); throw error;`,
    to: `throw error;`,
    ...activates('a commit of the fence that waits for a replica'),
  },
  {
    invariant: 'a store that two fences share activates in neither (Postgres)',
    file: joined,
    from: `if (this.fence && this.fence !== fence) this.refused = true;`,
    to: ``,
    ...activates('a store that two fences share'),
  },
  {
    invariant: 'a grant that the store has not activated is activated before the body begins',
    file: 'libs/fencing/src/core/lease-taker.ts',
    from: `return !call.activate || lease.activated;`,
    to: `return !call.activate || !lease.activated;`,
    ...activates('I2, I3: an open write'),
  },
  {
    invariant: "activate: 'write' is not activated with its grant",
    file: 'libs/fencing/src/core/lease-taker.ts',
    from: `activate: this.activation.isDueAtStart(options),`,
    to: `activate: true,`,
    ...activates("activate: 'write'"),
  },
  {
    invariant: 'a hand-over in the process is one request (Postgres)',
    file: 'libs/fencing/src/core/hand-over.ts',
    from: `activate: next.activate,`,
    to: ``,
    ...activates('one request for each caller'),
  },
];
