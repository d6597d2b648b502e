import { Readable } from 'node:stream';
import { ReadableStream } from 'node:stream/web';
import { jest } from '@jest/globals';
import { Injectable } from '@nestjs/common';
import { InjectDataSource, InjectEntityManager, InjectRepository } from '@nestjs/typeorm';
import {
  CurrentLease,
  FenceBypassError,
  FencedWrite,
  type Lease,
  Leased,
  StaleGenerationError,
} from 'nestjs-fencing';
import { defer } from 'rxjs';
import {
  BaseEntity,
  Column,
  DataSource,
  Entity,
  EntityManager,
  PrimaryColumn,
  type QueryRunner,
  Repository,
  type SelectQueryBuilder,
  Tree,
  TreeChildren,
  TreeParent,
} from 'typeorm';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { Gate } from './support/gate.js';

@Entity()
class Note extends BaseEntity {
  @PrimaryColumn('text') id!: string;
  @Column('text') text!: string;
}

/** Nobody asks for its repositories before a test does. */
@Entity()
@Tree('closure-table')
class Draft extends BaseEntity {
  @PrimaryColumn('text') id!: string;
  @TreeParent() parent?: Draft;
  @TreeChildren() children?: Draft[];
}

/** What a path of writing gets to work with: everything that an application may have injected or kept. */
interface Means {
  repository: Repository<Note>;
  custom: Repository<Note> & { put(id: string): Promise<unknown> };
  manager: EntityManager;
  cachedManager: EntityManager;
  foreignManager: EntityManager;
  cachedRepository: Repository<Note>;
  dataSource: DataSource;
  keptBuilder: SelectQueryBuilder<Note>;
  keptRunner: QueryRunner;
}

const note = (id: string) => ({ id, text: 'written' });
const insert = `INSERT INTO note (id, text) VALUES ($1, 'written')`;

/** Every way to the database of a TypeORM application that writes one note. */
const PATHS: Record<string, (means: Means, id: string) => Promise<unknown>> = {
  'injected Repository: save': ({ repository }, id) => repository.save(note(id)),
  'injected Repository: insert': ({ repository }, id) => repository.insert(note(id)),
  'injected Repository: upsert': ({ repository }, id) => repository.upsert(note(id), ['id']),
  'injected Repository: query': ({ repository }, id) => repository.query(insert, [id]),
  'injected Repository: createQueryBuilder().insert()': ({ repository }, id) =>
    repository.createQueryBuilder().insert().values(note(id)).execute(),
  'injected Repository: orUpdate': ({ repository }, id) =>
    repository.createQueryBuilder().insert().values(note(id)).orUpdate(['text'], ['id']).execute(),
  'custom Repository': ({ custom }, id) => custom.put(id),
  'injected EntityManager: save': ({ manager }, id) => manager.save(Note, note(id)),
  'injected EntityManager: query': ({ manager }, id) => manager.query(insert, [id]),
  'cached dataSource.manager: insert': ({ cachedManager }, id) => cachedManager.insert(Note, note(id)),
  'cached dataSource.manager: createQueryBuilder': ({ cachedManager }, id) =>
    cachedManager.createQueryBuilder().insert().into(Note).values(note(id)).execute(),
  'cached dataSource.manager: getRepository': ({ cachedManager }, id) =>
    cachedManager.getRepository(Note).save(note(id)),
  'cached dataSource.getRepository': ({ cachedRepository }, id) => cachedRepository.save(note(id)),
  'dataSource.query': ({ dataSource }, id) => dataSource.query(insert, [id]),
  'dataSource.createQueryBuilder': ({ dataSource }, id) =>
    dataSource.createQueryBuilder().insert().into(Note).values(note(id)).execute(),
  'dataSource.transaction': ({ dataSource }, id) =>
    dataSource.transaction((inner) => inner.insert(Note, note(id))),
  'manager.transaction and the injected Repository': ({ manager, repository }, id) =>
    manager.transaction(() => repository.save(note(id))),
  'static of BaseEntity': (_, id) => Note.insert(note(id)),
  'save() of an entity': (_, id) => Object.assign(new Note(), note(id)).save(),
  'dataSource.createEntityManager(): query': ({ foreignManager }, id) => foreignManager.query(insert, [id]),
};

