import { FenceBypassError, type Grant, StaleGenerationError } from 'nestjs-fencing';
import type { EntityManager } from 'typeorm';
import { BareFence, newGrant, successorOf, waitsForLock } from './support/bare-fence.js';
import { Gate } from './support/gate.js';

describe('the transaction of a fenced write', () => {
  let first: BareFence;
  let second: BareFence;
  let observer: BareFence;

  beforeAll(async () => {
    observer = await BareFence.open();
    first = await BareFence.open({ name: 'boundaries-first' });
    second = await BareFence.open({ name: 'boundaries-second' });
    await observer.dataSource.query('CREATE TABLE IF NOT EXISTS bounded (key text, text text)');
  });
  afterAll(async () => {
    await Promise.all([first, second, observer].map((each) => each.close()));
  });

  const activated = async (by: BareFence) => {
    const grant = newGrant();
    await by.activate(grant);
    return grant;
  };
  const put = (manager: EntityManager, { key }: Grant, text = 'written') =>
    manager.query('INSERT INTO bounded VALUES ($1, $2)', [key, text]);
  const stored = async ({ key }: Grant): Promise<string[]> => {
    const rows = await observer.dataSource.query('SELECT text FROM bounded WHERE key = $1 ORDER BY text', [
      key,
    ]);
    return (rows as { text: string }[]).map((row) => row.text);
  };

  describe('after a serialization failure', () => {
    /** Writes the row of a key that another transaction changes after this one's snapshot was taken. */
    const contend = async (grant: Grant, retries: number) => {
      await observer.dataSource.query('INSERT INTO bounded VALUES ($1, $2)', [grant.key, 'old']);
      let runs = 0;
      const outcome = first.write(
        grant,
        async (manager) => {
          runs += 1;
          await manager.query('SELECT text FROM bounded WHERE key = $1', [grant.key]);
          if (runs === 1)
            await observer.dataSource.query(`UPDATE bounded SET text = 'other' WHERE key = $1`, [grant.key]);
          await manager.query('UPDATE bounded SET text = $2 WHERE key = $1', [grant.key, `run ${runs}`]);
        },
        { isolation: 'REPEATABLE READ', retries },
      );
      return { outcome: await outcome.catch((error: unknown) => error), runs };
    };

    it('the body is run again as often as `retries` says', async () => {
      const grant = await activated(first);
      expect(await contend(grant, 1)).toMatchObject({ outcome: { committed: true }, runs: 2 });
      expect(await stored(grant)).toEqual(['run 2']);
    });

    it('without retries the caller gets it as it is, never as stale', async () => {
      const grant = await activated(first);
      const { outcome, runs } = await contend(grant, 0);
      expect(outcome).toMatchObject({ driverError: { code: '40001' } });
      expect([runs, await stored(grant)]).toEqual([1, ['other']]);
    });

    it('a deadlock counts as one', async () => {
      const grant = await activated(first);
      const rows = [newGrant(), newGrant()];
      for (const row of rows)
        await observer.dataSource.query('INSERT INTO bounded VALUES ($1, $2)', [row.key, 'old']);
      const touch = (manager: EntityManager, row: Grant, text: string) =>
        manager.query('UPDATE bounded SET text = $2 WHERE key = $1', [row.key, text]);
      const both = new Gate();
      let other: Promise<unknown> | undefined;
      let runs = 0;
      await first.write(
        grant,
        async (manager) => {
          runs += 1;
          await touch(manager, rows[0]!, `run ${runs}`);
          other ??= second.dataSource.transaction(async (others) => {
            // Only the fenced write looks for deadlocks, so it is the one that is chosen.
            await others.query(`SET LOCAL deadlock_timeout = '10min'`);
            await touch(others, rows[1]!, 'other');
            both.open();
            await touch(others, rows[0]!, 'other');
          });
          await both.wait();
          if (runs === 1) await waitsForLock(observer.dataSource, 'boundaries-second');
          await touch(manager, rows[1]!, `run ${runs}`);
        },
        // The second run may be at the row before the other has got it, and then they meet again.
        { retries: 20 },
      );
      await other;
      expect(runs).toBeGreaterThan(1);
      expect([await stored(rows[0]!), await stored(rows[1]!)]).toEqual([[`run ${runs}`], [`run ${runs}`]]);
    });
  });

  describe('lets nothing out of the transaction:', () => {
    it('what the others of Promise.all still send when one has failed', async () => {
      const grant = await activated(first);
      let late: Promise<unknown> | undefined;
      const write = first.write(grant, async (manager) => {
        late = manager.query('SELECT pg_sleep(0.2)').then(() => put(manager, grant, 'late'));
        late.catch(() => undefined);
        await Promise.all([late, Promise.reject(new Error('one has failed'))]);
      });
      await expect(write).rejects.toThrow('one has failed');
      await expect(late).rejects.toBeDefined();
      expect(await stored(grant)).toEqual([]);
      expect(first.checkedOut).toBe(0);
    });

    it('what was not awaited and comes after COMMIT', async () => {
      const grant = await activated(first);
      let late: Promise<unknown> | undefined;
      await first.write(grant, async (manager) => {
        await put(manager, grant);
        late = manager.query('SELECT pg_sleep(0.2)').then(() => put(manager, grant, 'late'));
        late.catch(() => undefined);
      });
      await expect(late).rejects.toBeInstanceOf(FenceBypassError);
      expect(await stored(grant)).toEqual(['written']);
    });

    it('a transaction inside that was not awaited: nothing is committed', async () => {
      const grant = await activated(first);
      const gate = new Gate();
      const inside = new Gate();
      let late: Promise<unknown> | undefined;
      const write = first.write(grant, async (manager) => {
        late = first.dataSource.transaction(async () => {
          inside.open();
          await gate.wait();
        });
        late.catch(() => undefined);
        await inside.wait();
        await put(manager, grant);
      });
      await expect(write).rejects.toThrow(/transaction inside this fenced write that was not awaited/);
      gate.open();
      await expect(late).rejects.toBeDefined();
      expect(await stored(grant)).toEqual([]);
      // The connection went back without a transaction on it.
      await second.activate(successorOf(grant), 3_000);
      expect(first.checkedOut).toBe(0);
    });

    it('what follows when the transaction was ended behind its back', async () => {
      const grant = await activated(first);
      const write = first.write(grant, async (manager) => {
        const driver = (await manager.queryRunner!.connect()) as { query(text: string): Promise<unknown> };
        await driver.query('COMMIT');
        await put(manager, grant, 'unguarded').catch(() => undefined);
      });
      await expect(write).rejects.toBeInstanceOf(FenceBypassError);
      expect(await stored(grant)).toEqual([]);
      expect(first.checkedOut).toBe(0);
    });

    it('a second statement hidden behind the first', async () => {
      const grant = await activated(first);
      const write = first.write(grant, (manager) =>
        manager.query(`INSERT INTO bounded VALUES ('${grant.key}', 'unguarded'); COMMIT; SELECT 1`),
      );
      await expect(write).rejects.toBeInstanceOf(FenceBypassError);
      expect(await stored(grant)).toEqual([]);
    });
  });

  it('transactions inside one fenced write, side by side, do not end each other', async () => {
    const grant = await activated(first);
    await first.write(grant, async () => {
      const inner = [1, 2, 3, 4].map((i) =>
        first.dataSource.transaction(async (manager) => {
          await put(manager, grant, `${i}`);
          await manager.query('SELECT pg_sleep(0.01)');
          if (i % 2 === 0) throw new Error('undo the even ones');
        }),
      );
      const ends = await Promise.allSettled(inner);
      expect(ends.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled', 'rejected']);
    });
    expect(await stored(grant)).toEqual(['1', '3']);
  });

  type Transact = (work: (manager: EntityManager) => Promise<void>) => Promise<void>;
  const TRANSACTS: Record<
    string,
    (of: EntityManager, run: (transact: Transact) => Promise<void>) => unknown
  > = {
    'dataSource.transaction': (_, run) => run((work) => first.dataSource.transaction(work)),
    'transaction() of its manager': (of, run) => run((work) => of.transaction(work)),
    'transaction() of the manager of a transaction inside': (of, run) =>
      of.transaction((inner) => run((work) => inner.transaction(work))),
  };
  it.each(Object.entries(TRANSACTS))(
    'transactions inside one fenced write, side by side, do not end each other: %s',
    async (_, begin) => {
      const grant = await activated(first);
      await first.write(grant, async (of) => {
        await begin(of, async (transact) => {
          const [begun, both, over] = [new Gate(), new Gate(), new Gate()];
          const kept = transact(async (manager) => {
            await put(manager, grant, 'kept');
            begun.open();
            await both.wait();
            // By the second answer the other has begun as well, if it does not wait.
            for (const turn of [1, 2]) await manager.query(`SELECT ${turn}`);
          });
          await begun.wait();
          const undone = transact(async (manager) => {
            await put(manager, grant, 'undone');
            await over.wait();
            throw new Error('undo the second');
          });
          both.open();
          await kept;
          over.open();
          await expect(undone).rejects.toThrow('undo the second');
        });
      });
      expect(await stored(grant)).toEqual(['kept']);
    },
  );

  it('R8: no setting and no lock is left for the next user of the connection', async () => {
    const single = await BareFence.open({ poolSize: 1 });
    const state = async () => ({
      settings: await single.dataSource.query('SELECT name, setting FROM pg_settings ORDER BY name'),
      locks: await single.dataSource.query(
        `SELECT locktype, mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation IS DISTINCT FROM 'pg_locks'::regclass
         AND locktype NOT IN ('virtualxid', 'relation')`,
      ),
      pid: await single.dataSource.query('SELECT pg_backend_pid()'),
    });
    const before = await state();
    const grant = await activated(single);
    await single.write(grant, async () => undefined);
    await single.write(grant, async () => undefined, { isolation: 'SERIALIZABLE' });
    await expect(single.write(grant, () => Promise.reject(new Error('no')))).rejects.toThrow('no');
    await expect(single.write(successorOf(grant), async () => undefined)).rejects.toBeInstanceOf(
      StaleGenerationError,
    );
    expect(await state()).toEqual(before);
    await single.close();
  });
});
