import { randomUUID } from 'node:crypto';
import { FencingConfigError, LeaseKeyError, memoryLeases, type Receipt } from 'nestjs-fencing';
import pg from 'pg';
import type { EntityManager } from 'typeorm';
import { BareFence, newGrant, operation, poolOf, waitsForLock } from './support/bare-fence.js';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { eventually, Gate } from './support/gate.js';
import { freshDatabase } from './support/postgres-server.js';

const HOUR = 3_600_000;

describe('a receipt', () => {
  let app: FencedApp;
  let id: string;
  let key: string;
  beforeAll(async () => {
    app = await startFencedApp({ leases: memoryLeases(), entities: [], poolSize: 1 });
  });
  afterAll(() => app.close());
  beforeEach(() => {
    id = `operation-${randomUUID()}`;
    key = `key-${randomUUID()}`;
  });

  const send = (result: unknown, payload: unknown = 'payload') =>
    app.fencing.write({ operation: { id, payload } }, () => result);

  it('tells what was accepted, and under which grant', async () => {
    const before = Date.now();
    let grant: object | undefined;
    await app.fencing.run(key, {}, async ({ owner, generation }) => {
      grant = { key, owner, generation };
      await send({ rows: [1, { a: null }] });
    });
    const receipt = await app.fencing.receipt(id);
    expect(receipt).toEqual({
      id,
      ...grant,
      fingerprint: expect.stringMatching(/^[0-9a-f]{64}$/),
      result: { rows: [1, { a: null }] },
      acceptedAt: expect.any(Date),
    });
    expect(receipt!.acceptedAt.getTime()).toBeGreaterThan(before - 1_000);
  });

  it.each([[undefined], [null], [0], [''], [[]]])('keeps the result %j as it was', async (result) => {
    await app.fencing.run(key, {}, () => send(result));
    expect(await app.fencing.receipt(id)).toHaveProperty('result', result);
  });

  it.each<[string, number, (text: string) => unknown]>([
    ['jsonb as text', 3802, String],
    ['timestamptz as text', 1184, String],
    ['int8 as bigint', 20, BigInt],
    ['int4 as bigint', 23, BigInt],
    ['bool as text', 16, String],
  ])('is the same where the application reads %s', async (_, oid, parse) => {
    const parsed = pg.types.getTypeParser(oid);
    pg.types.setTypeParser(oid, parse as never);
    try {
      const result = { rows: [1, { a: null }], text: 'x' };
      await app.fencing.run(key, {}, () => send(result));
      expect(await app.fencing.run(key, {}, () => send('not done'))).toEqual(result);
      expect(await app.fencing.receipt(id)).toMatchObject({
        generation: expect.any(Number),
        acceptedAt: expect.any(Date),
        result,
      });
      const activatedAt = expect.any(Date);
      expect(await app.fencing.inspect(key)).toMatchObject({ fence: { activatedAt } });
      await app.fencing.revoke(key);
      expect(await app.fencing.audit(key)).toMatchObject([{ kind: 'revoked', at: expect.any(Date) }]);
      for (const prune of ['pruneReceipts', 'pruneAudit'] as const)
        expect(await app.fencing[prune]({ olderThanMs: HOUR })).toBe(0);
    } finally {
      pg.types.setTypeParser(oid, parsed as never);
    }
  });

  it('is undefined for an operation that nobody sent, that failed, or that is not committed yet', async () => {
    expect(await app.fencing.receipt(id)).toBeUndefined();
    await app.fencing.run(key, {}, async () => {
      const failing = app.fencing.write({ operation: { id } }, () => Promise.reject(new Error('failed')));
      await expect(failing).rejects.toThrow('failed');
      expect(await app.fencing.receipt(id)).toBeUndefined();
    });
  });

  it('is dated by the end of its effect, not by its beginning', async () => {
    let began = 0;
    await app.fencing.run(key, {}, () =>
      app.fencing.write({ operation: { id } }, async (manager: EntityManager) => {
        const [{ now }] = await manager.query('SELECT clock_timestamp() AS now FROM pg_sleep(0.05)');
        began = (now as Date).getTime();
      }),
    );
    expect((await app.fencing.receipt(id))!.acceptedAt.getTime()).toBeGreaterThanOrEqual(began);
  });

  it('field report 12: is read in the transaction of a fenced write, which needs no second connection', async () => {
    const pool = poolOf(app.dataSource);
    await app.fencing.run(key, {}, async () => {
      await send('before');
      let inside: Receipt | undefined;
      await app.fencing.write({}, async () => {
        inside = await app.fencing.receipt(id);
        expect((await app.fencing.inspect(key)).fence).toMatchObject({ owner: inside!.owner });
        await app.dataSource.transaction(async () => {
          expect(await app.fencing.receipt(id)).toEqual(inside);
        });
      });
      expect(inside).toMatchObject({ result: 'before' });
      await app.dataSource.transaction(async () => {
        expect(await app.fencing.receipt(id)).toEqual(inside);
      });
    });
    expect([pool.totalCount, pool.waitingCount]).toEqual([1, 0]);
  });

  it.each([[undefined], [''], [42], ['a\0b'], ['order:undefined']])(
    'of the id %p is refused',
    async (wrong) => {
      await expect(app.fencing.receipt(wrong as string)).rejects.toBeInstanceOf(LeaseKeyError);
    },
  );

  it('needs a fence', async () => {
    const bare = await startFencedApp({ leases: memoryLeases(), fence: false });
    await expect(bare.fencing.receipt(id)).rejects.toThrow(/FencingService.receipt: no fence is configured/);
    await expect(bare.fencing.pruneReceipts({ olderThanMs: HOUR })).rejects.toBeInstanceOf(
      FencingConfigError,
    );
    await bare.close();
  });
});

