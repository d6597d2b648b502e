import { randomUUID } from 'node:crypto';
import { type Grant, RowProtectedError, StaleGenerationError, WriteRolledBackError } from 'nestjs-fencing';
import { fencingMigrationsIn, protectTable } from 'nestjs-fencing/typeorm';
import type { EntityManager } from 'typeorm';
import { Authority, BareFence, newGrant, successorOf, waitsForLock } from './support/bare-fence.js';
import { startFencedApp } from './support/fenced-app.js';
import { freshDatabase } from './support/postgres-server.js';
import { psql, psqlPath } from './support/psql.js';

const itWithPsql = psqlPath ? it : it.skip;

describe('the triggers of protectTable', () => {
  let database: Awaited<ReturnType<typeof freshDatabase>>;
  let bare: BareFence;
  /** Another pool: a program that knows nothing of the fence. */
  let raw: BareFence;

  beforeAll(async () => {
    database = await freshDatabase();
    bare = await BareFence.open({ url: database.url });
    raw = await BareFence.open({ url: database.url, check: false });
    await bare.dataSource.query(`CREATE TABLE customer (id text PRIMARY KEY)`);
    await bare.dataSource.query(
      `CREATE TABLE report (customer_id text REFERENCES customer ON DELETE CASCADE, part int, text text,
      generation bigint NOT NULL DEFAULT 0, PRIMARY KEY (customer_id, part))`,
    );
    await bare.dataSource.query('CREATE TABLE ledger (id int PRIMARY KEY, text text, generation bigint)');
    const runner = bare.dataSource.createQueryRunner();
    await protectTable(runner, 'report', { key: 'report:{customer_id}' });
    await protectTable(runner, 'ledger');
    await runner.release();
  });
  afterAll(async () => {
    await Promise.all([bare, raw].map((each) => each.close()));
    await database.drop();
  });

  let id: string;
  let grant: Grant;

  /** A customer with two rows that `grant` has written, and one row of somebody else. */
  beforeEach(async () => {
    id = randomUUID();
    grant = newGrant(7, `report:${id}`);
    await raw.dataSource.query('INSERT INTO customer VALUES ($1)', [id]);
    await bare.activate(grant);
    await bare.write(grant, (manager) =>
      manager.query(`INSERT INTO report (customer_id, part, text) VALUES ($1, 1, 'one'), ($1, 2, 'two')`, [
        id,
      ]),
    );
  });

  interface Row {
    part: number;
    text: string;
    generation: string;
  }
  const rows = (): Promise<Row[]> =>
    raw.dataSource.query('SELECT part, text, generation FROM report WHERE customer_id = $1 ORDER BY part', [
      id,
    ]);
  const asSeeded = [
    { part: 1, text: 'one', generation: '7' },
    { part: 2, text: 'two', generation: '7' },
  ];
  const audited = (where = 'true') =>
    raw.dataSource.query<Record<string, unknown>[]>(`SELECT * FROM fencing_audit WHERE ${where} ORDER BY id`);
  /** A transaction on another pool, as a program that knows nothing of the fence would have it. */
  const rawly = <T>(work: (manager: EntityManager) => Promise<T>, ...before: string[]): Promise<T> =>
    raw.dataSource.transaction(async (manager) => {
      for (const statement of before) await manager.query(statement);
      return work(manager);
    });
  const refusal = (work: Promise<unknown>) =>
    work.then(
      () => {
        throw new Error('was not refused');
      },
      (error: unknown) => error as { code: string; driverError: Record<string, string> },
    );

  const posing = (generations: unknown) =>
    `SELECT set_config('fencing.generations', '${typeof generations === 'string' ? generations : JSON.stringify(generations)}', true)`;

  const WRITES: Record<string, (id: string) => string> = {
    INSERT: (id) => `INSERT INTO report (customer_id, part, text) VALUES ('${id}', 3, 'raw')`,
    'INSERT of many rows': (id) =>
      `INSERT INTO report (customer_id, part, text) SELECT '${id}', n, 'raw' FROM generate_series(3, 9) n`,
    'INSERT with a stamp of its own': (id) =>
      `INSERT INTO report VALUES ('${id}', 3, 'raw', 9007199254740991)`,
    UPDATE: (id) => `UPDATE report SET text = 'raw' WHERE customer_id = '${id}' AND part = 1`,
    'UPDATE of many rows': (id) => `UPDATE report SET text = 'raw' WHERE customer_id = '${id}'`,
    'UPDATE of the stamp': (id) =>
      `UPDATE report SET generation = 9007199254740991 WHERE customer_id = '${id}'`,
    'INSERT … ON CONFLICT DO UPDATE': (id) =>
      `INSERT INTO report (customer_id, part, text) VALUES ('${id}', 1, 'raw') ON CONFLICT (customer_id, part) DO UPDATE SET text = excluded.text`,
    DELETE: (id) => `DELETE FROM report WHERE customer_id = '${id}' AND part = 1`,
    'DELETE of many rows': (id) => `DELETE FROM report WHERE customer_id = '${id}'`,
  };
  const copy = (id: string) =>
    `COPY report (customer_id, part, text) FROM stdin;\n${id}\t3\traw\n${id}\t4\traw\n\\.\n`;

  describe('a protected table, written without the package', () => {
    it.each([...Object.entries(WRITES), ['TRUNCATE', () => 'TRUNCATE report'] as const])(
      '%s on another pool is refused with the SQLSTATE of the package and a hint, and nothing remains',
      async (_, statement) => {
        const { code, driverError } = await refusal(raw.dataSource.query(statement(id)));
        expect(code).toBe('NF002');
        expect(driverError.hint).toMatch(/inside a fenced write/);
        expect(driverError.hint).toMatch(/SET LOCAL fencing\.bypass/);
        expect(driverError.table).toBe('public.report');
        expect(await rows()).toEqual(asSeeded);
      },
    );

    itWithPsql.each([...Object.entries(WRITES), ['COPY FROM', copy], ['TRUNCATE', () => 'TRUNCATE report']])(
      '%s by psql is refused, and says what to do',
      async (_, script) => {
        const { code, stderr } = await psql(database.url, `${script(id)};`);
        expect(code).toBe(3);
        expect(stderr).toMatch(/ERROR: {2}NF002: protected table/);
        expect(stderr).toMatch(/HINT:.*fenced write/);
        expect(await rows()).toEqual(asSeeded);
      },
    );

    it('names the lease that a row belongs to in the hint', async () => {
      const { driverError } = await refusal(raw.dataSource.query(WRITES.UPDATE!(id)));
      expect(driverError.hint).toContain('report:{customer_id}');
    });

    it('is not emptied through a foreign key either', async () => {
      const { code } = await refusal(raw.dataSource.query('DELETE FROM customer WHERE id = $1', [id]));
      expect(code).toBe('NF002');
      expect((await refusal(raw.dataSource.query('TRUNCATE customer CASCADE'))).code).toBe('NF002');
      expect(await rows()).toEqual(asSeeded);
    });

    it('can be read, and statements that touch no row are no writes', async () => {
      await raw.dataSource.query(`UPDATE report SET text = 'raw' WHERE customer_id = 'nobody'`);
      await raw.dataSource.query(`DELETE FROM report WHERE customer_id = 'nobody'`);
      expect(await rows()).toEqual(asSeeded);
    });

    it('is refused to a role that has no rights on the fence as well, and the role is told the same', async () => {
      const role = `role_${randomUUID().replaceAll('-', '')}`;
      await raw.dataSource.query(`CREATE ROLE ${role}`);
      try {
        await raw.dataSource.query(`GRANT ALL ON report TO ${role}`);
        const { code, driverError } = await refusal(
          rawly((manager) => manager.query(WRITES.UPDATE!(id)), `SET LOCAL ROLE ${role}`),
        );
        expect(code).toBe('NF002');
        expect(driverError.hint).toMatch(/fenced write/);
        await rawly(
          (manager) => manager.query(WRITES.UPDATE!(id)),
          `SET LOCAL ROLE ${role}`,
          `SET LOCAL fencing.bypass = 'by a role'`,
        );
        expect(await audited(`reason = 'by a role'`)).toMatchObject([{ kind: 'bypassed', by: role }]);
      } finally {
        await raw.dataSource.query(`DROP OWNED BY ${role}`);
        await raw.dataSource.query(`DROP ROLE ${role}`);
      }
    });
  });

  describe('a protected table in a fenced write', () => {
    it.each(Object.entries(WRITES))(
      '%s is accepted, and stamped with the generation',
      async (name, statement) => {
        const next = successorOf(grant);
        await bare.activate(next);
        await bare.write(next, (manager) => manager.query(statement(id)));
        const now = await rows();
        expect(now).not.toEqual(asSeeded);
        // What was not written keeps its stamp, what was has the newer one, whatever the statement said.
        const untouched = now.filter((row) => row.generation === '7');
        expect(now.filter((row) => row.generation === '8')).toHaveLength(now.length - untouched.length);
        expect(asSeeded).toEqual(expect.arrayContaining(untouched));
        if (!name.startsWith('DELETE')) expect(untouched.length).toBeLessThan(now.length);
      },
    );

    itWithPsql('COPY FROM under a guard is accepted, and stamped', async () => {
      const generations = JSON.stringify({ [grant.key]: grant.generation });
      const guard = `CALL fencing_guard('${grant.key}', ${grant.generation}, '${grant.owner}', 10000, '${generations}');`;
      const { code, stderr } = await psql(database.url, `BEGIN;\n${guard}\n${copy(id)}COMMIT;\n`);
      expect([code, stderr]).toEqual([0, '']);
      expect(await rows()).toEqual([
        ...asSeeded,
        { part: 3, text: 'raw', generation: '7' },
        { part: 4, text: 'raw', generation: '7' },
      ]);
    });

    it('cannot be truncated', async () => {
      const write = bare.write(grant, (manager) => manager.query('TRUNCATE report'));
      await expect(write).rejects.toBeInstanceOf(RowProtectedError);
      expect(await rows()).toEqual(asSeeded);
    });

    it.each(['READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE'] as const)(
      'works in %s',
      async (isolation) => {
        await bare.write(grant, (manager) => manager.query(WRITES.UPDATE!(id)), { isolation });
        expect((await rows())[0]).toEqual({ part: 1, text: 'raw', generation: '7' });
      },
    );

    it('rows that were never stamped (0 or null) may be written under any generation', async () => {
      await rawly(
        (manager) => manager.query('UPDATE report SET generation = 0 WHERE customer_id = $1', [id]),
        `SET LOCAL fencing.bypass = 'as before the migration'`,
      );
      await rawly(
        (manager) =>
          manager.query(
            `INSERT INTO ledger VALUES (1, 'old', NULL) ON CONFLICT (id) DO UPDATE SET generation = NULL`,
          ),
        `SET LOCAL fencing.bypass = 'as before the migration'`,
      );
      await bare.write(grant, async (manager) => {
        await manager.query(WRITES['UPDATE of many rows']!(id));
        await manager.query(`UPDATE ledger SET text = 'new' WHERE id = 1`);
      });
      expect((await rows()).map(({ generation }) => generation)).toEqual(['7', '7']);
    });

    it('of another key is refused as what it is: not this lease’s row', async () => {
      const other = newGrant(1_000, `report:${randomUUID()}`);
      await bare.activate(other);
      for (const statement of Object.values(WRITES)) {
        const error = await bare
          .write(other, (manager) => manager.query(statement(id)))
          .catch((e: unknown) => e);
        expect(error).toBeInstanceOf(RowProtectedError);
        expect(error).toMatchObject({ key: other.key, table: 'public.report', code: 'ROW_PROTECTED' });
      }
      expect(await rows()).toEqual(asSeeded);
    });

    it('a row that carries a newer generation is refused as stale, and the newer one is named', async () => {
      await rawly(
        (manager) =>
          manager.query('UPDATE report SET generation = 9 WHERE customer_id = $1 AND part = 2', [id]),
        `SET LOCAL fencing.bypass = 'a row that is ahead'`,
      );
      for (const statement of ['UPDATE of many rows', 'DELETE of many rows']) {
        const error = await bare
          .write(grant, (manager) => manager.query(WRITES[statement]!(id)))
          .catch((e: unknown) => e);
        expect(error).toBeInstanceOf(StaleGenerationError);
        expect(error).toMatchObject({ key: grant.key, generation: 7, currentGeneration: 9 });
      }
      expect((await rows()).map(({ text, generation }) => [text, generation])).toEqual([
        ['one', '7'],
        ['two', '9'],
      ]);
    });

    it('a refusal that the method swallows makes the commit fail, typed', async () => {
      const write = bare.write(grant, async (manager) => {
        await manager.query(`UPDATE report SET text = 'mine' WHERE customer_id = $1`, [id]);
        await manager.query(`INSERT INTO report VALUES ('x', 1, 'not mine', 0)`).catch(() => undefined);
      });
      await expect(write).rejects.toBeInstanceOf(WriteRolledBackError);
      expect(await rows()).toEqual(asSeeded);
    });

    it('a refusal in a savepoint costs no more than the savepoint (field report 31)', async () => {
      await bare.write(grant, async (manager) => {
        const inner = manager.transaction((nested) =>
          nested.query(`INSERT INTO report VALUES ('x', 1, 'not mine', 0)`),
        );
        await expect(inner).rejects.toMatchObject({ code: 'NF002' });
        // ROLLBACK TO has taken nothing of the guard's.
        await manager.query(WRITES.UPDATE!(id));
      });
      expect((await rows())[0]).toEqual({ part: 1, text: 'raw', generation: '7' });
    });
  });

  describe('the generation of a transaction', () => {
    it('stays in a transaction of the application that a fenced write has joined, and goes with a savepoint that is undone', async () => {
      await bare.dataSource.transaction(async (manager) => {
        const undone = manager.transaction(async () => {
          await bare.write(grant, (inner) => inner.query(WRITES.UPDATE!(id)));
          throw new Error('undone');
        });
        await expect(undone).rejects.toThrow('undone');
        const late = manager.transaction((nested) => nested.query(WRITES.DELETE!(id)));
        await expect(late).rejects.toMatchObject({ code: 'NF002' });
        await bare.write(grant, (inner) => inner.query(WRITES.INSERT!(id)));
        await manager.query(WRITES.DELETE!(id));
      });
      expect((await rows()).map(({ part }) => part)).toEqual([2, 3]);
    });

    it('ends with it: the next one on the same connection has none', async () => {
      const single = await BareFence.open({ url: database.url, poolSize: 1, check: false });
      try {
        const write = () => single.write(grant, (manager) => manager.query(WRITES.UPDATE!(id)));
        for (const transaction of [write, () => single.dataSource.transaction(write)]) {
          await transaction();
          await expect(single.dataSource.query(WRITES.UPDATE!(id))).rejects.toMatchObject({ code: 'NF002' });
        }
        // Nor is a second connection needed anywhere (field report 12).
        await single.write(grant, (manager) => manager.query(WRITES.INSERT!(id)));
      } finally {
        await single.close();
      }
      expect((await rows()).map(({ part }) => part)).toEqual([1, 2, 3]);
    });

    it('is held against the fence: an old one is refused even where nothing guards the transaction', async () => {
      const next = successorOf(grant);
      await bare.activate(next);
      for (const statement of Object.values(WRITES)) {
        const stale = await refusal(
          rawly((manager) => manager.query(statement(id)), posing({ [grant.key]: grant.generation })),
        );
        expect(stale.code).toBe('NF001');
        expect(stale.driverError).toMatchObject({ detail: '8', column: next.owner });
      }
      expect(await rows()).toEqual(asSeeded);
    });

    it.each([
      ['one that was never activated', (key: string) => ({ [key]: 9_000 }), 'NF001'],
      ['one of a key without a fence', () => ({ 'report:nobody': 1 }), 'NF002'],
      ['none', () => ({}), 'NF002'],
      ['something else', () => 'nonsense', '22P02'],
      ['a text in its place', (key: string) => ({ [key]: 'seven' }), '22P02'],
    ])('is refused where a session makes it up: %s', async (_, generations, code) => {
      const refused = await refusal(
        rawly((manager) => manager.query(WRITES.UPDATE!(id)), posing(generations(grant.key))),
      );
      expect(refused.code).toBe(code);
      expect(await rows()).toEqual(asSeeded);
    });

    const setting = async (manager: EntityManager) => {
      const [row] = await manager.query<{ text: string }[]>(
        `SELECT current_setting('fencing.generations') AS text`,
      );
      return row!.text;
    };

    it('is held against the fence where it is left over from the guard of another transaction', async () => {
      const { result: leftOver } = await bare.write(grant, setting);
      await bare.activate(successorOf(grant));
      for (const statement of Object.values(WRITES)) {
        const stale = await refusal(rawly((manager) => manager.query(statement(id)), posing(leftOver)));
        expect(stale).toMatchObject({ code: 'NF001', driverError: { detail: '8' } });
      }
      expect(await rows()).toEqual(asSeeded);
    });

    it('counts for one row like for many, also of keys with blanks, and not for a key that begins with it', async () => {
      const blank = newGrant(5, `report:a%20b`);
      await raw.dataSource.query(`INSERT INTO customer VALUES ('a b'), ('a b c'), ('a')`);
      await bare.activate(blank);
      await bare.write(blank, async (manager) => {
        for (const name of ['INSERT', 'UPDATE of many rows']) await manager.query(WRITES[name]!('a b'));
      });
      for (const other of ['a b c', 'a'])
        await expect(
          bare.write(blank, (manager) => manager.query(WRITES.INSERT!(other))),
        ).rejects.toBeInstanceOf(RowProtectedError);
      expect(
        await raw.dataSource.query('SELECT DISTINCT generation FROM report WHERE generation = 5'),
      ).toEqual([{ generation: '5' }]);
    });

    it('of one fence does not count at a table that another fence protects', async () => {
      const own = await freshDatabase();
      const open = await BareFence.open({ url: own.url });
      let others: BareFence | undefined;
      try {
        await open.dataSource.query('CREATE SCHEMA others');
        await open.dataSource.query('CREATE TABLE report (id text PRIMARY KEY, generation bigint)');
        const runner = open.dataSource.createQueryRunner();
        for (const Migration of fencingMigrationsIn('others')) await new Migration().up(runner);
        await protectTable(runner, 'report', { key: 'report:{id}', fencingSchema: 'others' });
        await runner.release();
        others = await BareFence.open({ url: own.url, fence: { schema: 'others' } });
        const [here, there] = [newGrant(5, 'report:a'), newGrant(9, 'report:a')];
        await open.activate(here);
        await others.activate(there);
        const put = (manager: EntityManager) => manager.query(`INSERT INTO report VALUES ('a')`);
        await expect(open.write(here, put)).rejects.toMatchObject({ currentGeneration: 9 });
        await others.write(there, put);
        expect(await open.dataSource.query('SELECT * FROM report')).toEqual([{ id: 'a', generation: '9' }]);
      } finally {
        await Promise.all([open.close(), others?.close()]);
        await own.drop();
      }
    });

    it('keeps a newer owner’s activation waiting for a row that was written, as the guard does', async () => {
      const waiting = await BareFence.open({ url: database.url, name: `waits-${id}`, check: false });
      const runner = raw.dataSource.createQueryRunner();
      try {
        await runner.startTransaction();
        // Without the guard, so that the lock is the trigger's own.
        await runner.query(posing({ [grant.key]: grant.generation }));
        await runner.query(WRITES.UPDATE!(id));
        const activated = waiting.activate(successorOf(grant));
        await waitsForLock(raw.dataSource, `waits-${id}`);
        await runner.commitTransaction();
        await activated;
      } finally {
        await runner.release();
        await waiting.close();
      }
      expect((await rows())[0]).toEqual({ part: 1, text: 'raw', generation: '7' });
    });

    it('is what refuses a stale holder where the transaction guard is taken out', async () => {
      const own = await freshDatabase();
      const open = await BareFence.open({ url: own.url });
      try {
        await open.dataSource.query(`CREATE TABLE report (id text PRIMARY KEY, generation bigint)`);
        const runner = open.dataSource.createQueryRunner();
        await protectTable(runner, 'report', { key: 'report:{id}' });
        await runner.release();
        const [old, next] = [newGrant(1, 'report:a'), newGrant(2, 'report:a')];
        await open.activate(old);
        await open.activate(next);
        await open.dataSource.query(
          `CREATE OR REPLACE PROCEDURE fencing_guard(p_key text, p_generation bigint, p_owner text, p_idle_ms integer, p_generations text)
         LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('fencing.generations', json_build_object(p_key, p_generation)::text, true); END $$`,
        );
        await open.dataSource.query(`CREATE TABLE plain (id text)`);
        const late = (statement: string) => open.write(old, (manager) => manager.query(statement));
        // The hole, where there is no trigger.
        await late(`INSERT INTO plain VALUES ('late')`);
        expect(await open.dataSource.query('SELECT * FROM plain')).toHaveLength(1);
        await expect(late(`INSERT INTO report VALUES ('a')`)).rejects.toBeInstanceOf(StaleGenerationError);
        expect(await open.dataSource.query('SELECT * FROM report')).toEqual([]);
      } finally {
        await open.close();
        await own.drop();
      }
    });
  });

  it('a row that is ahead of its lease heals: one call is stale, and the next grant is above it', async () => {
    const app = await startFencedApp({ databaseUrl: database.url });
    try {
      const ahead = (Date.now() + 3_600_000) * 1_000;
      await rawly(
        (manager) => manager.query('UPDATE report SET generation = $1 WHERE customer_id = $2', [ahead, id]),
        `SET LOCAL fencing.bypass = 'a row that is ahead'`,
      );
      const write = () =>
        app.fencing.run(grant.key, {}, async (lease) => {
          await app.fencing.write({}, () => app.dataSource.query(WRITES.UPDATE!(id)));
          return lease.generation;
        });
      await expect(write()).rejects.toMatchObject({ code: 'STALE_GENERATION', currentGeneration: ahead });
      expect(await write()).toBeGreaterThan(ahead);
      expect((await rows())[0]).toMatchObject({ text: 'raw' });
    } finally {
      await app.close();
    }
  });

  describe('several leases in one transaction', () => {
    let other: Grant;
    let both: Authority;

    beforeEach(async () => {
      const otherId = randomUUID();
      // Generations of different keys have nothing to do with each other.
      other = newGrant(3, `report:${otherId}`);
      await raw.dataSource.query('INSERT INTO customer VALUES ($1)', [otherId]);
      await bare.activate(other);
      both = new Authority([grant, other]);
    });
    const otherId = () => other.key.slice('report:'.length);

    it.each([
      ['', <T>(write: () => Promise<T>) => write()],
      [
        ', in a transaction of the application too',
        <T>(write: () => Promise<T>) => bare.dataSource.transaction(write),
      ],
    ])('each row is stamped with the generation of its own key%s', async (_, around) => {
      await around(() =>
        bare.write(both, async (manager) => {
          await manager.query(WRITES['UPDATE of many rows']!(id));
          await manager.query(WRITES['INSERT of many rows']!(otherId()));
        }),
      );
      const stamps = await raw.dataSource.query(
        'SELECT DISTINCT customer_id, generation FROM report WHERE customer_id IN ($1, $2) ORDER BY generation',
        [id, otherId()],
      );
      expect(stamps).toEqual([
        { customer_id: otherId(), generation: '3' },
        { customer_id: id, generation: '7' },
      ]);
    });

    it('a row that changes its key needs the leases of both keys, and gets the generation of the new one', async () => {
      const move = (manager: EntityManager) =>
        manager.query('UPDATE report SET customer_id = $1 WHERE customer_id = $2 AND part = 1', [
          otherId(),
          id,
        ]);
      for (const alone of [grant, other])
        await expect(bare.write(alone, move)).rejects.toBeInstanceOf(RowProtectedError);
      await bare.write(both, move);
      expect(await rows()).toEqual([asSeeded[1]]);
      const [moved] = await raw.dataSource.query('SELECT generation FROM report WHERE customer_id = $1', [
        otherId(),
      ]);
      expect(moved).toEqual({ generation: '3' });
    });

    it('a stale one among them is named', async () => {
      await bare.activate(successorOf(other));
      const refused = await refusal(
        rawly(
          (manager) => manager.query(WRITES.INSERT!(otherId())),
          `SELECT set_config('fencing.generations', '${JSON.stringify({ [grant.key]: 7, [other.key]: 3 })}', true)`,
        ),
      );
      expect(refused).toMatchObject({ code: 'NF001', driverError: { detail: '4' } });
    });

    it('a table without a key takes one lease only, and the refusal says how to give it a key', async () => {
      const put = (manager: EntityManager) =>
        manager.query(
          `INSERT INTO ledger (id, text) VALUES (100, 'x') ON CONFLICT (id) DO UPDATE SET text = 'y'`,
        );
      const refused = await bare.write(both, put).catch((error: unknown) => error);
      expect(refused).toBeInstanceOf(RowProtectedError);
      expect((refused as RowProtectedError).cause).toMatchObject({
        hint: expect.stringMatching(/protectTable.*key/),
      });
      await bare.write(other, put);
      await bare.write(grant, put);
      const [row] = await raw.dataSource.query('SELECT text, generation FROM ledger WHERE id = 100');
      expect(row).toEqual({ text: 'y', generation: '7' });
      // 3 is not above 7, though it is of another key: why such a table must have one writer key.
      await expect(bare.write(other, put)).rejects.toBeInstanceOf(StaleGenerationError);
    });
  });

  describe('the way round, for operators', () => {
    const bypass = (reason: string) => `SET LOCAL fencing.bypass = '${reason}'`;

    it.each(Object.entries(WRITES))(
      '%s with a reason works, and leaves the stamp to the operator',
      async (name, statement) => {
        const reason = `repair ${id}`;
        await rawly((manager) => manager.query(statement(id)), bypass(reason));
        expect(await rows()).not.toEqual(asSeeded);
        if (name.endsWith('of the stamp')) expect((await rows())[0]!.generation).toBe('9007199254740991');
        const actions = (await audited(`reason = '${reason}'`)).map(({ action }) => action);
        expect(actions).toEqual(
          name.includes('CONFLICT')
            ? ['INSERT public.report', 'UPDATE public.report']
            : [`${name.split(' ')[0]!} public.report`],
        );
      },
    );

    it('is audited once for each transaction, table, command and reason: who, why, when', async () => {
      const reason = `bulk repair ${id}`;
      const [{ user, xid, now }] = await rawly(async (manager) => {
        await manager.query(WRITES['INSERT of many rows']!(id));
        await manager.query(WRITES['UPDATE of many rows']!(id));
        await manager.query(WRITES['UPDATE of many rows']!(id));
        return manager.query('SELECT current_user AS user, txid_current() AS xid, now() AS now');
      }, bypass(reason));
      await rawly((manager) => manager.query(WRITES.UPDATE!(id)), bypass(reason));
      const kept = await audited(`reason = '${reason}'`);
      expect(kept.map(({ action }) => action)).toEqual([
        'INSERT public.report',
        'UPDATE public.report',
        'UPDATE public.report',
      ]);
      expect(kept[0]).toMatchObject({ kind: 'bypassed', by: user, transaction: xid, at: now });
      expect(kept[2]!.transaction).not.toBe(xid);
    });

    it('also for TRUNCATE', async () => {
      const own = `truncated ${id}`;
      await raw.dataSource.query('CREATE TABLE IF NOT EXISTS emptied (id int, generation bigint)');
      const runner = raw.dataSource.createQueryRunner();
      await protectTable(runner, 'emptied');
      await runner.release();
      await expect(rawly((manager) => manager.query('TRUNCATE emptied'))).rejects.toMatchObject({
        code: 'NF002',
      });
      await rawly((manager) => manager.query('TRUNCATE emptied'), bypass(own));
      expect(await audited(`reason = '${own}'`)).toMatchObject([{ action: 'TRUNCATE public.emptied' }]);
    });

    it.each(['', ' ', '\t\n '])('needs a reason; %j is none', async (reason) => {
      const refused = await refusal(rawly((manager) => manager.query(WRITES.UPDATE!(id)), bypass(reason)));
      expect(refused.code).toBe('NF002');
    });

    it('ends with its transaction', async () => {
      const single = await BareFence.open({ url: database.url, poolSize: 1, check: false });
      try {
        await single.dataSource.transaction(async (manager) => {
          await manager.query(bypass(`once ${id}`));
          await manager.query(WRITES.UPDATE!(id));
        });
        await expect(single.dataSource.query(WRITES.UPDATE!(id))).rejects.toMatchObject({ code: 'NF002' });
      } finally {
        await single.close();
      }
    });

    it('leaves no audit of what was rolled back', async () => {
      const reason = `rolled back ${id}`;
      const work = rawly(async (manager) => {
        await manager.query(WRITES.UPDATE!(id));
        throw new Error('rolled back');
      }, bypass(reason));
      await expect(work).rejects.toThrow('rolled back');
      expect(await audited(`reason = '${reason}'`)).toEqual([]);
    });

    itWithPsql('works by psql, as the docs show it', async () => {
      const reason = `typed ${id}`;
      const script = `BEGIN;\n${bypass(reason)};\n${WRITES['DELETE of many rows']!(id)};\nCOMMIT;\n`;
      expect(await psql(database.url, script)).toMatchObject({ code: 0, stderr: '' });
      expect(await rows()).toEqual([]);
      expect(await audited(`reason = '${reason}'`)).toMatchObject([
        { kind: 'bypassed', action: 'DELETE public.report' },
      ]);
    });
  });

  describe('the holes that the docs name:', () => {
    const update = () => WRITES.UPDATE!(id);

    it('a table that is not protected is written by everybody', async () => {
      await raw.dataSource.query('CREATE TABLE IF NOT EXISTS open_report (id text, generation bigint)');
      await raw.dataSource.query(`INSERT INTO open_report VALUES ($1, 9007199254740991)`, [id]);
      await raw.dataSource.query(`UPDATE open_report SET generation = 0 WHERE id = $1`, [id]);
      expect(await raw.dataSource.query('SELECT * FROM open_report WHERE id = $1', [id])).toEqual([
        { id, generation: '0' },
      ]);
    });

    it('a session that claims the generation that the fence names passes for its owner', async () => {
      await rawly((manager) => manager.query(update()), posing({ [grant.key]: grant.generation }));
      expect((await rows())[0]).toMatchObject({ text: 'raw', generation: '7' });
    });

    it('a session that makes up the mark that the guard leaves in its transaction', async () => {
      await rawly(
        (manager) => manager.query(update()),
        `SELECT set_config('fencing.generations', concat_ws(' ', txid_current() || '.' || 'fencing_fence'::regclass::oid, 7, '${grant.key}'), true)`,
      );
      expect((await rows())[0]).toMatchObject({ text: 'raw', generation: '7' });
    });

    it('a superuser who switches triggers off for the session is not stopped, and not audited', async () => {
      const before = await audited();
      await rawly((manager) => manager.query(update()), `SET LOCAL session_replication_role = replica`);
      expect((await rows())[0]).toMatchObject({ text: 'raw' });
      expect(await audited()).toEqual(before);
    });

    it('the owner of the table, who switches its triggers off', async () => {
      await raw.dataSource.transaction(async (manager) => {
        await manager.query('ALTER TABLE report DISABLE TRIGGER USER');
        await manager.query(update());
        await manager.query('ALTER TABLE report ENABLE TRIGGER USER');
      });
      expect((await rows())[0]).toMatchObject({ text: 'raw' });
      await expect(raw.dataSource.query(update())).rejects.toMatchObject({ code: 'NF002' });
    });

    it('TRUNCATE of a single partition', async () => {
      await raw.dataSource.query('CREATE TABLE parts (id int, generation bigint) PARTITION BY RANGE (id)');
      await raw.dataSource.query('CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (10)');
      const runner = raw.dataSource.createQueryRunner();
      await protectTable(runner, 'parts');
      await runner.release();
      await bare.write(grant, (manager) => manager.query('INSERT INTO parts VALUES (1)'));
      await raw.dataSource.query('TRUNCATE parts_low');
      expect(await raw.dataSource.query('SELECT * FROM parts')).toEqual([]);
    });
  });
});
