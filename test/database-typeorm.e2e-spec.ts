import { FencingConfigError, memoryLeases } from 'nestjs-fencing';
import { typeOrmFence } from 'nestjs-fencing/typeorm';
import {
  Column,
  DataSource,
  type DataSourceOptions,
  Entity,
  type EntitySubscriberInterface,
  EventSubscriber,
  type InsertEvent,
  PrimaryColumn,
  type TransactionCommitEvent,
} from 'typeorm';
import { BareFence, newGrant, successorOf } from './support/bare-fence.js';
import { startFencedApp } from './support/fenced-app.js';
import { freshDatabase } from './support/postgres-server.js';

@Entity('observed')
class Observed {
  @PrimaryColumn('text') id!: string;
  @Column('text') text!: string;
}

const heard: string[] = [];
let afterCommit: ((event: TransactionCommitEvent) => unknown) | undefined;

@EventSubscriber()
class Listener implements EntitySubscriberInterface {
  beforeInsert = () => void heard.push('beforeInsert');
  afterInsert = (event: InsertEvent<unknown>) =>
    void heard.push(`afterInsert in ${event.queryRunner.isTransactionActive}`);
  beforeTransactionCommit = () => void heard.push('beforeTransactionCommit');
  afterTransactionRollback = () => void heard.push('afterTransactionRollback');
  async afterTransactionCommit(event: TransactionCommitEvent) {
    heard.push('afterTransactionCommit');
    await afterCommit?.(event);
  }
}

/** What TypeORM's subscribers may rely on; as docs/guarantees.md says. */
describe('subscribers of TypeORM and a fenced write', () => {
  let bare: BareFence;

  beforeAll(async () => {
    bare = await BareFence.open({
      dataSource: { entities: [Observed], subscribers: [Listener], synchronize: true },
    });
  });
  afterAll(() => bare.close());
  beforeEach(async () => {
    afterCommit = undefined;
    await bare.dataSource.query('TRUNCATE observed');
    heard.length = 0;
  });

  const save = (id: string) => bare.dataSource.getRepository(Observed).insert({ id, text: 'written' });
  const count = () => bare.dataSource.getRepository(Observed).count();

  it('hear the write inside its transaction, and the commit after it', async () => {
    const grant = newGrant();
    await bare.activate(grant);
    heard.length = 0;
    await bare.write(grant, () => save('a'));
    expect(heard).toEqual([
      'beforeInsert',
      'afterInsert in true',
      'beforeTransactionCommit',
      'afterTransactionCommit',
    ]);
  });

  it('hear nothing of a write that is refused as stale', async () => {
    const grant = newGrant();
    await bare.activate(grant);
    await bare.activate(successorOf(grant));
    heard.length = 0;
    await expect(bare.write(grant, () => save('a'))).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    expect(heard).toEqual(['afterTransactionRollback']);
  });

  it('R9: have heard of an insert that was then not committed, and do not hear of a commit', async () => {
    const grant = newGrant();
    await bare.activate(grant);
    heard.length = 0;
    const write = bare.write(grant, async (manager) => {
      await save('a');
      await manager.query('SELECT 1/0').catch(() => undefined);
    });
    await expect(write).rejects.toMatchObject({ code: 'WRITE_ROLLED_BACK' });
    expect(heard).toEqual([
      'beforeInsert',
      'afterInsert in true',
      'beforeTransactionCommit',
      'afterTransactionRollback',
    ]);
    expect(await count()).toBe(0);
  });

  it('may write before the commit, in the same transaction', async () => {
    const grant = newGrant();
    await bare.activate(grant);
    const listener = bare.dataSource.subscribers[0] as Listener;
    const { beforeTransactionCommit } = listener;
    Object.assign(listener, { beforeTransactionCommit: () => save('by the subscriber') });
    await bare.write(grant, () => save('a'));
    Object.assign(listener, { beforeTransactionCommit: () => save('undone') });
    await expect(bare.write(grant, () => Promise.reject(new Error('no')))).rejects.toThrow('no');
    Object.assign(listener, { beforeTransactionCommit });
    expect(await count()).toBe(2);
  });

  it('that fail after the commit reject the call, but what is committed stands', async () => {
    const grant = newGrant();
    await bare.activate(grant);
    afterCommit = () => Promise.reject(new Error('of the subscriber'));
    await expect(bare.write(grant, () => save('a'))).rejects.toThrow('of the subscriber');
    expect([await count(), bare.checkedOut]).toEqual([1, 0]);
  });

  it('that write after the commit are refused: it would be outside the fence', async () => {
    const grant = newGrant();
    await bare.activate(grant);
    afterCommit = ({ manager }) => manager.query(`INSERT INTO observed VALUES ('late', 'late')`);
    await expect(bare.write(grant, () => save('a'))).rejects.toMatchObject({ code: 'FENCE_BYPASSED' });
    expect([await count(), bare.checkedOut]).toEqual([1, 0]);
  });
});

