import { randomUUID } from 'node:crypto';
import { type Grant, type IsolationLevel, StaleGenerationError } from 'nestjs-fencing';
import type { EntityManager } from 'typeorm';
import {
  Authority,
  BareFence,
  holdFence,
  newGrant,
  successorOf,
  waitsForLock,
} from './support/bare-fence.js';
import { eventually, Gate } from './support/gate.js';

const ISOLATION: IsolationLevel[] = ['READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE'];

/** Keys that would break out of a badly quoted literal, or be changed by one. */
const HOSTILE_KEYS = [
  `it's`,
  `'; DROP TABLE fencing_fence; --`,
  `'') ; ROLLBACK; SELECT ('`,
  String.raw`back\slash`,
  String.raw`\'; ROLLBACK; --`,
  String.raw`ends with \ `.trim(),
  '$$ BEGIN END $$',
  '$1 %s :name ?',
  'new\nline\ttab\r',
  'É composed, É decomposed, 汉字, 🔑',
  '{"json": "\\u0027"}',
  'x'.repeat(1024),
];

describe('the guard of a fenced write', () => {
  let first: BareFence;
  let second: BareFence;
  let observer: BareFence;

  beforeAll(async () => {
    observer = await BareFence.open();
    first = await BareFence.open({ name: 'guard-first' });
    second = await BareFence.open({ name: 'guard-second' });
    await observer.dataSource.query('DROP TABLE IF EXISTS guarded');
    await observer.dataSource.query('CREATE TABLE guarded (key text, text text)');
  });
  afterAll(async () => {
    await Promise.all([first, second, observer].map((each) => each.close()));
  });

  const activated = async (by: BareFence, generation = 1, key?: string) => {
    const grant = newGrant(generation, key);
    await by.activate(grant);
    return grant;
  };
  const put = (manager: EntityManager, { key }: Grant, text = 'written') =>
    manager.query('INSERT INTO guarded VALUES ($1, $2)', [key, text]);
  const stored = async ({ key }: Grant): Promise<string[]> => {
    const rows = await observer.dataSource.query('SELECT text FROM guarded WHERE key = $1 ORDER BY text', [
      key,
    ]);
    return (rows as { text: string }[]).map((row) => row.text);
  };

  describe('lets pass', () => {
    it('the owner of the newest grant', async () => {
      const grant = await activated(first);
      const outcome = await first.write(grant, async (manager) => {
        await put(manager, grant);
        return 42;
      });
      expect(outcome).toEqual({ result: 42, duplicate: false, committed: true });
      expect(await stored(grant)).toEqual(['written']);
    });

    it.each(ISOLATION)('in %s, which is what the body runs in', async (isolation) => {
      const grant = await activated(first);
      const { result } = await first.write(grant, (manager) => manager.query('SHOW transaction_isolation'), {
        isolation,
      });
      expect(result).toEqual([{ transaction_isolation: isolation.toLowerCase() }]);
    });

    it.each(HOSTILE_KEYS.map((key) => [key.slice(0, 30), key]))(
      'the key %j, and refuses it when it is stale',
      async (_, name) => {
        for (const conforming of ['on', 'off']) {
          const bare = await BareFence.open({
            poolSize: 2,
            dataSource: { extra: { options: `-c standard_conforming_strings=${conforming}` } },
          });
          const key = `${name}${randomUUID()}`.slice(-1024);
          const grant = await activated(bare, 1, key);
          expect(await bare.fence.inspect(key)).toMatchObject({ owner: grant.owner });
          await bare.write(grant, (manager) => put(manager, grant));
          await bare.activate(successorOf(grant));
          await expect(bare.write(grant, async () => undefined)).rejects.toBeInstanceOf(StaleGenerationError);
          expect(await stored(grant)).toEqual(['written']);
          await bare.close();
        }
      },
    );
  });

  describe('refuses', () => {
    it('I2: a write of an older grant once a newer one is activated, and its body never runs', async () => {
      const grant = await activated(first, 3);
      await activated(second, 8, grant.key);
      let ran = false;
      const refusal = await first.write(grant, async () => (ran = true)).catch((error: unknown) => error);
      expect(refusal).toBeInstanceOf(StaleGenerationError);
      expect(refusal).toMatchObject({ key: grant.key, generation: 3, currentGeneration: 8 });
      expect(ran).toBe(false);
      expect(first.checkedOut).toBe(0);
    });

    it('the same generation of another owner', async () => {
      const grant = await activated(first, 3);
      await expect(first.write(newGrant(3, grant.key), async () => undefined)).rejects.toMatchObject({
        code: 'STALE_GENERATION',
        currentGeneration: 3,
      });
    });

    it('a newer grant that was never activated', async () => {
      const grant = await activated(first, 3);
      await expect(first.write(successorOf(grant), async () => undefined)).rejects.toMatchObject({
        code: 'STALE_GENERATION',
        generation: 4,
        currentGeneration: 3,
      });
    });

    it('a key that has no fence', async () => {
      await expect(first.write(newGrant(), async () => undefined)).rejects.toMatchObject({
        code: 'STALE_GENERATION',
        currentGeneration: undefined,
      });
    });

    it('all of a write where one of several keys is stale, and says which', async () => {
      const grants = [await activated(first), await activated(first), await activated(first)];
      await activated(second, 2, grants[1]!.key);
      let ran = false;
      await expect(first.write(new Authority(grants), async () => (ran = true))).rejects.toMatchObject({
        code: 'STALE_GENERATION',
        key: grants[1]!.key,
        currentGeneration: 2,
      });
      expect(ran).toBe(false);
    });
  });

  describe.each(ISOLATION)('in %s', (isolation) => {
    it('waits for an activation under way, and refuses when it is committed', async () => {
      const grant = await activated(first);
      const activation = await holdFence(second, successorOf(grant));
      let ran = false;
      const write = first.write(grant, async () => (ran = true), { isolation });
      await waitsForLock(observer.dataSource, 'guard-first');
      await activation.commit();
      await expect(write).rejects.toMatchObject({ code: 'STALE_GENERATION', currentGeneration: 2 });
      expect(ran).toBe(false);
    });

    it('waits for an activation under way, and passes when it is undone', async () => {
      const grant = await activated(first);
      const activation = await holdFence(second, successorOf(grant));
      const write = first.write(grant, (manager) => put(manager, grant), { isolation });
      await waitsForLock(observer.dataSource, 'guard-first');
      await activation.rollback();
      await write;
      expect(await stored(grant)).toEqual(['written']);
    });

    it('I3: keeps every newer grant out until the commit, of each of several keys', async () => {
      const grants = [await activated(first), await activated(first)];
      const gate = new Gate();
      const body = async (manager: EntityManager) => {
        await put(manager, grants[0]!);
        await gate.wait();
        await put(manager, grants[1]!);
      };
      const { outcome } = await first.begin(new Authority(grants), body, { isolation });
      const seen: string[][] = [];
      const activations = grants.map(async (grant) => {
        await second.activate(successorOf(grant));
        seen.push(await stored(grant));
      });
      await eventually(async () => {
        const [row] = await observer.dataSource.query(
          `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'guard-second' AND wait_event_type = 'Lock'`,
        );
        return Number(row.count) === 2;
      });
      expect(seen).toEqual([]);
      gate.open();
      await Promise.all(activations);
      expect(seen).toEqual([['written'], ['written']]);
      await outcome;
    });
  });

  it.each(ISOLATION)(
    'I1, I3: owners who race in %s never go back and never lose an update',
    async (isolation) => {
      const { dataSource } = observer;
      const key = `key-${randomUUID()}`;
      const history = `history_${key.slice(4, 12)}`;
      await dataSource.query(
        `CREATE TABLE ${history} (seq bigserial, generation bigint, owner text, value int)`,
      );
      const last = async () => {
        const [row] = await dataSource.query(`SELECT coalesce(max(value), 0) AS value FROM ${history}`);
        return Number(row.value);
      };
      let accepted = 0;
      const work = async (by: BareFence) => {
        for (let round = 0; round < 15; round++) {
          const seen = (await by.fence.inspect(key))?.generation ?? 0;
          const grant = newGrant(seen + 1, key);
          if (!(await by.fence.activate({ ...grant, waitMs: 30_000 })).activated) continue;
          // Read under the activation, written under the guard: what a leased method does.
          const value = (await last()) + 1;
          const body = async (manager: EntityManager) => {
            await manager.query(`INSERT INTO ${history} (generation, owner, value) VALUES ($1, $2, $3)`, [
              grant.generation,
              grant.owner,
              value,
            ]);
          };
          const written = await by
            .write(grant, body, { isolation, retries: 10 })
            .catch((error: unknown) => error);
          if (written instanceof StaleGenerationError) continue;
          expect(written).toMatchObject({ committed: true });
          accepted += 1;
        }
      };
      await Promise.all([first, second, first, second, observer].map(work));

      const rows: { generation: string; owner: string; value: number }[] = await dataSource.query(
        `SELECT generation, owner, value FROM ${history} ORDER BY seq`,
      );
      expect(rows.length).toBe(accepted);
      expect(rows.map(({ value }) => value)).toEqual(rows.map((_, i) => i + 1));
      const generations = rows.map(({ generation }) => Number(generation));
      expect(generations).toEqual([...generations].sort((a, b) => a - b));
      expect(new Set(generations).size).toBe(rows.length);
      await dataSource.query(`DROP TABLE ${history}`);
    },
  );

  describe('is held', () => {
    const blocks = async (grant: Grant) => {
      const answer = await second.fence
        .activate({ ...successorOf(grant), waitMs: 50 })
        .catch((error: unknown) => error);
      expect(answer).toMatchObject({ code: 'STORE_UNAVAILABLE', cause: { code: '55P03' } });
    };

    it('after a transaction inside was undone', async () => {
      const grant = await activated(first);
      await first.write(grant, async (manager) => {
        const inner = first.dataSource.transaction(async () => {
          await put(manager, grant, 'undone');
          throw new Error('undo');
        });
        await expect(inner).rejects.toThrow('undo');
        await blocks(grant);
        await put(manager, grant);
      });
      expect(await stored(grant)).toEqual(['written']);
    });

    it('after ROLLBACK TO a savepoint of the body', async () => {
      const grant = await activated(first);
      await first.write(grant, async (manager) => {
        await manager.query('SAVEPOINT mine');
        await put(manager, grant, 'undone');
        await manager.query('ROLLBACK TO SAVEPOINT mine');
        await manager.query('ROLLBACK WORK TO mine');
        await blocks(grant);
        await put(manager, grant);
      });
      expect(await stored(grant)).toEqual(['written']);
    });
  });
});
