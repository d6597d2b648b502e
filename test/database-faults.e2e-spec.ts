import { randomUUID } from 'node:crypto';
import { CommitUnknownError, StoreUnavailableError, WriteRolledBackError } from 'nestjs-fencing';
import type { EntityManager } from 'typeorm';
import { BareFence, newGrant, successorOf, waitsForLock } from './support/bare-fence.js';
import { eventually, Gate } from './support/gate.js';
import { freshDatabase, PostgresServer } from './support/postgres-server.js';
import { TcpProxy } from './support/proxy.js';

/** Field report 36: the database fails in the middle of a fenced write. */
describe('a fenced write whose database fails', () => {
  let database: Awaited<ReturnType<typeof freshDatabase>>;
  let observer: BareFence;
  let uncaught: unknown[];
  const onUncaught = (error: unknown) => uncaught.push(error);

  beforeAll(async () => {
    database = await freshDatabase();
    observer = await BareFence.open({ url: database.url });
    await observer.dataSource.query(
      'CREATE TABLE things (key text, text text UNIQUE DEFERRABLE INITIALLY DEFERRED)',
    );
    await observer.dataSource.query('CREATE TABLE busy (id int PRIMARY KEY)');
    await observer.dataSource.query('INSERT INTO busy VALUES (1)');
  });
  afterAll(async () => {
    await observer.close();
    await database.drop();
  });
  beforeEach(() => {
    uncaught = [];
    process.on('uncaughtException', onUncaught).on('unhandledRejection', onUncaught);
  });
  afterEach(() => {
    process.off('uncaughtException', onUncaught).off('unhandledRejection', onUncaught);
    expect(uncaught).toEqual([]);
  });

  /** What a test has opened, in the order to close it. */
  const opened: (() => Promise<void>)[] = [];
  afterEach(async () => {
    for (const close of opened.splice(0)) await close();
  });
  const open = async (options: Parameters<typeof BareFence.open>[0] = {}) => {
    const bare = await BareFence.open({ url: database.url, poolSize: 2, ...options });
    opened.unshift(() => bare.close());
    return bare;
  };
  const openThroughProxy = async (extra?: object) => {
    const proxy = await TcpProxy.start(database.url);
    opened.unshift(() => proxy.stop());
    return { proxy, bare: await open({ url: proxy.url, dataSource: { extra } }) };
  };

  const put = (manager: EntityManager, key: string, text: string = randomUUID()) =>
    manager.query('INSERT INTO things VALUES ($1, $2)', [key, text]);
  const stored = async (by: BareFence, key: string) =>
    Number((await by.dataSource.query('SELECT count(*) FROM things WHERE key = $1', [key]))[0].count);
  const pidOf = async (manager: EntityManager) =>
    (await manager.query('SELECT pg_backend_pid() AS pid'))[0].pid as number;

  /** Everything goes on as if nothing had happened: no connection is lost, fifty more writes are accepted. */
  async function proveRecovered(bare: BareFence, key: string): Promise<void> {
    expect(await stored(observer, key)).toBe(0);
    await eventually(() => bare.checkedOut === 0);
    const grant = newGrant();
    await bare.activate(grant);
    for (let i = 0; i < 50; i++) {
      expect(await bare.write(grant, (manager) => put(manager, grant.key))).toMatchObject({
        committed: true,
      });
    }
    expect(await stored(observer, grant.key)).toBe(50);
    expect([bare.checkedOut, bare.pool.waitingCount]).toEqual([0, 0]);
  }

  /** What goes wrong after the first statement, and what the caller can tell from the error. */
  type Fault = (manager: EntityManager, pid: number, bare: BareFence) => Promise<unknown>;
  const FAULTS: Record<string, [Fault, object]> = {
    'pg_terminate_backend, and then a statement': [
      async (manager, pid) => {
        await observer.dataSource.query('SELECT pg_terminate_backend($1)', [pid]);
        await manager.query('SELECT 1');
      },
      { code: 'STORE_UNAVAILABLE', cause: { code: '57P01' } },
    ],
    'pg_terminate_backend during a statement': [
      async (manager, pid) => {
        const running = manager.query('SELECT pg_sleep(600)');
        await observer.dataSource.query('SELECT pg_terminate_backend($1)', [pid]);
        await running;
      },
      { code: 'STORE_UNAVAILABLE', cause: { code: '57P01' } },
    ],
    'pg_terminate_backend, and nothing more': [
      async (_, pid, bare) => {
        await observer.dataSource.query('SELECT pg_terminate_backend($1)', [pid]);
        await eventually(() => bare.checkedOut === 0);
      },
      { code: 'STORE_UNAVAILABLE', cause: { code: '57P01' } },
    ],
    'pg_terminate_backend that races with COMMIT': [
      (_, pid) => observer.dataSource.query('SELECT pg_terminate_backend($1)', [pid]),
      {
        code: expect.stringMatching(/^(STORE_UNAVAILABLE|COMMIT_UNKNOWN)$/) as unknown,
        cause: { code: '57P01' },
      },
    ],
    'pg_terminate_backend, which the body swallows': [
      async (manager, pid) => {
        await observer.dataSource.query('SELECT pg_terminate_backend($1)', [pid]);
        await manager.query('SELECT 1').catch(() => undefined);
      },
      { code: 'STORE_UNAVAILABLE', cause: { code: '57P01' } },
    ],
    idle_in_transaction_session_timeout: [
      async (manager) => {
        await manager.query(`SET LOCAL idle_in_transaction_session_timeout = '300ms'`);
        await new Promise((resolve) => setTimeout(resolve, 1_000));
        await manager.query('SELECT 1');
      },
      { code: 'STORE_UNAVAILABLE', cause: { code: '25P03' } },
    ],
    statement_timeout: [
      async (manager) => {
        await manager.query(`SET LOCAL statement_timeout = '100ms'`);
        await manager.query('SELECT pg_sleep(600)');
      },
      { driverError: { code: '57014' } },
    ],
    lock_timeout: [
      (manager) =>
        observer.dataSource.transaction(async (other) => {
          await other.query('SELECT 1 FROM busy FOR UPDATE');
          await manager.query(`SET LOCAL lock_timeout = '100ms'`);
          await manager.query('SELECT 1 FROM busy FOR UPDATE');
        }),
      { driverError: { code: '55P03' } },
    ],
  };

  it.each(Object.entries(FAULTS))(
    '%s: told with its cause, no effect, and all goes on',
    async (_, [fail, told]) => {
      const bare = await open();
      const grant = newGrant();
      await bare.activate(grant);
      const write = bare.write(grant, async (manager) => {
        await put(manager, grant.key);
        await fail(manager, await pidOf(manager), bare);
      });
      await expect(write).rejects.toMatchObject(told);
      await proveRecovered(bare, grant.key);
    },
  );

  it('a stalled socket under query_timeout: told with its cause, no effect, and all goes on', async () => {
    const { proxy, bare } = await openThroughProxy({ query_timeout: 1_000 });
    const grant = newGrant();
    await bare.activate(grant);
    const write = bare.write(grant, async (manager) => {
      await put(manager, grant.key);
      proxy.stall();
      await manager.query('SELECT 1');
    });
    await expect(write).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
      cause: { message: 'Query read timeout' },
    });
    proxy.resume();
    await proveRecovered(bare, grant.key);
  });

  it('a cut connection: told with its cause, no effect, and all goes on', async () => {
    const { proxy, bare } = await openThroughProxy();
    const grant = newGrant();
    await bare.activate(grant);
    const write = bare.write(grant, async (manager) => {
      await put(manager, grant.key);
      proxy.cutAll();
      await manager.query('SELECT 1');
    });
    const refusal = await write.catch((error: unknown) => error);
    expect(refusal).toBeInstanceOf(StoreUnavailableError);
    expect((refusal as { cause: Error }).cause.message).toMatch(/connection|ECONNRESET/i);
    await proveRecovered(bare, grant.key);
  });

  it('no server at all: every call says unavailable and why, and all goes on when it is back', async () => {
    const { proxy, bare } = await openThroughProxy();
    const grant = newGrant();
    await bare.activate(grant);
    proxy.refuse();
    proxy.cutAll();
    await eventually(() => bare.pool.totalCount === 0);
    for (const call of [
      () => bare.fence.activate({ ...grant, waitMs: 100 }),
      () => bare.write(grant, async () => 'ran'),
      () => bare.fence.inspect(grant.key),
    ]) {
      await expect(call()).rejects.toMatchObject({
        code: 'STORE_UNAVAILABLE',
        cause: { code: 'ECONNREFUSED' },
      });
    }
    await proxy.accept();
    await proveRecovered(bare, grant.key);
  });

  it('a lost answer to the guard: unavailable, and the body never ran', async () => {
    const { proxy, bare } = await openThroughProxy();
    const grant = newGrant();
    await bare.activate(grant);
    const lost = proxy.swallowReplyOnce((sql) => sql.includes('fencing_guard'));
    let ran = false;
    await expect(bare.write(grant, async () => (ran = true))).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
    });
    await lost;
    expect(ran).toBe(false);
    await proveRecovered(bare, grant.key);
  });

  it('I6: a lost answer to an activation: unavailable, and sent again it is content', async () => {
    const { proxy, bare } = await openThroughProxy();
    const grant = newGrant();
    const lost = proxy.swallowReplyOnce((sql) => sql.includes('fencing_activate'));
    await expect(bare.activate(grant)).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
    await lost;
    await bare.activate(grant);
    await bare.write(grant, async () => undefined);
  });

  describe('at its COMMIT', () => {
    it('answered with ROLLBACK, since the body swallowed an error: refused by name, with that error as the cause', async () => {
      const grant = newGrant();
      await observer.activate(grant);
      const write = observer.write(grant, async (manager) => {
        await put(manager, grant.key);
        await manager.query('SELECT 1/0').catch(() => undefined);
        return 'as if nothing had happened';
      });
      const refusal = await write.catch((error: unknown) => error);
      expect(refusal).toBeInstanceOf(WriteRolledBackError);
      expect(refusal).toMatchObject({ cause: { code: '22012' } });
      await proveRecovered(observer, grant.key);
    });

    it('refused by a deferred constraint: the error of the server passes through', async () => {
      const grant = newGrant();
      await observer.activate(grant);
      const write = observer.write(grant, async (manager) => {
        await put(manager, grant.key, 'the same text');
        await put(manager, grant.key, 'the same text');
      });
      await expect(write).rejects.toMatchObject({ name: 'QueryFailedError', driverError: { code: '23505' } });
      await proveRecovered(observer, grant.key);
    });

    it('whose answer is lost, without an operation id: unknown', async () => {
      const { proxy, bare } = await openThroughProxy();
      const grant = newGrant();
      await bare.activate(grant);
      const lost = proxy.swallowReplyOnce((sql) => sql === 'COMMIT');
      const unknown = await bare
        .write(grant, (manager) => put(manager, grant.key))
        .catch((error: unknown) => error);
      await lost;
      expect(unknown).toBeInstanceOf(CommitUnknownError);
      expect(unknown).toMatchObject({ key: grant.key, search: undefined });
      expect(await stored(observer, grant.key)).toBe(1);
      expect(bare.checkedOut).toBe(0);
    });

    it('that never arrived: unknown, and nothing was written', async () => {
      const { proxy, bare } = await openThroughProxy();
      const grant = newGrant();
      await bare.activate(grant);
      proxy.forget();
      const write = bare.write(grant, async (manager) => {
        await put(manager, grant.key);
        proxy.stall('requests');
      });
      write.catch(() => undefined);
      await eventually(() => proxy.requests.some(({ text }) => text === 'COMMIT'));
      proxy.cutAll();
      proxy.resume();
      await expect(write).rejects.toBeInstanceOf(CommitUnknownError);
      await proveRecovered(bare, grant.key);
    });

    it('whose answer is lost while its backend still runs: the next owner waits for it', async () => {
      const { proxy, bare } = await openThroughProxy();
      const next = await open({ name: 'faults-next' });
      const grant = newGrant();
      await bare.activate(grant);
      // A deferred trigger keeps the COMMIT busy until the test lets it go.
      const { dataSource } = observer;
      await dataSource.query('CREATE TABLE slow (key text)');
      await dataSource.query(
        `CREATE FUNCTION wait_for_gate() RETURNS trigger LANGUAGE plpgsql AS
         'BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END'`,
      );
      await dataSource.query(
        `CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED
         FOR EACH ROW EXECUTE FUNCTION wait_for_gate()`,
      );
      const gate = new Gate();
      const locked = new Gate();
      const held = dataSource.transaction(async (manager) => {
        await manager.query('SELECT pg_advisory_xact_lock(4711)');
        locked.open();
        await gate.wait();
      });
      await locked.wait();

      const write = bare.write(grant, (manager) =>
        manager.query('INSERT INTO slow VALUES ($1)', [grant.key]),
      );
      write.catch(() => undefined);
      await eventually(async () => {
        const rows = await dataSource.query(
          `SELECT 1 FROM pg_stat_activity WHERE query = 'COMMIT' AND wait_event_type = 'Lock'`,
        );
        return rows.length > 0;
      });
      proxy.cutAll();
      await expect(write).rejects.toBeInstanceOf(CommitUnknownError);

      const activation = next.activate(successorOf(grant), 60_000);
      await Promise.race([waitsForLock(dataSource, 'faults-next'), activation]);
      gate.open();
      await Promise.all([held, activation]);
      // Fenced out or committed before the activation returned, but nothing comes after it.
      const [{ count }] = await dataSource.query('SELECT count(*) FROM slow');
      expect(Number(count)).toBeLessThanOrEqual(1);
      const again = await dataSource.query(
        `SELECT 1 FROM pg_stat_activity WHERE query = 'COMMIT' AND state = 'active'`,
      );
      expect(again).toEqual([]);
    });
  });
});

describe('a restart of the server', () => {
  it('in the middle of a fenced write: told with its cause, no effect, and all goes on', async () => {
    const server = await PostgresServer.start();
    const bare = await BareFence.open({ url: server.url, poolSize: 2 });
    await bare.dataSource.query('CREATE TABLE things (key text)');
    const grant = newGrant();
    await bare.activate(grant);
    const write = bare.write(grant, async (manager) => {
      await manager.query('INSERT INTO things VALUES ($1)', [grant.key]);
      await server.restart('fast');
      await manager.query('SELECT 1');
    });
    await expect(write).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE', cause: { code: '57P01' } });
    await eventually(() => bare.checkedOut === 0);
    // The fence has survived: the same grant goes on.
    for (let i = 0; i < 50; i++) {
      await bare.write(grant, (manager) => manager.query('INSERT INTO things VALUES ($1)', [grant.key]));
    }
    const [{ count }] = await bare.dataSource.query('SELECT count(*) FROM things');
    expect([Number(count), bare.checkedOut]).toEqual([50, 0]);
    await bare.close();
    await server.stop();
  });
});