describe('R4: where replication is configured', () => {
  it('the fence and all that happens in a fenced write is at the master', async () => {
    const replica = await freshDatabase(); // has nothing: a statement that goes there fails
    const bare = await BareFence.open({
      dataSource: {
        url: undefined,
        replication: { master: { url: process.env.DATABASE_URL }, slaves: [{ url: replica.url }] },
        entities: [Observed],
      } as Partial<DataSourceOptions>,
    });
    await bare.dataSource.query(
      'CREATE TABLE IF NOT EXISTS observed (id text PRIMARY KEY, text text NOT NULL)',
    );
    await bare.dataSource.query('TRUNCATE observed');
    const repository = bare.dataSource.getRepository(Observed);
    await expect(repository.find()).rejects.toMatchObject({ driverError: { code: '42P01' } });

    const grant = newGrant();
    await bare.activate(grant);
    expect(await bare.fence.inspect(grant.key)).toMatchObject({ owner: grant.owner });
    await bare.write(
      grant,
      async () => {
        await repository.insert({ id: 'a', text: 'written' });
        expect(await repository.find()).toHaveLength(1);
        expect(await repository.createQueryBuilder('o').getCount()).toBe(1);
      },
      { operation: { where: 'the test', id: grant.key, fingerprint: '' } },
    );
    await bare.activate(successorOf(grant));
    await expect(bare.write(grant, async () => undefined)).rejects.toMatchObject({
      code: 'STALE_GENERATION',
    });
    await bare.close();
    await replica.drop();
  });
});

