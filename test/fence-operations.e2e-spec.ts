import { randomUUID } from 'node:crypto';
import { FencingConfigError, type Grant, type IsolationLevel, OperationConflictError } from 'nestjs-fencing';
import type { EntityManager } from 'typeorm';
import { BareFence, newGrant, operation, successorOf, waitsForLock } from './support/bare-fence.js';
import { Gate } from './support/gate.js';

describe('an operation', () => {
  let first: BareFence;
  let second: BareFence;
  let grant: Grant;
  let id: string;

  beforeAll(async () => {
    first = await BareFence.open({ poolSize: 10 });
    second = await BareFence.open({ poolSize: 10, name: 'operations-second' });
    await first.dataSource.query('DROP TABLE IF EXISTS effects');
    await first.dataSource.query('CREATE TABLE effects (operation text, effect text)');
  });
  afterAll(async () => {
    await Promise.all([first, second].map((each) => each.close()));
  });
  beforeEach(async () => {
    grant = newGrant();
    id = `operation-${randomUUID()}`;
    await first.activate(grant);
  });

  const put = (manager: EntityManager, effect = 'done') =>
    manager.query('INSERT INTO effects VALUES ($1, $2)', [id, effect]);
  const effects = async (): Promise<string[]> => {
    const rows = await first.dataSource.query(
      'SELECT effect FROM effects WHERE operation = $1 ORDER BY effect',
      [id],
    );
    return (rows as { effect: string }[]).map((row) => row.effect);
  };
  const receipt = async () => {
    const [row] = await first.dataSource.query('SELECT * FROM fencing_operation WHERE id = $1', [id]);
    return row as Record<string, unknown> | undefined;
  };
  /** Does the operation: one effect, and a result that tells who did it. */
  const send = (by = first, under = grant, fingerprint?: string) =>
    by.write(
      under,
      async (manager) => {
        await put(manager);
        return { by: under.owner };
      },
      { operation: operation(id, fingerprint) },
    );

  it('leaves a receipt beside its effect', async () => {
    expect(await send()).toEqual({ result: { by: grant.owner }, duplicate: false, committed: true });
    expect(await receipt()).toMatchObject({
      id,
      key: grant.key,
      generation: '1',
      owner: grant.owner,
      fingerprint: 'payload',
      result: { by: grant.owner },
      accepted_at: expect.anything(),
    });
  });

  it('I10: sent again is answered with the stored result, and its body does not run', async () => {
    await send();
    expect(await send(second)).toEqual({ result: { by: grant.owner }, duplicate: true, committed: false });
    expect(await effects()).toEqual(['done']);
  });

  it('sent again by the next owner is answered with the stored result', async () => {
    await send();
    const next = successorOf(grant);
    await second.activate(next);
    expect(await send(second, next)).toMatchObject({ result: { by: grant.owner }, duplicate: true });
    expect(await effects()).toEqual(['done']);
  });

  it('sent again with another payload is refused, and nothing is written', async () => {
    await send();
    const refusal = await send(second, grant, 'another').catch((error: unknown) => error);
    expect(refusal).toBeInstanceOf(OperationConflictError);
    expect(refusal).toMatchObject({ operationId: id });
    expect(await effects()).toEqual(['done']);
    expect(first.checkedOut + second.checkedOut).toBe(0);
  });

  it.each<IsolationLevel>(['READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE'])(
    'sent ten times at once in %s has one effect, and every sender gets its result',
    async (isolation) => {
      const outcomes = await Promise.all(
        Array.from({ length: 10 }, (_, i) =>
          [first, second][i % 2]!.write(
            grant,
            async (manager) => {
              await put(manager);
              return i;
            },
            { operation: operation(id), isolation, retries: 20 },
          ),
        ),
      );
      const doers = outcomes.filter(({ duplicate }) => !duplicate);
      expect(doers).toHaveLength(1);
      expect(outcomes.map(({ result }) => result)).toEqual(outcomes.map(() => doers[0]!.result));
      expect(await effects()).toEqual(['done']);
    },
  );

  it('whose first sender fails is done by the one who waited for it', async () => {
    const gate = new Gate();
    const { outcome: failing } = await first.begin(
      grant,
      async (manager) => {
        await put(manager, 'undone');
        await gate.wait();
        throw new Error('failed');
      },
      { operation: operation(id) },
    );
    const waiting = send(second);
    await waitsForLock(first.dataSource, 'operations-second');
    gate.open();
    await expect(failing).rejects.toThrow('failed');
    expect(await waiting).toMatchObject({ duplicate: false, committed: true });
    expect(await effects()).toEqual(['done']);
  });

  it('that failed left no receipt', async () => {
    const failing = first.write(grant, () => Promise.reject(new Error('failed')), {
      operation: operation(id),
    });
    await expect(failing).rejects.toThrow('failed');
    expect(await receipt()).toBeUndefined();
    expect(await send()).toMatchObject({ duplicate: false });
  });

  it('of a stale owner leaves no receipt, and is not answered from one', async () => {
    const next = successorOf(grant);
    await second.activate(next);
    await expect(send()).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    expect(await receipt()).toBeUndefined();
    await send(second, next);
    await expect(send()).rejects.toMatchObject({ code: 'STALE_GENERATION' });
  });

  it.each([
    [undefined],
    [null],
    [0],
    [1.5e300],
    [''],
    ['a "text" \\ with \n everything \u2028 🔑 null'],
    [true],
    [[]],
    [[1, [null, { deep: 'er' }]]],
    [{ a: 1, b: { c: [] }, 'a name': 'x' }],
  ])('gives the result %j to every later sender unchanged', async (result) => {
    const sent = () => first.write(grant, async () => result, { operation: operation(id) });
    expect((await sent()).result).toEqual(result);
    const again = await sent();
    expect(again.duplicate).toBe(true);
    expect(again.result).toEqual(result);
  });

  class Report {
    readonly total = 1;
  }
  const cyclic: Record<string, unknown> = {};
  cyclic.self = [cyclic];
  it.each<[string, unknown, string]>([
    ['a Date', { at: new Date(0) }, 'the result.at is Date'],
    ['a Map', [new Map()], 'the result[0] is Map'],
    ['an instance', { report: new Report() }, 'the result.report is Report'],
    ['a bigint', { n: 1n }, 'the result.n is bigint'],
    ['NaN', [1, NaN], 'the result[1] is NaN'],
    ['Infinity', -Infinity, 'the result is -Infinity'],
    ['a function', { f: () => 1 }, 'the result.f is function'],
    ['a symbol', Symbol('s'), 'the result is symbol'],
    ['undefined in an array', [undefined], 'the result[0] is undefined'],
    ['a hole in an array', Array(1), 'the result[0] is undefined'],
    ['a Buffer', Buffer.from('x'), 'the result is Buffer'],
    ['U+0000', { t: 'a\0b' }, 'the result.t is a text with U+0000'],
    ['half a surrogate pair', { t: '\ud800' }, 'the result.t is a text with U+0000 or half a surrogate'],
    ['a name with U+0000', { 'a\0b': 1 }, 'a name in the result is a text with U+0000'],
    ['itself', cyclic, 'the result.self[0] is circular'],
  ])('whose result contains %s is refused by name, and nothing is written', async (_, result, message) => {
    const refusal = await first
      .write(grant, (manager) => put(manager).then(() => result), { operation: operation(id) })
      .catch((error: unknown) => error);
    expect(refusal).toBeInstanceOf(FencingConfigError);
    expect((refusal as Error).message).toContain(message);
    expect([await effects(), await receipt()]).toEqual([[], undefined]);
  });

  describe('inside a fenced write', () => {
    const join = (body: (manager: EntityManager) => Promise<unknown>, as = id) =>
      first.write(grant, body, { operation: operation(as) });

    it('is committed with it, on the same connection', async () => {
      await first.write(grant, async (manager) => {
        const [{ pid }] = await manager.query('SELECT pg_backend_pid() AS pid');
        const inner = await join(async (same) => {
          expect(await same.query('SELECT pg_backend_pid() AS pid')).toEqual([{ pid }]);
          await put(same);
          return 'inner';
        });
        expect(inner).toEqual({ result: 'inner', duplicate: false, committed: false });
        expect(first.checkedOut).toBe(1);
      });
      expect(await effects()).toEqual(['done']);
    });

    it('that fails is undone alone, and the outer write goes on', async () => {
      await first.write(grant, async (manager) => {
        await put(manager, 'before');
        const failing = join(async (same) => {
          await put(same, 'undone');
          await same.query('SELECT 1/0');
        });
        await expect(failing).rejects.toMatchObject({ driverError: { code: '22012' } });
        await put(manager, 'after');
      });
      expect(await effects()).toEqual(['after', 'before']);
      expect(await receipt()).toBeUndefined();
    });

    it('that is a duplicate is answered, and the outer write goes on', async () => {
      await send();
      await first.write(grant, async (manager) => {
        expect(await join(async () => 'again')).toMatchObject({
          result: { by: grant.owner },
          duplicate: true,
        });
        await put(manager, 'outer');
      });
      expect(await effects()).toEqual(['done', 'outer']);
    });

    it('is gone when the outer write fails', async () => {
      const outer = first.write(grant, async () => {
        await join((same) => put(same));
        throw new Error('the outer one failed');
      });
      await expect(outer).rejects.toThrow('the outer one failed');
      expect([await effects(), await receipt()]).toEqual([[], undefined]);
      expect(await send()).toMatchObject({ duplicate: false });
    });

    it('may contain another one, and another', async () => {
      await first.write(grant, async () => {
        await join(async (same) => {
          await put(same, '1');
          await join(async (deeper) => {
            await put(deeper, '2');
            const third = join(async (deepest) => {
              await put(deepest, 'undone');
              throw new Error('third');
            }, `${id}/3`);
            await expect(third).rejects.toThrow('third');
          }, `${id}/2`);
        });
      });
      expect(await effects()).toEqual(['1', '2']);
    });

    it('side by side with others does not end theirs', async () => {
      await first.write(grant, async () => {
        const ends = await Promise.allSettled(
          [1, 2, 3, 4, 5, 6].map((i) => {
            const body = async () => {
              await put(first.dataSource.manager, `${i}`);
              await first.dataSource.query('SELECT pg_sleep(0.01)');
              if (i % 2 === 0) throw new Error('undo the even ones');
            };
            // Operations and transactions of the application take turns too.
            return i % 3 === 0 ? first.dataSource.transaction(body) : join(body, `${id}/${i}`);
          }),
        );
        expect(ends.map(({ status }) => status === 'fulfilled')).toEqual([
          true,
          false,
          true,
          false,
          true,
          false,
        ]);
      });
      expect(await effects()).toEqual(['1', '3', '5']);
    });
  });
});
