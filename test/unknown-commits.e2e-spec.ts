import { randomUUID } from 'node:crypto';
import {
  CommitUnknownError,
  type Grant,
  type IsolationLevel,
  OperationConflictError,
  StoreUnavailableError,
} from 'nestjs-fencing';
import type { EntityManager } from 'typeorm';
import {
  Authority,
  BareFence,
  newGrant,
  operation,
  successorOf,
  waitsForLock,
} from './support/bare-fence.js';
import { eventually, Gate } from './support/gate.js';
import { freshDatabase, PostgresServer } from './support/postgres-server.js';
import { TcpProxy } from './support/proxy.js';

const isCommit = (sql: string) => sql === 'COMMIT';

describe('an operation whose connection dies at its COMMIT', () => {
  let database: Awaited<ReturnType<typeof freshDatabase>>;
  let observer: BareFence;
  let id: string;
  let grant: Grant;
  const opened: (() => Promise<unknown>)[] = [];

  beforeAll(async () => {
    database = await freshDatabase();
    observer = await BareFence.open({ url: database.url });
    const { dataSource } = observer;
    await dataSource.query('CREATE TABLE effects (operation text, by text)');
    // Its rows keep a COMMIT busy until the advisory lock of their number is free.
    await dataSource.query('CREATE TABLE slow (lock int)');
    await dataSource.query(
      `CREATE FUNCTION wait_for_gate() RETURNS trigger LANGUAGE plpgsql AS
       'BEGIN PERFORM pg_advisory_xact_lock(new.lock); RETURN NULL; END'`,
    );
    await dataSource.query(
      `CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED
       FOR EACH ROW EXECUTE FUNCTION wait_for_gate()`,
    );
  });
  afterAll(async () => {
    await observer.close();
    await database.drop();
  });
  beforeEach(async () => {
    id = `operation-${randomUUID()}`;
    grant = newGrant();
    await observer.activate(grant);
  });
  afterEach(async () => {
    for (const close of opened.splice(0)) await close();
  });

  /** @param settings of the sessions, as in postgresql.conf */
  const open = async (settings = '', options: Parameters<typeof BareFence.open>[0] = {}) => {
    const proxy = await TcpProxy.start(database.url);
    opened.unshift(() => proxy.stop());
    const bare = await BareFence.open({
      url: proxy.url,
      poolSize: 1,
      name: 'unknown-commits',
      dataSource: { extra: { options: settings } },
      ...options,
    });
    opened.unshift(() => bare.close());
    return { proxy, bare };
  };
  const put = (manager: EntityManager, as = id, by = 'first') =>
    manager.query('INSERT INTO effects VALUES ($1, $2)', [as, by]);
  const pidOf = async (manager: EntityManager) =>
    (await manager.query('SELECT pg_backend_pid() AS pid'))[0].pid as number;
  const terminate = (pid: number) => observer.dataSource.query('SELECT pg_terminate_backend($1)', [pid]);
  const effects = async (of = id): Promise<string[]> => {
    const rows = await observer.dataSource.query('SELECT by FROM effects WHERE operation = $1', [of]);
    return (rows as { by: string }[]).map(({ by }) => by);
  };
  /** Holds up every COMMIT of a transaction that has called `slow`, until the gate is opened. */
  const holdCommits = async () => {
    const lock = Math.floor(Math.random() * 2 ** 31);
    const gate = new Gate();
    const locked = new Gate();
    const held = observer.dataSource.transaction(async (manager) => {
      await manager.query('SELECT pg_advisory_xact_lock($1)', [lock]);
      locked.open();
      await gate.wait();
    });
    await locked.wait();
    opened.unshift(async () => {
      gate.open();
      await held;
    });
    return {
      gate,
      slow: (manager: EntityManager) => manager.query('INSERT INTO slow VALUES ($1)', [lock]),
      /** Resolves once such a COMMIT runs, to its backend. */
      running: async (): Promise<number> =>
        (await eventually(async () => {
          const [backend] = await observer.dataSource.query<{ pid: number }[]>(
            `SELECT a.pid FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid
             WHERE a.query = 'COMMIT' AND l.locktype = 'advisory' AND l.objid = $1 AND NOT l.granted`,
            [lock],
          );
          return backend?.pid;
        }))!,
    };
  };
  /** The server goes on with a COMMIT although its client is gone. */
  const NO_CHECK = '-c client_connection_check_interval=3600000';
  const settling = `SELECT 1 FROM pg_stat_activity WHERE query LIKE 'START TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE%'
    AND wait_event_type = 'Lock' AND datname = current_database()`;
  const isSettling = () =>
    eventually(async () => (await observer.dataSource.query<unknown[]>(settling)).length > 0);

  describe('is answered as the table has it, whatever happened:', () => {
    interface Round {
      readonly proxy: TcpProxy;
      readonly manager: EntityManager;
      /** What goes wrong once the body is done. */
      readonly later: Promise<unknown>[];
    }
    type Fault = (round: Round) => Promise<unknown>;
    const FAULTS: [string, number, 'accepted' | 'not accepted' | 'either', Fault][] = [
      [
        'the backend is killed before COMMIT is sent',
        40,
        'not accepted',
        async ({ manager }) => terminate(await pidOf(manager)),
      ],
      [
        'the backend is killed while COMMIT is on its way',
        40,
        'either',
        async ({ manager, later }) => later.push(terminate(await pidOf(manager))),
      ],
      [
        'the backend is killed while COMMIT runs',
        20,
        'not accepted',
        async ({ manager, later }) => {
          const { slow, running, gate } = await holdCommits();
          await slow(manager);
          later.push(
            running()
              .then(terminate)
              .then(() => gate.open()),
          );
        },
      ],
      [
        'the answer to COMMIT is swallowed',
        50,
        'accepted',
        async ({ proxy, later }) => later.push(proxy.swallowReplyOnce(isCommit)),
      ],
      [
        'COMMIT is swallowed, and the connection breaks',
        40,
        'not accepted',
        async ({ proxy, later }) => later.push(proxy.loseRequestsFrom(isCommit).then(() => proxy.cutAll())),
      ],
      [
        'COMMIT is swallowed, and the server does not hear that its client is gone',
        10,
        'not accepted',
        async ({ proxy, later }) => later.push(proxy.loseRequestsFrom(isCommit, { hangUp: true })),
      ],
    ];
    const LEVELS: (IsolationLevel | undefined)[] = [
      undefined,
      'READ COMMITTED',
      'REPEATABLE READ',
      'SERIALIZABLE',
    ];

    it.each(FAULTS)('%s (%i rounds): %s', async (name, rounds, expected, fault) => {
      const isHalfOpen = name.includes('does not hear');
      const { proxy, bare } = await open();
      const seen = { accepted: 0, 'not accepted': 0 };
      for (let i = 0; i < rounds; i++) {
        const grants = Array.from({ length: 1 + (i % 3) }, (_, n) => newGrant(1, `${n}-${randomUUID()}`));
        for (const each of grants) await observer.activate(each);
        const hostile = `it's ${i} \\' $1 "${randomUUID()}"`;
        const later: Promise<unknown>[] = [];
        const answer = await bare
          .write(
            // The idle limit of the lost backend: it is waited out where nobody ends it sooner.
            new Authority(grants, isHalfOpen ? 500 : 30_000),
            async (manager) => {
              if (i % 2) await manager.query('SET LOCAL synchronous_commit = off');
              await put(manager, hostile);
              await fault({ proxy, manager, later });
              return { round: i };
            },
            { operation: operation(hostile), isolation: LEVELS[i % 4] },
          )
          .catch((error: unknown) => error);
        await Promise.all(later);

        if (answer instanceof StoreUnavailableError) {
          expect(answer).toMatchObject({ store: 'database', retryable: true, key: grants[0]!.key });
          // Where COMMIT was sent, it was looked for; else there was nothing to look for.
          if (/swallowed|runs/.test(name)) expect(answer.message).toContain('nothing of it will be');
          expect([await effects(hostile), await observer.fence.receipt(hostile)]).toEqual([[], undefined]);
          seen['not accepted'] += 1;
        } else {
          expect(answer).toEqual({ result: { round: i }, duplicate: false, committed: true });
          expect(await effects(hostile)).toEqual(['first']);
          expect(await observer.fence.receipt(hostile)).toMatchObject({
            owner: grants[0]!.owner,
            result: { round: i },
          });
          seen.accepted += 1;
        }
        // Nothing of it is under way any more: the next owner does not wait, and finds the same.
        const before = await effects(hostile);
        for (const each of grants) await observer.activate(successorOf(each), 1_000);
        expect(await effects(hostile)).toEqual(before);
        expect([bare.checkedOut, bare.pool.waitingCount]).toEqual([0, 0]);
      }
      expect(seen.accepted + seen['not accepted']).toBe(rounds);
      if (expected !== 'either') expect(seen[expected]).toBe(rounds);
    });
  });

  it('and whose backend still runs is waited for; the lease may go on, and its next owner waits as ever', async () => {
    const { proxy, bare } = await open(NO_CHECK);
    const next = await open('', { name: 'unknown-next' });
    const { gate, slow, running } = await holdCommits();
    const write = bare.write(grant, (manager) => put(manager).then(() => slow(manager)), {
      operation: operation(id),
    });
    await running();
    proxy.cutAll();
    await isSettling();
    const activation = next.bare.activate(successorOf(grant), 60_000);
    await waitsForLock(observer.dataSource, 'unknown-next');
    expect(await effects()).toEqual([]);
    gate.open();
    expect(await write).toMatchObject({ duplicate: false, committed: true });
    expect(await effects()).toEqual(['first']);
    await activation;
  });

  it('waits for no other write of its lease', async () => {
    const { proxy, bare } = await open();
    const gate = new Gate();
    const { outcome: sibling } = await observer.begin(grant, () => gate.wait());
    const lost = proxy.swallowReplyOnce(isCommit);
    const write = bare.write(grant, (manager) => put(manager), { operation: operation(id) });
    expect(await Promise.race([write, sibling])).toMatchObject({ committed: true });
    await lost;
    gate.open();
    await sibling;
  });

  it('and that another owner sent again meanwhile is a duplicate with the result of that one', async () => {
    const { bare } = await open();
    const other = newGrant();
    await observer.activate(other);
    const { slow, running } = await holdCommits();
    const write = bare.write(grant, (manager) => slow(manager).then(() => 'of the lost one'), {
      operation: operation(id),
    });
    const pid = await running();
    const gate = new Gate();
    const again = observer.write(
      other,
      async (manager) => {
        await put(manager, id, 'second');
        await gate.wait();
        return 'of the second';
      },
      { operation: operation(id) },
    );
    // The second waits for the claim of the first before the first is gone, so it is first in line.
    await eventually(
      async () =>
        (
          await observer.dataSource.query<unknown[]>(
            `SELECT 1 FROM pg_stat_activity WHERE query LIKE 'INSERT INTO fencing_operation%' AND wait_event_type = 'Lock'`,
          )
        ).length > 0,
    );
    await terminate(pid);
    await isSettling();
    gate.open();
    expect(await again).toMatchObject({ result: 'of the second', committed: true });
    expect(await write).toEqual({ result: 'of the second', duplicate: true, committed: false });
    expect(await effects()).toEqual(['second']);
  });

  it.each([
    ['the same payload: a duplicate', undefined],
    ['another payload: refused', 'another'],
  ])('and that the same owner sent in parallel with %s', async (_, fingerprint) => {
    const { bare } = await open();
    const { slow, running } = await holdCommits();
    const write = bare.write(grant, (manager) => slow(manager).then(() => 'lost'), {
      operation: operation(id),
    });
    const pid = await running();
    const gate = new Gate();
    const twin = observer.write(
      grant,
      async (manager) => {
        await put(manager, id, 'twin');
        await gate.wait();
        return 'twin';
      },
      { operation: operation(id, fingerprint) },
    );
    await eventually(
      async () =>
        (
          await observer.dataSource.query<unknown[]>(
            `SELECT 1 FROM pg_stat_activity WHERE query LIKE 'INSERT INTO fencing_operation%' AND wait_event_type = 'Lock'`,
          )
        ).length > 0,
    );
    write.catch(() => undefined);
    await terminate(pid);
    await isSettling();
    gate.open();
    await twin;
    if (fingerprint) await expect(write).rejects.toBeInstanceOf(OperationConflictError);
    else expect(await write).toEqual({ result: 'twin', duplicate: true, committed: false });
    expect(await effects()).toEqual(['twin']);
  });

  it('and that was a duplicate is answered with the stored result', async () => {
    const { proxy, bare } = await open();
    const send = (by: BareFence) =>
      by.write(grant, (manager) => put(manager).then(() => 'stored'), { operation: operation(id) });
    await send(observer);
    const lost = proxy.swallowReplyOnce(isCommit);
    expect(await send(bare)).toEqual({ result: 'stored', duplicate: true, committed: false });
    await lost;
    expect(await effects()).toEqual(['first']);
  });

  it('is looked for until the idle limit of its lost session is over, also where its lease has ended meanwhile', async () => {
    const { proxy, bare } = await open();
    const authority = new Authority(grant, 3_000);
    const lost = proxy
      .loseRequestsFrom(isCommit, { hangUp: true })
      .then(() => authority.end(new Error('the lease has ended')));
    const write = bare.write(
      authority,
      async (manager) => {
        // The limit runs anew from each statement, and so does the session.
        for (let i = 0; i < 12; i++) await manager.query('SELECT pg_sleep(0.2)');
        await put(manager);
      },
      { operation: operation(id) },
    );
    await expect(write).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
    await lost;
    expect([await effects(), await observer.fence.receipt(id)]).toEqual([[], undefined]);
  }, 20_000);

  it('is not looked for where the server refused the COMMIT: its error passes through', async () => {
    await observer.dataSource.query(
      'CREATE TABLE IF NOT EXISTS once (id text UNIQUE DEFERRABLE INITIALLY DEFERRED)',
    );
    const twice = observer.write(
      grant,
      (manager) => manager.query('INSERT INTO once VALUES ($1), ($1)', [id]),
      {
        operation: operation(id),
      },
    );
    await expect(twice).rejects.toMatchObject({ name: 'QueryFailedError', driverError: { code: '23505' } });
    expect(await observer.fence.receipt(id)).toBeUndefined();
  });

  it('is unknown where its end does not come in time, and says why', async () => {
    const { proxy, bare } = await open(NO_CHECK);
    const { gate, slow, running } = await holdCommits();
    const write = bare.write(
      new Authority(grant, 200),
      async (manager) => {
        await put(manager);
        await slow(manager);
      },
      { operation: operation(id) },
    );
    write.catch(() => undefined);
    await running();
    const startedAt = performance.now();
    proxy.cutAll();
    const unknown = await write.catch((error: unknown) => error);
    // The idle limit and two seconds more.
    expect(performance.now() - startedAt).toBeGreaterThan(1_900);
    expect(unknown).toBeInstanceOf(CommitUnknownError);
    expect(unknown).toMatchObject({ key: grant.key, search: { code: '55P03' } });
    expect((unknown as Error).message).toContain('Send the operation again');
    gate.open();
    await eventually(async () => (await effects()).length === 1);
    expect(bare.checkedOut).toBe(0);
  });

  it('is unknown where the database stays away, and found out where it comes back in time', async () => {
    const { proxy, bare } = await open();
    const send = async (validMs: number) => {
      const lost = proxy.swallowReplyOnce(isCommit).then(() => proxy.refuse());
      const write = bare.write(new Authority(grant, validMs), (manager) => put(manager), {
        operation: operation(id),
      });
      write.catch(() => undefined);
      await lost;
      return write;
    };
    const unknown = await send(100).catch((error: unknown) => error);
    expect(unknown).toBeInstanceOf(CommitUnknownError);
    expect(unknown).toMatchObject({ search: { code: 'ECONNREFUSED' } });
    expect(await effects()).toEqual(['first']);

    await proxy.accept();
    id = `operation-${randomUUID()}`;
    const back = eventually(async () => {
      const attempts = bare.pool.totalCount;
      return attempts >= 0 && (await effects()).length === 1;
    }).then(() => proxy.accept());
    expect(await send(30_000)).toMatchObject({ committed: true });
    await back;
  });

  it('is not asked about where the unknown commit is one of another database, inside its body', async () => {
    const { proxy, bare } = await open();
    const lost = proxy.swallowReplyOnce(isCommit);
    const inner = newGrant();
    await observer.activate(inner);
    const outer = observer.write(
      grant,
      async (manager) => {
        await put(manager);
        return bare.write(inner, (other) => put(other, `${id}/inner`));
      },
      { operation: operation(id) },
    );
    const unknown = await outer.catch((error: unknown) => error);
    await lost;
    expect(unknown).toMatchObject({ code: 'COMMIT_UNKNOWN', key: inner.key, search: undefined });
    expect([await effects(), await observer.fence.receipt(id)]).toEqual([[], undefined]);
    expect(await effects(`${id}/inner`)).toEqual(['first']);
  });

  it('is found out about without leaving anything: no row, no lock, no setting', async () => {
    const { proxy, bare } = await open();
    const lost = proxy.loseRequestsFrom(isCommit).then(() => proxy.cutAll());
    const write = bare.write(grant, (manager) => put(manager), { operation: operation(id) });
    await expect(write).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
    await lost;
    expect(await observer.dataSource.query('SELECT 1 FROM fencing_operation WHERE id = $1', [id])).toEqual(
      [],
    );
    expect(await bare.dataSource.query('SHOW lock_timeout')).toEqual([{ lock_timeout: '0' }]);
    // The same operation goes through when it is sent again.
    const again = bare.write(grant, (manager) => put(manager), { operation: operation(id) });
    expect(await again).toMatchObject({ duplicate: false, committed: true });
  });
});

describe('an operation whose server is restarted between its COMMIT and the answer', () => {
  it.each(['fast', 'immediate'] as const)(
    '(%s) is found once the server is back',
    async (mode) => {
      const server = await PostgresServer.start({ synchronous_commit: 'on' });
      const proxy = await TcpProxy.start(server.url);
      const bare = await BareFence.open({ url: proxy.url, poolSize: 1 });
      await bare.dataSource.query('CREATE TABLE effects (n int)');
      const grant = newGrant();
      await bare.activate(grant);
      const write = bare.write(
        grant,
        async (manager) => {
          void proxy.swallowReplyOnce(isCommit, { keepOpen: true }).then(() => server.restart(mode));
          await manager.query('INSERT INTO effects VALUES (1)');
          return 'done';
        },
        { operation: operation('restarted') },
      );
      expect(await write).toEqual({ result: 'done', duplicate: false, committed: true });
      expect(await bare.dataSource.query('SELECT n FROM effects')).toEqual([{ n: 1 }]);
      await bare.close();
      await proxy.stop();
      await server.stop();
    },
    60_000,
  );
});