/** Ways that cannot be brought in: refused before anything is sent. */
const REFUSED: Record<string, (means: Means, id: string) => unknown> = {
  'createQueryRunner()': ({ dataSource }) => dataSource.createQueryRunner(),
  'a query runner that was kept': ({ keptRunner }, id) => keptRunner.query(insert, [id]),
  'a stream of a query runner that was kept': ({ keptRunner }, id) => keptRunner.stream(insert, [id]),
  'the manager of a query runner that was kept': ({ keptRunner }, id) =>
    keptRunner.manager.insert(Note, note(id)),
  'dataSource.createEntityManager(): save': ({ foreignManager }, id) => foreignManager.save(Note, note(id)),
  'a query builder that was made before': ({ keptBuilder }) => keptBuilder.getMany(),
  'COMMIT as a statement': ({ dataSource }) => dataSource.query('COMMIT'),
  'ROLLBACK as a statement': ({ dataSource }) => dataSource.query(' rollback ;'),
  'commitTransaction() of the transaction': ({ manager }) => manager.queryRunner!.commitTransaction(),
  'release() of the connection': ({ manager }) => manager.queryRunner!.release(),
};

@Injectable()
class Notes {
  readonly means: Means;

  constructor(
    @InjectRepository(Note) repository: Repository<Note>,
    @InjectEntityManager() manager: EntityManager,
    @InjectDataSource() dataSource: DataSource,
  ) {
    this.means = {
      repository,
      custom: repository.extend({
        put(this: Repository<Note>, id: string) {
          return this.save(note(id));
        },
      }),
      manager,
      cachedManager: dataSource.manager,
      foreignManager: dataSource.createEntityManager(),
      cachedRepository: dataSource.getRepository(Note),
      dataSource,
      keptBuilder: undefined as never,
      keptRunner: undefined as never,
    };
  }

  @Leased('notes')
  async run(work: (lease: Lease) => Promise<unknown>, @CurrentLease() lease?: Lease): Promise<unknown> {
    return work(lease!);
  }

  @FencedWrite()
  async write<T>(work: (means: Means) => Promise<T> | T): Promise<T> {
    return work(this.means);
  }
}