describe('pruning receipts', () => {
  let database: Awaited<ReturnType<typeof freshDatabase>>;
  let app: FencedApp;
  beforeAll(async () => {
    database = await freshDatabase();
    app = await startFencedApp({
      leases: memoryLeases(),
      entities: [],
      databaseUrl: database.url,
      poolSize: 2,
    });
  });
  afterAll(async () => {
    await app.close();
    await database.drop();
  });
  beforeEach(() => app.dataSource.query('TRUNCATE fencing_operation'));

  /** Receipts of this age, with ids all over. */
  const insert = (count: number, ageMs: number) =>
    app.dataSource.query(
      `INSERT INTO fencing_operation (id, key, generation, owner, fingerprint, accepted_at)
       SELECT md5(n || $2::text), 'key', 1, 'owner', 'payload', clock_timestamp() - $2::int * interval '1 millisecond'
       FROM generate_series(1, $1::int) n`,
      [count, ageMs],
    );
  const left = async () =>
    Number((await app.dataSource.query('SELECT count(*) FROM fencing_operation'))[0].count);

  it('deletes those that are old enough, and no other, and says how many', async () => {
    await insert(3, HOUR + 60_000);
    await insert(4, HOUR - 60_000);
    await insert(5, 0);
    expect(await app.fencing.pruneReceipts({ olderThanMs: HOUR })).toBe(3);
    expect(await left()).toBe(9);
    expect(await app.fencing.pruneReceipts({ olderThanMs: HOUR })).toBe(0);
  });

  it('goes through a large table in several short statements', async () => {
    await insert(7_000, 2 * HOUR);
    await insert(6_000, 0);
    let statements = 0;
    const count = () => (statements += 1);
    const pool = poolOf(app.dataSource);
    pool.on('acquire', count);
    expect(await app.fencing.pruneReceipts({ olderThanMs: HOUR })).toBe(7_000);
    expect(statements).toBeGreaterThanOrEqual(3);
    expect(await left()).toBe(6_000);
  });

  it('leaves alone what is under way, and does not wait for it', async () => {
    const other = await BareFence.open({ url: database.url });
    const grant = newGrant();
    await other.activate(grant);
    const gate = new Gate();
    const { outcome } = await other.begin(grant, () => gate.wait(), { operation: operation('under way') });
    await insert(2, 2 * HOUR);
    expect(await app.fencing.pruneReceipts({ olderThanMs: HOUR })).toBe(2);
    gate.open();
    expect(await outcome).toMatchObject({ committed: true });
    expect(await app.fencing.receipt('under way')).toBeDefined();
    await other.close();
  });

  it('lets an operation be done again once its receipt is gone: that is what its age is for', async () => {
    const send = () =>
      app.fencing.run('key', {}, () => app.fencing.write({ operation: { id: 'again' } }, () => randomUUID()));
    const first = await send();
    expect(await send()).toBe(first);
    await app.dataSource.query(`UPDATE fencing_operation SET accepted_at = accepted_at - interval '2 hours'`);
    expect(await app.fencing.pruneReceipts({ olderThanMs: HOUR })).toBe(1);
    expect(await send()).not.toBe(first);
  });

  it('at the same time in two places deletes each once', async () => {
    await insert(6_000, 2 * HOUR);
    const counts = await Promise.all([1, 2].map(() => app.fencing.pruneReceipts({ olderThanMs: HOUR })));
    expect(counts[0]! + counts[1]!).toBe(6_000);
  });

  it('inside a transaction is refused', async () => {
    const prune = () => app.fencing.pruneReceipts({ olderThanMs: HOUR });
    await expect(app.dataSource.transaction(prune)).rejects.toThrow(/inside a transaction/);
    await app.fencing.run('key', {}, () =>
      app.fencing.write({}, () => expect(prune()).rejects.toBeInstanceOf(FencingConfigError)),
    );
  });

  it.each<[unknown, string]>([
    [{ olderThanMs: 0 }, 'from 3600000 to'],
    [{ olderThanMs: -1 }, 'from 3600000 to'],
    [{ olderThanMs: HOUR - 1 }, 'from 3600000 to'],
    [{ olderThanMs: HOUR + 0.5 }, 'whole number'],
    [{ olderThanMs: NaN }, 'got NaN'],
    [{ olderThanMs: Infinity }, 'got Infinity'],
    [{ olderThanMs: '30d' }, `got '30d'`],
    [{ olderThanMs: new Date(0) }, 'got an object'],
    [{ olderThan: HOUR }, 'there is no option "olderThan"'],
    [{}, 'olderThanMs must be'],
    [undefined, 'options must be an object'],
  ])('with %p is refused by name, and deletes nothing', async (options, message) => {
    await insert(1, 2 * HOUR);
    const refusal = await app.fencing.pruneReceipts(options as never).catch((error: unknown) => error);
    expect(refusal).toBeInstanceOf(FencingConfigError);
    expect((refusal as Error).message).toContain(message);
    expect(await left()).toBe(1);
  });

  it('without the privilege says which one', async () => {
    await app.dataSource.query('CREATE ROLE no_pruner LOGIN');
    try {
      await app.dataSource.query('GRANT SELECT, INSERT, UPDATE ON fencing_operation TO no_pruner');
      const url = new URL(database.url);
      url.username = 'no_pruner';
      const bare = await BareFence.open({ url: url.href, check: false });
      await expect(bare.fence.pruneReceipts(HOUR)).rejects.toThrow(/needs DELETE on fencing_operation/);
      await bare.close();
    } finally {
      await app.dataSource.query('DROP OWNED BY no_pruner');
      await app.dataSource.query('DROP ROLE no_pruner');
    }
  });
});

