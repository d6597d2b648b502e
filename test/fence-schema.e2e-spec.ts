import { randomUUID } from 'node:crypto';
import { FencingConfigError } from 'nestjs-fencing';
import { fencingMigrations, fencingMigrationsIn } from 'nestjs-fencing/typeorm';
import { DataSource, type DataSourceOptions } from 'typeorm';
import { BareFence, newGrant, successorOf } from './support/bare-fence.js';
import { freshDatabase } from './support/postgres-server.js';

/** The fence does its work: a grant is activated, writes, and is refused once it is old. */
async function proveAtWork(bare: BareFence): Promise<void> {
  const grant = newGrant();
  await bare.activate(grant);
  expect(await bare.write(grant, async () => 'written')).toMatchObject({
    result: 'written',
    committed: true,
  });
  await bare.activate(successorOf(grant));
  await expect(bare.write(grant, async () => 'stale')).rejects.toMatchObject({ code: 'STALE_GENERATION' });
}

describe('the tables of the fence', () => {
  let database: Awaited<ReturnType<typeof freshDatabase>>;
  const opened: BareFence[] = [];

  beforeEach(async () => {
    database = await freshDatabase();
  });
  afterEach(async () => {
    await Promise.all(opened.splice(0).map((bare) => bare.close()));
    await database.drop();
  });

  const open = async (options: Parameters<typeof BareFence.open>[0] = {}) => {
    const bare = await BareFence.open({ url: database.url, ...options });
    opened.push(bare);
    return bare;
  };
  const unchecked = (fence = {}) => open({ check: false, fence: { ensureSchema: false, ...fence } });
  const tables = async (bare: BareFence, schema = 'public') => {
    const rows = await bare.dataSource.query(
      'SELECT tablename FROM pg_tables WHERE schemaname = $1 ORDER BY tablename',
      [schema],
    );
    return (rows as { tablename: string }[]).map((row) => row.tablename);
  };

  it('that are missing stop the boot, and it is said what to do', async () => {
    const bare = await unchecked();
    const refusal = await bare.fence.check().catch((error: unknown) => error);
    expect(refusal).toBeInstanceOf(FencingConfigError);
    expect((refusal as Error).message).toMatch(/fencingMigrations.*ensureSchema/);
  });

  it('that are missing are named by every call', async () => {
    const bare = await unchecked();
    const grant = newGrant();
    await expect(bare.fence.activate({ ...grant, waitMs: 1 })).rejects.toThrow(
      /tables of nestjs-fencing are missing/,
    );
    await expect(bare.write(grant, async () => 'unguarded')).rejects.toThrow(
      /tables of nestjs-fencing are missing/,
    );
    await expect(bare.fence.inspect(grant.key)).rejects.toThrow(/tables of nestjs-fencing are missing/);
    await bare.dataSource.transaction(async () => {
      await expect(bare.write(grant, async () => 'unguarded')).rejects.toBeInstanceOf(FencingConfigError);
    });
    expect(bare.checkedOut).toBe(0);
  });

  it('are made by ten processes that boot at the same time', async () => {
    const fences = await Promise.all(Array.from({ length: 10 }, () => open({ check: false, poolSize: 1 })));
    await Promise.all(fences.map(({ fence }) => fence.check()));
    await proveAtWork(fences[0]!);
  });

  it('are left as they are by a second boot', async () => {
    const first = await open();
    const grant = newGrant(5);
    await first.activate(grant);
    const second = await open();
    expect(await second.fence.inspect(grant.key)).toMatchObject({ owner: grant.owner });
  });

  it.each(['fences', 'a "hostile" Schema; --', "it's"])('can be in the schema %s', async (schema) => {
    const own = await open({ fence: { schema } });
    expect(await tables(own, schema)).toEqual(['fencing_audit', 'fencing_fence', 'fencing_operation']);
    expect(await tables(own)).toEqual([]);
    await proveAtWork(own);
  });

  it("are in the DataSource's schema where none is named", async () => {
    await (await unchecked()).dataSource.query('CREATE SCHEMA app');
    const bare = await open({ dataSource: { schema: 'app' } as Partial<DataSourceOptions> });
    expect(await tables(bare, 'app')).toEqual(['fencing_audit', 'fencing_fence', 'fencing_operation']);
    await proveAtWork(bare);
  });

  it('of two schemas do not know of each other', async () => {
    const [one, two] = [await open({ fence: { schema: 'one' } }), await open({ fence: { schema: 'two' } })];
    const grant = newGrant(5);
    await one.activate(grant);
    await two.activate(newGrant(3, grant.key));
    expect(await one.fence.inspect(grant.key)).toMatchObject({ generation: 5 });
  });

  it.each([
    ["the DataSource's schema", fencingMigrations, undefined, 'public'],
    ['a schema of their own', fencingMigrationsIn('fences'), 'fences', 'fences'],
  ])('come and go by migration in %s', async (_, migrations, option, schema) => {
    const dataSource = new DataSource({ type: 'postgres', url: database.url, migrations });
    await dataSource.initialize();
    await dataSource.query('CREATE SCHEMA fences');
    const bare = await unchecked({ schema: option });
    await expect(bare.fence.check()).rejects.toBeInstanceOf(FencingConfigError);

    await dataSource.runMigrations();
    await bare.fence.check();
    await proveAtWork(bare);

    await dataSource.undoLastMigration();
    expect((await tables(bare, schema)).filter((name) => name.startsWith('fencing'))).toEqual([]);
    await expect(bare.fence.check()).rejects.toThrow(/missing/);
    await dataSource.destroy();
  });

  it('of another version stop the boot, and both versions are named', async () => {
    const bare = await open();
    await bare.dataSource.query(`COMMENT ON PROCEDURE fencing_guard IS 'nestjs-fencing schema 0'`);
    const old = await unchecked();
    await expect(old.fence.check()).rejects.toThrow(
      /'nestjs-fencing schema 0'.*needs 'nestjs-fencing schema 3'.*fencingMigrations/,
    );
  });

  it.each([
    ["the DataSource's schema", fencingMigrations, undefined],
    ['a schema of their own', fencingMigrationsIn('fences'), 'fences'],
  ])(
    'of an older form become new, and keep what is in them, as the boot says it, in %s',
    async (_, migrations, schema) => {
      const bare = await open({ fence: { schema } });
      const grant = newGrant(5);
      await bare.activate(grant);
      const before = schema ? `${schema}.` : '';
      // As the first form of the migration left them.
      await bare.dataSource.query(`DROP TABLE ${before}fencing_audit`);
      await bare.dataSource.query(`DROP FUNCTION ${before}fencing_revoke, ${before}fencing_admit`);
      await bare.dataSource.query(`DROP PROCEDURE ${before}fencing_guard`);
      await bare.dataSource.query(
        `CREATE FUNCTION ${before}fencing_guard(p_key text, p_generation bigint, p_owner text, p_idle_ms integer)
         RETURNS void LANGUAGE sql AS ''`,
      );
      await bare.dataSource.query(`COMMENT ON FUNCTION ${before}fencing_guard IS 'nestjs-fencing schema 1'`);
      const next = await unchecked({ schema });
      await expect(next.fence.check()).rejects.toThrow(
        /of fencingMigrations\) await new Migration\(\)\.up\(queryRunner\)/,
      );
      const runner = bare.dataSource.createQueryRunner();
      for (const Migration of migrations) await new Migration().up(runner);
      await runner.release();
      await next.fence.check();
      expect(await next.fence.inspect(grant.key)).toMatchObject({ generation: 5, owner: grant.owner });
      await proveAtWork(next);
    },
  );

  it('whose guard lets everybody pass stop the boot', async () => {
    const bare = await open();
    await bare.dataSource.query(
      `CREATE OR REPLACE PROCEDURE fencing_guard(p_key text, p_generation bigint, p_owner text, p_idle_ms integer, p_generations text)
       LANGUAGE sql AS ''`,
    );
    await bare.dataSource.query(`COMMENT ON PROCEDURE fencing_guard IS 'nestjs-fencing schema 3'`);
    await expect((await unchecked()).fence.check()).rejects.toThrow(/let a grant pass that nobody has/);
  });
});

