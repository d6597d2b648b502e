import { readFileSync } from 'node:fs';
import { randomBytes, randomUUID } from 'node:crypto';
import { jest } from '@jest/globals';
import { Injectable, Logger } from '@nestjs/common';
import { InjectRepository } from '@nestjs/typeorm';
import {
  CurrentLease,
  FencedWrite,
  FencingConfigError,
  type Lease,
  Leased,
  leaseKey,
  LeaseKeyError,
  memoryLeases,
  RowProtectedError,
} from 'nestjs-fencing';
import {
  FencedRepository,
  fencingMigrations,
  fencingMigrationsIn,
  GenerationColumn,
  protectTable,
  type ProtectTableOptions,
  typeOrmFence,
  type TypeOrmFenceOptions,
  unprotectTable,
} from 'nestjs-fencing/typeorm';
import { Column, DataSource, Entity, PrimaryColumn, type QueryRunner, type Repository } from 'typeorm';
import { BareFence, newGrant, successorOf } from './support/bare-fence.js';
import { startFencedApp } from './support/fenced-app.js';
import { ProtectReport1764000000002 } from './readme/protections.js';
import { freshDatabase } from './support/postgres-server.js';

describe('protectTable', () => {
  let database: Awaited<ReturnType<typeof freshDatabase>>;
  const opened: BareFence[] = [];
  let bare: BareFence;

  const open = async (options: Parameters<typeof BareFence.open>[0] = {}) => {
    const one = await BareFence.open({ url: database.url, ...options });
    opened.push(one);
    return one;
  };

  beforeEach(async () => {
    database = await freshDatabase();
    bare = await open();
  });
  afterEach(async () => {
    await Promise.all(opened.splice(0).map((one) => one.close()));
    await database.drop();
  });

  const withRunner = async <T>(
    work: (runner: QueryRunner) => Promise<T>,
    { dataSource } = bare,
  ): Promise<T> => {
    const runner = dataSource.createQueryRunner();
    try {
      return await work(runner);
    } finally {
      await runner.release();
    }
  };
  const protect = (table: string, options?: ProtectTableOptions, by = bare) =>
    withRunner((runner) => protectTable(runner, table, options), by);
  const unprotect = (table: string, by = bare) => withRunner((runner) => unprotectTable(runner, table), by);
  const sql = <Row = unknown>(text: string, parameters?: unknown[]): Promise<Row[]> =>
    bare.dataSource.query(text, parameters);
  /** What a table's triggers do: refuse raw SQL, and stamp what a fenced write inserts. */
  const proveProtected = async (quotedName: string, key: string, row: string, by = bare): Promise<void> => {
    const insert = `INSERT INTO ${quotedName} VALUES (${row})`;
    await expect(sql(insert)).rejects.toMatchObject({ code: 'NF002' });
    const grant = newGrant(4, key);
    await by.activate(grant);
    await by.write(grant, (manager) => manager.query(insert));
    expect(await sql(`SELECT generation FROM ${quotedName}`)).toEqual([{ generation: '4' }]);
    await by.activate(successorOf(grant));
    await expect(
      by.write(grant, (manager) => manager.query(`DELETE FROM ${quotedName}`)),
    ).rejects.toMatchObject({
      code: 'STALE_GENERATION',
    });
  };
  const leftovers = () =>
    sql(`SELECT tgname AS name FROM pg_trigger WHERE NOT tgisinternal UNION ALL
         SELECT proname FROM pg_proc WHERE proname LIKE 'fencing_protect%'`);

  describe('finds and protects', () => {
    it.each([
      ['report', 'report'],
      ['Report With Capitals', '"Report With Capitals"'],
      ['public.report', 'report'],
      ['"a.dot"', '"a.dot"'],
      [`it's "quoted"; --`, `"it's ""quoted""; --"`],
      ['$fencing$', '"$fencing$"'],
    ])('the table %s', async (name, quotedName) => {
      const given = name.startsWith(`it's`) ? `"it's ""quoted""; --"` : name;
      await sql(`CREATE TABLE ${quotedName} (id text, generation bigint)`);
      await protect(given, { key: `it's "the" $fencing$ \\ report/{id}` });
      await proveProtected(quotedName, `it's "the" $fencing$ \\ report/a`, `'a'`);
      await unprotect(given);
      expect(await leftovers()).toEqual([]);
    });

    it('columns with hostile names', async () => {
      await sql(`CREATE TABLE report ("the ""id""; --" text, "Generation's" bigint)`);
      await protect('report', { key: 'report:{the "id"; --}', column: `Generation's` });
      const grant = newGrant(4, 'report:a');
      await bare.activate(grant);
      await bare.write(grant, (manager) => manager.query(`INSERT INTO report VALUES ('a')`));
      expect(await sql('SELECT * FROM report')).toEqual([{ 'the "id"; --': 'a', "Generation's": '4' }]);
    });

    it('a table in another schema than the fence, whatever the search path of the writer is', async () => {
      const own = await open({ fence: { schema: 'the "fences"' } });
      await sql('CREATE SCHEMA app');
      await sql('CREATE TABLE app.report (id text, generation bigint)');
      await protect('app.report', { key: 'report:{id}', fencingSchema: 'the "fences"' });
      await proveProtected('app.report', 'report:a', `'a'`, own);
      const written = bare.dataSource.transaction(async (manager) => {
        await manager.query('SET LOCAL search_path = app');
        await manager.query(`DELETE FROM report`);
      });
      await expect(written).rejects.toMatchObject({ code: 'NF002' });
      // The fence in the other schema is another fence: its grants count for nothing here.
      const grant = newGrant(100, 'report:a');
      await bare.activate(grant);
      await expect(
        bare.write(grant, (manager) => manager.query(`DELETE FROM app.report`)),
      ).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    });

    it("a table in the DataSource's schema, like TypeORM itself", async () => {
      await sql('CREATE SCHEMA app');
      await sql('CREATE TABLE app.report (id text, generation bigint)');
      const inApp = await open({ dataSource: { schema: 'app' } as object });
      await protect('report', { key: 'report:{id}' }, inApp);
      await proveProtected('app.report', 'report:a', `'a'`, inApp);
      await unprotect('report', inApp);
      expect(await leftovers()).toEqual([]);
    });

    it('a partitioned table: rows of every partition, now and later, by whichever name they are written', async () => {
      await sql('CREATE TABLE report (id int, text text, generation bigint) PARTITION BY RANGE (id)');
      await sql('CREATE TABLE report_low PARTITION OF report FOR VALUES FROM (0) TO (10)');
      await protect('report', { key: 'report' });
      await sql('CREATE TABLE report_high PARTITION OF report FOR VALUES FROM (10) TO (20)');
      const grant = newGrant(4, 'report');
      await bare.activate(grant);
      const inserts = [
        'report VALUES (1)',
        'report VALUES (11)',
        'report_low VALUES (2)',
        'report_high VALUES (12)',
      ];
      for (const row of inserts)
        await expect(sql(`INSERT INTO ${row}`)).rejects.toMatchObject({ code: 'NF002' });
      await bare.write(grant, async (manager) => {
        for (const row of inserts) await manager.query(`INSERT INTO ${row}`);
        // Into the other partition.
        await manager.query('UPDATE report SET id = 13 WHERE id = 1');
      });
      expect(await sql('SELECT id, generation FROM report ORDER BY id')).toEqual(
        [2, 11, 12, 13].map((id) => ({ id, generation: '4' })),
      );
      for (const statement of [
        'DELETE FROM report_low',
        'UPDATE report SET id = 14 WHERE id = 2',
        'TRUNCATE report',
      ])
        await expect(sql(statement)).rejects.toMatchObject({ code: 'NF002' });
      await unprotect('report');
      expect(await leftovers()).toEqual([]);
    });

    it('tables whose names are as long as names can be', async () => {
      const [one, two] = ['1', '2'].map((end) => 'r'.repeat(62) + end) as [string, string];
      for (const name of [one, two]) {
        await sql(`CREATE TABLE ${name} (id text, generation bigint)`);
        await protect(name, { key: `${name.at(-1)}:{id}` });
      }
      await proveProtected(one, '1:a', `'a'`);
      await proveProtected(two, '2:a', `'a'`);
      await unprotect(one);
      await sql(`DELETE FROM ${one}`);
      await expect(sql(`DELETE FROM ${two}`)).rejects.toMatchObject({ code: 'NF002' });
    });

    it('a table that is renamed later stays protected, and its old name can be protected anew only after that', async () => {
      await sql('CREATE TABLE report (id text, generation bigint)');
      await protect('report', { key: 'report:{id}' });
      await sql('ALTER TABLE report RENAME TO old_report');
      await sql('CREATE TABLE report (id text, generation bigint)');
      await expect(protect('report')).rejects.toThrow(/still serves the table old_report.*unprotectTable/);
      await proveProtected('old_report', 'report:a', `'a'`);
      await unprotect('old_report');
      await protect('report');
      await expect(sql(`INSERT INTO report VALUES ('a')`)).rejects.toMatchObject({ code: 'NF002' });
    });

    it('sees what other triggers of the table have made of a row', async () => {
      await sql('CREATE TABLE report (id text, generation bigint)');
      await sql(`CREATE FUNCTION other() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN NEW.id := 'b'; NEW.generation := 1000; RETURN NEW; END $$`);
      await sql('CREATE TRIGGER z_other BEFORE INSERT ON report FOR EACH ROW EXECUTE FUNCTION other()');
      await protect('report', { key: 'report:{id}' });
      const [a, b] = [newGrant(4, 'report:a'), newGrant(5, 'report:b')];
      await bare.activate(a);
      await bare.activate(b);
      const insert = (by: typeof a) =>
        bare.write(by, (manager) => manager.query(`INSERT INTO report VALUES ('a')`));
      await expect(insert(a)).rejects.toBeInstanceOf(RowProtectedError);
      await insert(b);
      expect(await sql('SELECT * FROM report')).toEqual([{ id: 'b', generation: '5' }]);
    });
  });

  describe('in a migration', () => {
    it('comes and goes with it, as docs/protections.md shows it', async () => {
      const shown = readFileSync(new URL('../docs/protections.md', import.meta.url), 'utf8');
      const source = readFileSync(new URL('readme/protections.ts', import.meta.url), 'utf8');
      const [, code] = /#region migration\n([\s\S]*?)\n\/\/ #endregion/.exec(source)!;
      expect(shown).toContain('```ts\n' + code + '\n```');

      const own = await freshDatabase();
      const dataSource = new DataSource({
        type: 'postgres',
        url: own.url,
        migrations: [...fencingMigrations, ProtectReport1764000000002],
      });
      await dataSource.initialize();
      try {
        await dataSource.query('CREATE TABLE report (customer_id text)');
        await dataSource.runMigrations();
        const insert = `INSERT INTO report (customer_id) VALUES ('a')`;
        await expect(dataSource.query(insert)).rejects.toMatchObject({ code: 'NF002' });
        await dataSource.undoLastMigration();
        await dataSource.query(insert);
        const left = `SELECT proname FROM pg_proc WHERE proname LIKE 'fencing_protect%'`;
        expect(await dataSource.query(left)).toEqual([]);
      } finally {
        await dataSource.destroy();
        await own.drop();
      }
    });

    it('can be run again, also with other options; the stamps stay', async () => {
      await sql('CREATE TABLE report (id text, owner_id int, generation bigint, other bigint)');
      await protect('report', { key: 'report:{id}' });
      await proveProtected('report', 'report:a', `'a', 5`);
      await protect('report', { key: 'owner:{owner_id}', column: 'other' });
      const grant = newGrant(2, 'owner:5');
      await bare.activate(grant);
      await bare.write(grant, (manager) => manager.query('UPDATE report SET owner_id = 5'));
      expect(await sql('SELECT generation, other FROM report')).toEqual([{ generation: '4', other: '2' }]);
      expect(await leftovers()).toHaveLength(3);
    });

    it('removing what is not there does nothing', async () => {
      await sql('CREATE TABLE report (id text, generation bigint)');
      await unprotect('report');
      await protect('report');
      await unprotect('report');
      await unprotect('report');
      expect(await leftovers()).toEqual([]);
    });

    it('a table that is still protected when the fence is removed can not be written: it fails closed', async () => {
      await sql('CREATE SCHEMA fences');
      const [Migration] = fencingMigrationsIn('fences');
      await withRunner((runner) => new Migration!().up(runner));
      await sql('CREATE TABLE report (id text, generation bigint)');
      await protect('report', { fencingSchema: 'fences' });
      await withRunner((runner) => new Migration!().down(runner));
      await expect(sql(`INSERT INTO report VALUES ('a')`)).rejects.toMatchObject({ code: '42P01' });
    });
  });

  describe('refuses, and says what to do:', () => {
    beforeEach(() =>
      sql(`CREATE TABLE report (id text, price numeric, code char(4), at timestamptz, twice int GENERATED ALWAYS AS (1) STORED,
        small int, generation bigint)`),
    );
    const WRONG: [string, string, ProtectTableOptions, RegExp][] = [
      ['a table that is not there', 'nothing', {}, /there is no table "nothing".*Create it first/],
      ['a schema that is not there', 'nowhere.report', {}, /there is no table "nowhere"\."report"/],
      ['no name', '', {}, /must be its name/],
      ['three names', 'a.b.c', {}, /must be its name/],
      ['a view', 'pg_catalog.pg_tables', {}, /there is no table/],
      ['a missing column', 'report', { column: 'stamp' }, /no column stamp.*@GenerationColumn/],
      ['a column of another type', 'report', { column: 'small' }, /small must be bigint.*integer/],
      ['a place that is no column', 'report', { key: 'report:{customerId}' }, /\{customerId\}.*no column/],
      ['a place of type numeric', 'report', { key: 'report:{price}' }, /\{price\}.*numeric.*types/],
      ['a place of type char', 'report', { key: 'report:{code}' }, /\{code\}.*character/],
      ['a place of type timestamp', 'report', { key: 'report:{at}' }, /\{at\}.*timestamp/],
      ['a place that is computed', 'report', { key: 'report:{twice}' }, /\{twice\}.*computed/],
      ['an unbalanced key', 'report', { key: 'report:{id' }, /unbalanced/],
      ['places side by side', 'report', { key: '{id}{small}' }, /separator/],
      ['an empty key', 'report', { key: '' }, /must not be empty/],
      ['a key that is no text', 'report', { key: 7 as never }, /key must be a text/],
      ['an unknown option', 'report', { colum: 'x' } as never, /no option "colum"/],
      [
        'a schema without the fence',
        'report',
        { fencingSchema: 'pg_catalog' },
        /missing in pg_catalog.*fencingMigrations/,
      ],
    ];
    it.each(WRONG)('%s', async (_, table, options, message) => {
      const refused = await protect(table, options).catch((error: unknown) => error);
      expect(refused).toBeInstanceOf(options.key === '' ? LeaseKeyError : FencingConfigError);
      expect((refused as Error).message).toMatch(message);
      expect(await leftovers()).toEqual([]);
    });

    it('a database without the fence', async () => {
      await withRunner((runner) => new fencingMigrations[0]!().down(runner));
      await expect(protect('report')).rejects.toThrow(/fencingMigrations first/);
    });
  });

  describe('the key of a row', () => {
    const HOSTILE = [
      'a',
      '',
      ' ',
      'a b',
      'ä€😀',
      "it's",
      '"',
      '\\',
      '%',
      '%2F',
      '/',
      ':',
      '{x}',
      '$1',
      '\n',
      '\t',
      "-_.!~*'()",
      'null',
      'NaN',
      'undefined',
      'nullable',
      'xnull',
      '-null-',
      'null null',
      'null-NaN/undefined',
      '%null',
      'null%',
      'NaNnull',
      'NULL',
      'né null',
      ...Array.from({ length: 50 }, () => randomBytes(12).toString('latin1').replaceAll('\0', '')),
      ...Array.from({ length: 50 }, () => randomBytes(12).toString('utf8').replaceAll('\0', '')),
    ];
    it('is escaped in the database as core/key.ts escapes it, for every text that may stand in one', async () => {
      const keyOf = leaseKey('{part}');
      const texts = HOSTILE.filter((text) => text.trim() !== '');
      const found = await sql<{ part: string }>(
        'SELECT fencing_key_part(part) AS part FROM unnest($1::text[]) WITH ORDINALITY AS t (part, n) ORDER BY n',
        [texts],
      );
      expect(found.map(({ part }) => part)).toEqual(texts.map((part) => keyOf({ part })));
    });

    it('may be made of text, whole numbers, uuids, booleans and enums, as a method’s arguments are', async () => {
      await sql(`CREATE TYPE region AS ENUM ('north', 'south')`);
      await sql('CREATE DOMAIN customer AS varchar(40)');
      await sql(
        `CREATE TABLE report (a text, b varchar(40), c smallint, d int, e bigint, f uuid, g boolean, h region, i customer, generation bigint)`,
      );
      await protect('report', { key: 'report:{a}:{b}:{c}:{d}:{e}:{f}:{g}:{h}:{i}' });
      const uuid = randomUUID();
      const values = {
        a: 'x y',
        b: 'null',
        c: -3,
        d: 7,
        e: 9007199254740993n,
        f: uuid,
        g: true,
        h: 'north',
        i: 'é',
      };
      const key = leaseKey('report:{a}:{b}:{c}:{d}:{e}:{f}:{g}:{h}:{i}')(values);
      await proveProtected(
        'report',
        key,
        `'x y', 'null', -3, 7, 9007199254740993, '${uuid}', true, 'north', 'é'`,
      );
    });

    it('goes by the bytes of a text, where a collation holds two texts equal', async () => {
      await sql(`CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`);
      await sql('CREATE TABLE report (id text COLLATE loose, generation bigint)');
      await protect('report', { key: 'report:{id}' });
      const grant = newGrant(4, 'report:a');
      await bare.activate(grant);
      await bare.write(grant, (manager) => manager.query(`INSERT INTO report VALUES ('a')`));
      const rename = bare.write(grant, (manager) => manager.query(`UPDATE report SET id = 'A'`));
      await expect(rename).rejects.toBeInstanceOf(RowProtectedError);
    });

    it('without a value belongs to nobody', async () => {
      await sql('CREATE TABLE report (id text, generation bigint)');
      await protect('report', { key: 'report:{id}' });
      const grants = ['report:', 'report:null', 'report:a'].map((key) => newGrant(4, key));
      for (const grant of grants) {
        await bare.activate(grant);
        const write = bare.write(grant, (manager) => manager.query(`INSERT INTO report VALUES (NULL)`));
        await expect(write).rejects.toBeInstanceOf(RowProtectedError);
      }
    });
  });
});