describe('the DataSource', () => {
  const open = async (options: Partial<DataSourceOptions> = {}) => {
    const dataSource = new DataSource({
      type: 'postgres',
      url: process.env.DATABASE_URL,
      ...options,
    } as DataSourceOptions);
    return dataSource.initialize();
  };

  it('is what it was once the fence is closed', async () => {
    const dataSource = await open();
    const faces = () =>
      [dataSource, dataSource.manager].map((face) => Object.getOwnPropertyDescriptors(face));
    const before = faces();
    const fence = typeOrmFence({ dataSource, ensureSchema: true }).create(dataSource);
    await fence.check();
    await fence.close();
    expect(faces()).toEqual(before);
    await dataSource.destroy();
  });

  it('is shared by two fences: neither lets the writes of the other out', async () => {
    const dataSource = await open();
    const fences = [1, 2].map(() => typeOrmFence({ dataSource, ensureSchema: true }).create(dataSource));
    for (const fence of fences) await fence.check();
    await dataSource.query('CREATE TABLE IF NOT EXISTS shared (key text)');
    const write = async (fence: (typeof fences)[number]) => {
      const grant = newGrant();
      await fence.activate({ ...grant, waitMs: 1_000 });
      const authority = {
        grants: [grant],
        remainingMs: () => 1_000,
        ended: () => undefined,
        onEnd: () => () => undefined,
        onRenewed: () => () => undefined,
      };
      const body = async () => {
        await dataSource.query('INSERT INTO shared VALUES ($1)', [grant.key]);
        await dataSource.manager.query('INSERT INTO shared VALUES ($1)', [grant.key]);
        throw new Error('undo');
      };
      await expect(fence.write({ authority, retries: 0, body })).rejects.toThrow('undo');
      const [{ count }] = await dataSource.query('SELECT count(*) FROM shared WHERE key = $1', [grant.key]);
      expect(Number(count)).toBe(0);
    };
    for (const fence of fences) await write(fence);
    await fences[0]!.close();
    await write(fences[1]!);
    await fences[1]!.close();
    expect(Object.getOwnPropertyNames(dataSource)).not.toContain('query');
    await dataSource.destroy();
  });

  /** Query runners of a class of their own, one of whose methods notes something more. */
  const changeTransactions = (
    { driver }: DataSource,
    method: 'startTransaction' | 'commitTransaction',
    notes: object,
  ) => {
    const create = driver.createQueryRunner.bind(driver);
    driver.createQueryRunner = (mode) => {
      const runner = create(mode);
      const original = runner[method].bind(runner);
      const proto = Object.create(Object.getPrototypeOf(runner) as object, {
        [method]: { value: () => original().then(() => Object.assign(runner, notes)) },
      }) as object;
      return Object.setPrototypeOf(runner, proto) as typeof runner;
    };
  };

  it.each([
    ['dataSource.query', (dataSource: DataSource) => Object.assign(dataSource, { query: async () => [] })],
    ['manager.query', ({ manager }: DataSource) => Object.assign(manager, { query: async () => [] })],
    [
      'manager.createQueryBuilder',
      (dataSource: DataSource) =>
        (dataSource.manager.createQueryBuilder = () =>
          new DataSource(dataSource.options).createQueryBuilder()),
    ],
    [
      'dataSource.manager',
      ({ manager }: DataSource) => Object.defineProperty(manager, 'queryRunner', { value: undefined }),
    ],
    [
      'QueryRunner.releasePostgresConnection',
      ({ driver }: DataSource) => {
        const create = driver.createQueryRunner.bind(driver);
        driver.createQueryRunner = (mode) =>
          Object.assign(create(mode), { releasePostgresConnection: undefined });
      },
    ],
    [
      'QueryRunner.startTransaction',
      (dataSource: DataSource) => changeTransactions(dataSource, 'startTransaction', { mode: 'serial' }),
    ],
    [
      'QueryRunner.commitTransaction',
      (dataSource: DataSource) => changeTransactions(dataSource, 'commitTransaction', { commits: 1 }),
    ],
  ])('of a TypeORM that works differently in %s stops the boot, and it is named', async (name, change) => {
    const dataSource = await open();
    const fence = typeOrmFence({ dataSource, ensureSchema: true }).create(dataSource);
    change(dataSource);
    const refusal = await fence.check().catch((error: unknown) => error);
    expect(refusal).toBeInstanceOf(FencingConfigError);
    expect((refusal as Error).message).toContain(name);
    expect((refusal as Error).message).toContain('could not be guarded');
    await dataSource.destroy();
  });

  it('of a TypeORM that begins transactions differently gets no fenced write through', async () => {
    const dataSource = await open();
    const { driver } = dataSource;
    const create = driver.createQueryRunner.bind(driver);
    driver.createQueryRunner = (mode) => {
      const runner = create(mode);
      const start = runner.startTransaction.bind(runner);
      return Object.assign(runner, {
        startTransaction: async (isolation?: never) => {
          const { query } = runner;
          runner.query = ((text: string, ...rest: []) =>
            query.call(runner, text === 'START TRANSACTION' ? 'BEGIN WORK' : text, ...rest)) as typeof query;
          await start(isolation);
          runner.query = query;
        },
      });
    };
    const fence = typeOrmFence({ dataSource, ensureSchema: true }).create(dataSource);
    const refusal = await fence.check().catch((error: unknown) => error);
    expect(refusal).toBeInstanceOf(FencingConfigError);
    expect((refusal as Error).message).toMatch(/cannot be guarded/);
    await dataSource.destroy();
  });

  it('of another kind than PostgreSQL is refused', () => {
    const dataSource = Object.create(DataSource.prototype, {
      options: { value: { type: 'better-sqlite3' } },
    }) as DataSource;
    expect(() => typeOrmFence(dataSource).create(dataSource)).toThrow(/type 'postgres'.*'better-sqlite3'/);
  });
});

it('a fenced write inside a fenced write joins it through every layer of the application', async () => {
  const app = await startFencedApp({ leases: memoryLeases(), entities: [Observed], poolSize: 1 });
  const { fencing, dataSource } = app;
  await dataSource.query('TRUNCATE observed');
  const pid = async () =>
    (
      await dataSource.query('SELECT pg_backend_pid() AS pid, pg_current_xact_id()::text AS xid')
    )[0] as unknown;
  await fencing.run('key', {}, () =>
    fencing.write({ isolation: 'REPEATABLE READ' }, async () => {
      await dataSource.getRepository(Observed).insert({ id: 'outer', text: '' });
      const outer = await pid();
      await fencing.write({}, async () => {
        expect(await pid()).toEqual(outer);
        await dataSource.getRepository(Observed).insert({ id: 'inner', text: '' });
        await fencing.run('key', {}, () =>
          fencing.write({ isolation: 'REPEATABLE READ' }, async () => {
            expect(await pid()).toEqual(outer);
          }),
        );
      });
      await expect(fencing.write({ isolation: 'SERIALIZABLE' }, () => undefined)).rejects.toThrow(
        /asks for SERIALIZABLE inside one that runs in REPEATABLE READ/,
      );
    }),
  );
  expect(await dataSource.getRepository(Observed).count()).toBe(2);
  await app.close();
});