/** Field report 31: PostgreSQL aborts a transaction at its first error. */
describe('losing the race for an operation inside a transaction of the application', () => {
  let bare: BareFence;
  let other: BareFence;
  beforeAll(async () => {
    bare = await BareFence.open({ poolSize: 1, name: 'race-loser' });
    other = await BareFence.open();
    await other.dataSource.query('DROP TABLE IF EXISTS raced');
    await other.dataSource.query('CREATE TABLE raced (id text, text text)');
  });
  afterAll(async () => {
    await Promise.all([bare, other].map((each) => each.close()));
  });

  it.each([
    ['READ COMMITTED', 'duplicate'],
    ['REPEATABLE READ', '40001'],
    ['SERIALIZABLE', '40001'],
  ] as const)('in %s is told (%s), and the transaction goes on and is committed', async (level, told) => {
    const id = `operation-${randomUUID()}`;
    const [grant, winners] = [newGrant(), newGrant()];
    await other.activate(grant);
    await other.activate(winners);
    const put = (manager: EntityManager, text: string) =>
      manager.query('INSERT INTO raced VALUES ($1, $2)', [id, text]);
    const gate = new Gate();
    const { outcome } = await other.begin(
      winners,
      (manager) => put(manager, 'winner').then(() => gate.wait()),
      {
        operation: operation(id),
      },
    );
    const losing = bare.dataSource.transaction(level, async (manager) => {
      await put(manager, 'before');
      const answer = await bare
        .write(grant, (same) => put(same, 'loser'), { operation: operation(id) })
        .catch((error: { driverError?: { code: string } }) => error);
      await put(manager, 'after');
      return answer;
    });
    await waitsForLock(other.dataSource, 'race-loser');
    gate.open();
    await outcome;
    expect(await losing).toMatchObject(
      told === 'duplicate' ? { duplicate: true } : { driverError: { code: told } },
    );
    const stored = await other.dataSource.query('SELECT text FROM raced WHERE id = $1 ORDER BY text', [id]);
    expect((stored as { text: string }[]).map(({ text }) => text)).toEqual(['after', 'before', 'winner']);
    await eventually(() => bare.checkedOut === 0);
  });
});