@Entity('protected_document')
class Document {
  @PrimaryColumn('text') id!: string;
  @Column('text') text!: string;
  @GenerationColumn() generation!: number;
}

@Entity('unstamped_note')
class Note {
  @PrimaryColumn('text') id!: string;
  @GenerationColumn({ name: 'written_under' }) generation!: number;
}

@Entity('row_guarded_note')
class RowGuarded {
  @PrimaryColumn('text') id!: string;
  @GenerationColumn({ trigger: false }) generation!: number;
}

@Injectable()
class Documents {
  constructor(@InjectRepository(Document) readonly documents: Repository<Document>) {}

  @Leased('document:{0}')
  run<T>(_id: string, work: (lease: Lease) => Promise<T>, @CurrentLease() lease?: Lease): Promise<T> {
    return work(lease!);
  }

  @FencedWrite()
  write<T>(work: (documents: Repository<Document>) => Promise<T>): Promise<T> {
    return work(this.documents);
  }
}

describe('an entity on a protected table', () => {
  let database: Awaited<ReturnType<typeof freshDatabase>>;

  beforeEach(async () => {
    database = await freshDatabase();
  });
  afterEach(() => database.drop());

  const start = (options: Parameters<typeof startFencedApp>[0] = {}) =>
    startFencedApp({ databaseUrl: database.url, leases: memoryLeases() as never, ...options });

  it('is written by repositories as ever in fenced writes, with the ids that methods have, and by nothing else', async () => {
    const app = await start({ entities: [Document], providers: [Documents] });
    try {
      const runner = app.dataSource.createQueryRunner();
      await protectTable(runner, 'protected_document', { key: 'document:{id}' });
      await runner.release();
      const documents = app.get(Documents);
      for (const id of ['plain', 'a b/ä:😀', 'null', "it's"]) {
        const generation = await documents.run(id, async (lease) => {
          await documents.write((repository) => repository.save({ id, text: 'one' }));
          await documents.write((repository) => repository.upsert({ id, text: 'two' }, ['id']));
          await documents.write((repository) => repository.update({ id }, { text: 'three' }));
          return lease.generation;
        });
        expect(await documents.documents.findOneByOrFail({ id })).toEqual({ id, text: 'three', generation });
        await expect(documents.documents.save({ id, text: 'past it' })).rejects.toMatchObject({
          code: 'NF002',
        });
        await documents.run(id, () => documents.write((repository) => repository.delete({ id })));
      }
      const foreign = documents.run('mine', () =>
        documents.write((repository) => repository.save({ id: 'yours', text: 'x' })),
      );
      await expect(foreign).rejects.toBeInstanceOf(RowProtectedError);
      expect(await documents.documents.count()).toBe(0);
    } finally {
      await app.close();
    }
  });

  it('is written through the row guard inside a fenced write, and not without one', async () => {
    const app = await start({ entities: [Document], providers: [Documents] });
    try {
      const runner = app.dataSource.createQueryRunner();
      await protectTable(runner, 'protected_document', { key: 'document:{id}' });
      await runner.release();
      const documents = app.get(Documents);
      await documents.run('a', async (lease) => {
        const guarded = new FencedRepository(app.dataSource.manager, Document);
        await expect(guarded.upsert({ id: 'a', text: 'alone' })).rejects.toMatchObject({ code: 'NF002' });
        await documents.write(async () => {
          await guarded.upsert({ id: 'a', text: 'one' });
          expect(await guarded.update('a', { text: 'two' })).toBe('written');
        });
        expect(await documents.documents.find()).toEqual([
          { id: 'a', text: 'two', generation: lease.generation },
        ]);
      });
    } finally {
      await app.close();
    }
  });

  describe('at boot', () => {
    const ENTITIES = [Document, Note, RowGuarded];
    /** The tables of the entities and the fence, without any trigger. */
    const boot = async (fence: TypeOrmFenceOptions = {}) => {
      const one = await BareFence.open({
        url: database.url,
        dataSource: { entities: ENTITIES, synchronize: true },
      });
      const runner = one.dataSource.createQueryRunner();
      const booted = typeOrmFence(fence).create(one.dataSource);
      return {
        findings: () => booted.check(),
        runner,
        close: async () => {
          await runner.release();
          await booted.close();
          await one.close();
        },
      };
    };

    it('those without their trigger are named in one warning, with the line that is missing; those that want none are not', async () => {
      const { findings, runner, close } = await boot();
      try {
        const [found, ...more] = (await findings())!;
        expect(more).toEqual([]);
        expect(found!.problem).toBe(
          'Document has a @GenerationColumn() and no trigger; Note has a @GenerationColumn() and no trigger.',
        );
        expect(found!.fix).toContain(`await protectTable(queryRunner, 'protected_document');`);
        expect(found!.fix).toContain(
          `await protectTable(queryRunner, 'unstamped_note', { column: 'written_under' });`,
        );
        await protectTable(runner, 'protected_document');
        expect((await findings())!.map(({ problem }) => problem)).toEqual([
          'Note has a @GenerationColumn() and no trigger.',
        ]);
        await protectTable(runner, 'unstamped_note', { column: 'written_under', key: 'note:{id}' });
        expect(await findings()).toEqual([]);
      } finally {
        await close();
      }
    });

    it('a trigger that is switched off, stamps another column or is of another version is named as well', async () => {
      const { findings, runner, close } = await boot();
      try {
        await protectTable(runner, 'protected_document');
        await runner.query('ALTER TABLE unstamped_note ADD COLUMN other bigint');
        await protectTable(runner, 'unstamped_note', { column: 'other' });
        await runner.query('ALTER TABLE protected_document DISABLE TRIGGER USER');
        expect((await findings())![0]!.problem).toBe(
          'Document has a trigger that is switched off; Note has a trigger that does not stamp its column written_under.',
        );
        await runner.query('ALTER TABLE protected_document ENABLE TRIGGER USER');
        await runner.query(
          `COMMENT ON FUNCTION fencing_protect_protected_document IS 'nestjs-fencing trigger 0: generation'`,
        );
        expect((await findings())![0]!.problem).toMatch(/^Document has the trigger of another version;/);
      } finally {
        await close();
      }
    });

    it('missingTriggers: fail stops it instead', async () => {
      const { findings, runner, close } = await boot({ missingTriggers: 'fail' });
      try {
        await expect(findings()).rejects.toThrow(FencingConfigError);
        await expect(findings()).rejects.toThrow(/Document has .* no trigger.*protectTable\(queryRunner/);
        await protectTable(runner, 'protected_document');
        await protectTable(runner, 'unstamped_note', { column: 'written_under' });
        expect(await findings()).toEqual([]);
      } finally {
        await close();
      }
    });

    it('an application warns once, and is stopped where it is told to, or strict', async () => {
      const options = { entities: [Document], providers: [Documents] };
      for (const strict of [{ fence: { missingTriggers: 'fail' } }, { fencing: { strict: true } }] as const)
        await expect(start({ ...options, ...strict })).rejects.toThrow(
          /Document has a @GenerationColumn\(\)/,
        );
      const warn = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => undefined);
      try {
        const app = await start(options);
        await app.close();
        const warnings = warn.mock.calls.map(([message]) => String(message));
        expect(warnings.filter((message) => message.includes('no trigger'))).toHaveLength(1);
      } finally {
        warn.mockRestore();
      }
    });

    it('missingTriggers is checked as every option is', async () => {
      await expect(
        BareFence.open({ url: database.url, fence: { missingTriggers: 'ignore' as never } }),
      ).rejects.toThrow(/missingTriggers must be 'warn' or 'fail', got 'ignore'/);
      expect(() => GenerationColumn({ trigger: 'no' as never })).toThrow(/trigger must be true or false/);
    });
  });
});