describe('every path to the database inside a fenced write', () => {
  let app: FencedApp;
  let notes: Notes;

  beforeAll(async () => {
    app = await startFencedApp({ entities: [Note], providers: [Notes] });
    Note.useDataSource(app.dataSource);
    notes = app.get(Notes);
  });
  afterAll(() => app.close());
  beforeEach(() => app.dataSource.query('TRUNCATE note'));

  const count = async () => Number((await app.dataSource.query('SELECT count(*) FROM note'))[0].count);
  /** A newer owner has activated its grant; this process has not noticed. */
  const supersede = () =>
    app.dataSource.query(
      `UPDATE fencing_fence SET generation = generation + 1, owner = 'successor' WHERE key = 'notes'`,
    );

  it.each(Object.entries(PATHS))('%s is committed while the lease is the newest', async (_, path) => {
    await notes.run(() => notes.write((means) => path(means, 'a')));
    expect(await count()).toBe(1);
  });

  it.each(Object.entries(PATHS))('%s is refused as stale, and nothing remains', async (_, path) => {
    const reached = jest.fn();
    const call = notes.run(async () => {
      await supersede();
      await notes.write((means) => {
        reached();
        return path(means, 'a');
      });
    });
    await expect(call).rejects.toThrow(StaleGenerationError);
    expect(reached).not.toHaveBeenCalled();
    expect(await count()).toBe(0);
  });

  it.each(Object.entries(PATHS))('%s is undone when the method throws', async (_, path) => {
    const call = notes.run(() =>
      notes.write(async (means) => {
        await path(means, 'a');
        expect(await means.repository.count()).toBe(1);
        throw new Error('at the end');
      }),
    );
    await expect(call).rejects.toThrow('at the end');
    expect(await count()).toBe(0);
  });

  it.each(Object.entries(REFUSED))('%s is refused loudly, and the rest is undone', async (_, path) => {
    notes.means.keptRunner = app.dataSource.createQueryRunner();
    notes.means.keptBuilder = app.dataSource.createQueryBuilder(Note, 'note');
    const call = notes.run(() =>
      notes.write(async (means) => {
        await means.repository.save(note('before'));
        await path(means, 'a');
      }),
    );
    await expect(call).rejects.toThrow(FenceBypassError);
    await notes.means.keptRunner.release();
    expect(await count()).toBe(0);
  });

  const STREAMS: Record<string, (work: () => Promise<unknown>) => unknown> = {
    'an Observable': (work) => defer(work),
    'an async iterable': async function* (work) {
      yield await work();
    },
    'a Node stream': (work) => Readable.from({ [Symbol.asyncIterator]: () => ({ next: work as never }) }),
    'a web stream': (work) => new ReadableStream({ pull: () => work().then(() => undefined) }),
  };
  it.each(Object.entries(STREAMS))(
    '%s that a fenced write returns would write after its commit: refused, and the rest is undone',
    async (_, streamOf) => {
      const call = notes.run(() =>
        notes.write(async ({ repository }) => {
          await repository.save(note('before'));
          return streamOf(() => repository.save(note('after the commit')));
        }),
      );
      await expect(call).rejects.toMatchObject({
        code: 'INVALID_CONFIG',
        message: expect.stringContaining('@FencedWrite on Notes.write returned a stream'),
      });
      expect(await count()).toBe(0);
    },
  );

  it('a result that lets nobody look at it is given as it is', async () => {
    const get = (target: object, name: PropertyKey) => {
      if (name === 'then') return undefined;
      throw new Error(`no property ${String(name)}`);
    };
    const odd = new Proxy({}, { get });
    let given: unknown;
    await notes.run(async () => {
      given = { odd: await notes.write(() => odd) };
    });
    expect((given as { odd: unknown }).odd === odd).toBe(true);
  });

  it.each<[string, object]>([
    [
      'lets nobody look at it',
      new Proxy(
        {},
        {
          get: (_, name) => {
            throw new Error(`no property ${String(name)}`);
          },
        },
      ),
    ],
    ['has a number as its name', { name: 5 }],
  ])('an error that %s is given as it is, and the rest is undone', async (_, odd) => {
    let given: unknown;
    await notes.run(() =>
      notes
        .write(async ({ repository }) => {
          await repository.save(note('before'));
          throw odd as Error;
        })
        .catch((error: unknown) => (given = { error })),
    );
    expect((given as { error: unknown }).error === odd).toBe(true);
    expect(await count()).toBe(0);
  });

  it('a statement that is sent after the fenced write has ended is refused', async () => {
    let late!: () => Promise<unknown>;
    await notes.run(() =>
      notes.write(async ({ repository }) => {
        await repository.save(note('a'));
        const { AsyncResource } = await import('node:async_hooks');
        late = AsyncResource.bind(() => repository.save(note('late')));
      }),
    );
    await expect(Promise.resolve().then(late)).rejects.toMatchObject({ code: 'LEASE_RELEASED' });
    expect(await count()).toBe(1);
  });

  it('outside a fenced write the repositories are what they were', async () => {
    await notes.means.repository.save(note('plain'));
    await expect(
      notes.means.dataSource.transaction(async (inner) => {
        await inner.save(Note, note('undone'));
        throw new Error('undo');
      }),
    ).rejects.toThrow('undo');
    expect(await count()).toBe(1);
  });
});

describe('a repository that is made inside a fenced write', () => {
  const MADE: Record<string, (dataSource: DataSource) => Repository<Draft>> = {
    'dataSource.getRepository': (dataSource) => dataSource.getRepository(Draft),
    'dataSource.getTreeRepository': (dataSource) => dataSource.getTreeRepository(Draft),
    'static of BaseEntity': () => Draft.getRepository(),
  };
  let app: FencedApp;
  beforeEach(async () => {
    app = await startFencedApp({ dataSource: { entities: [Draft] } });
    Draft.useDataSource(app.dataSource);
    await app.dataSource.query('TRUNCATE draft CASCADE');
  });
  afterEach(() => app.close());

  it.each(Object.entries(MADE))(
    '%s: does not bring what others write into its transaction',
    async (_, make) => {
      const { fencing, dataSource } = app;
      const [made, end] = [new Gate(), new Gate()];
      let repository!: Repository<Draft>;
      const insert = (id: string) => repository.createQueryBuilder().insert().values({ id }).execute();
      const call = fencing.run('drafts', {}, () =>
        fencing.write({}, async () => {
          repository = make(dataSource);
          await insert('undone');
          made.open();
          await end.wait();
          throw new Error('at the end');
        }),
      );
      await made.wait();
      await insert('of somebody else');
      end.open();
      await expect(call).rejects.toThrow('at the end');
      expect(await dataSource.query('SELECT id FROM draft')).toEqual([{ id: 'of somebody else' }]);
      expect(await make(dataSource).createQueryBuilder().getCount()).toBe(1);
    },
  );
});