describe('a database user', () => {
  let database: Awaited<ReturnType<typeof freshDatabase>>;
  let admin: BareFence;
  let role: string;
  let user: BareFence;

  beforeEach(async () => {
    database = await freshDatabase();
    admin = await BareFence.open({ url: database.url, fence: { schema: 'fences' } });
    role = `role_${randomUUID().replaceAll('-', '')}`;
    await admin.dataSource.query(`CREATE ROLE ${role} LOGIN PASSWORD 'secret'`);
    await admin.dataSource.query('REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA fences FROM PUBLIC');
    const url = new URL(database.url);
    [url.username, url.password] = [role, 'secret'];
    user = await BareFence.open({
      url: url.href,
      check: false,
      fence: { ensureSchema: false, schema: 'fences' },
    });
  });
  afterEach(async () => {
    await user.close();
    await admin.dataSource.query(`DROP OWNED BY ${role}`);
    await admin.dataSource.query(`DROP ROLE ${role}`);
    await admin.close();
    await database.drop();
  });

  const NEEDED = [
    'USAGE ON SCHEMA fences',
    'EXECUTE ON FUNCTION fences.fencing_activate',
    'EXECUTE ON PROCEDURE fences.fencing_guard',
    'EXECUTE ON FUNCTION fences.fencing_revoke',
    'INSERT ON fences.fencing_audit',
    ...['fencing_fence', 'fencing_operation'].flatMap((table) =>
      ['SELECT', 'INSERT', 'UPDATE'].map((right) => `${right} ON fences.${table}`),
    ),
  ];

  it('with no more than the documented privileges can do everything', async () => {
    for (const privilege of NEEDED) await admin.dataSource.query(`GRANT ${privilege} TO ${role}`);
    await user.fence.check();
    await proveAtWork(user);
  });

  it.each(NEEDED)('without %s stops the boot, and it is said what is needed', async (missing) => {
    for (const privilege of NEEDED) {
      if (privilege !== missing) await admin.dataSource.query(`GRANT ${privilege} TO ${role}`);
    }
    const refusal = await user.fence.check().catch((error: unknown) => error);
    expect(refusal).toBeInstanceOf(FencingConfigError);
    expect((refusal as Error).message).toMatch(/USAGE.*EXECUTE.*SELECT, INSERT and UPDATE/);
  });

  it('without privileges is told so by every call', async () => {
    const grant = newGrant();
    await expect(user.fence.activate({ ...grant, waitMs: 1 })).rejects.toThrow(/may not use the tables/);
    await expect(user.write(grant, async () => 'unguarded')).rejects.toThrow(/may not use the tables/);
    await expect(user.fence.inspect(grant.key)).rejects.toThrow(/may not use the tables/);
  });
});
