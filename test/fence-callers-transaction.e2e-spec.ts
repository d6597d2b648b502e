import { randomUUID } from 'node:crypto';
import {
  FenceBypassError,
  FencingConfigError,
  type Grant,
  LeaseLostError,
  LeaseOrderError,
  memoryLeases,
} from 'nestjs-fencing';
import type { EntityManager } from 'typeorm';
import { Authority, BareFence, newGrant, operation, successorOf } from './support/bare-fence.js';
import { startFencedApp } from './support/fenced-app.js';

describe('a fenced write inside a transaction that the application opened', () => {
  let bare: BareFence;
  let other: BareFence;
  let grant: Grant;
  let id: string;

  beforeAll(async () => {
    bare = await BareFence.open({ poolSize: 1 });
    other = await BareFence.open();
    await other.dataSource.query('DROP TABLE IF EXISTS plain');
    await other.dataSource.query('CREATE TABLE plain (key text, text text, UNIQUE (key, text))');
  });
  afterAll(async () => {
    await Promise.all([bare, other].map((each) => each.close()));
  });
  beforeEach(async () => {
    grant = newGrant();
    id = `operation-${randomUUID()}`;
    await other.activate(grant);
  });
  afterEach(() => {
    expect(bare.checkedOut).toBe(0);
  });

  const put = (manager: EntityManager, text: string) =>
    manager.query('INSERT INTO plain VALUES ($1, $2)', [grant.key, text]);
  const stored = async (): Promise<string[]> => {
    const rows = await other.dataSource.query('SELECT text FROM plain WHERE key = $1 ORDER BY text', [
      grant.key,
    ]);
    return (rows as { text: string }[]).map((row) => row.text);
  };
  const blocks = async () => {
    const answer = await other.fence
      .activate({ ...successorOf(grant), waitMs: 50 })
      .catch((error: unknown) => error);
    expect(answer).toMatchObject({ code: 'STORE_UNAVAILABLE', cause: { code: '55P03' } });
  };

  it('is part of it: same connection, guarded, committed by its opener', async () => {
    await bare.dataSource.transaction(async (manager) => {
      await put(manager, 'before');
      const outcome = await bare.write(grant, async () => {
        // Also what was injected, and a transaction inside.
        await put(bare.dataSource.manager, 'inside');
        await bare.dataSource.transaction((inner) => put(inner, 'deeper'));
        return 'done';
      });
      expect(outcome).toEqual({ result: 'done', duplicate: false, committed: false });
      expect(bare.checkedOut).toBe(1);
      await blocks();
      expect(await stored()).toEqual([]);
      await put(manager, 'after');
    });
    expect(await stored()).toEqual(['after', 'before', 'deeper', 'inside']);
    await other.activate(successorOf(grant));
  });

  it('is undone with it', async () => {
    const transaction = bare.dataSource.transaction(async () => {
      await bare.write(grant, (manager) => put(manager, 'undone'));
      throw new Error('undo all');
    });
    await expect(transaction).rejects.toThrow('undo all');
    expect(await stored()).toEqual([]);
  });

  it('that is stale is refused, and the transaction goes on and is committed', async () => {
    const next = successorOf(grant);
    await other.activate(next);
    await bare.dataSource.transaction(async (manager) => {
      await put(manager, 'before');
      let ran = false;
      await expect(bare.write(grant, async () => (ran = true))).rejects.toMatchObject({
        code: 'STALE_GENERATION',
        generation: 1,
        currentGeneration: 2,
      });
      expect(ran).toBe(false);
      await put(manager, 'after');
    });
    expect(await stored()).toEqual(['after', 'before']);
  });

  it('that is a duplicate or a conflict says so, and the transaction goes on and is committed', async () => {
    const send = (fingerprint?: string, by = bare) =>
      by.write(grant, (manager) => put(manager, 'effect'), { operation: operation(id, fingerprint) });
    await send(undefined, other);
    await bare.dataSource.transaction(async (manager) => {
      await put(manager, 'before');
      expect(await send()).toMatchObject({ duplicate: true, committed: false });
      await expect(send('another payload')).rejects.toMatchObject({ code: 'OPERATION_CONFLICT' });
      await put(manager, 'after');
    });
    expect(await stored()).toEqual(['after', 'before', 'effect']);
  });

  it('whose operation fails is undone alone, and the transaction goes on and is committed', async () => {
    await bare.dataSource.transaction(async (manager) => {
      await put(manager, 'before');
      const failing = bare.write(
        grant,
        async (same) => {
          await put(same, 'undone');
          await put(same, 'before');
        },
        { operation: operation(id) },
      );
      await expect(failing).rejects.toMatchObject({ driverError: { code: '23505' } });
      await put(manager, 'after');
    });
    expect(await stored()).toEqual(['after', 'before']);
  });

  it('that failed without an operation has spoilt it, which is told by name and not as 25P02', async () => {
    const transaction = bare.dataSource.transaction(async (manager) => {
      await put(manager, 'before');
      await bare.write(grant, (same) => put(same, 'before')).catch(() => undefined);
      await put(manager, 'after');
    });
    await expect(transaction).rejects.toMatchObject({ code: 'WRITE_ROLLED_BACK', cause: { code: '23505' } });
    expect(await stored()).toEqual([]);
  });

  it('is guarded anew after the savepoint that held its guard was undone', async () => {
    await bare.dataSource.transaction(async (manager) => {
      const inner = manager.transaction(async () => {
        await bare.write(grant, (same) => put(same, 'undone'));
        throw new Error('undo the inner one');
      });
      await expect(inner).rejects.toThrow('undo the inner one');
      await other.activate(successorOf(grant));
      await expect(bare.write(grant, (same) => put(same, 'stale'))).rejects.toMatchObject({
        code: 'STALE_GENERATION',
      });
    });
    expect(await stored()).toEqual([]);
  });

  it('may be one of many: nothing piles up on the connection', async () => {
    const warnings: unknown[] = [];
    const onWarning = (warning: unknown) => warnings.push(warning);
    process.on('warning', onWarning);
    const authority = new Authority(grant);
    await bare.dataSource.transaction(async (manager) => {
      const client = (await manager.queryRunner!.connect()) as { listenerCount(event: string): number };
      await bare.write(authority, (same) => put(same, 'first'));
      const listeners = [client.listenerCount('error'), authority.listeners];
      for (let i = 0; i < 20; i++) await bare.write(authority, (same) => put(same, `${i}`));
      expect([client.listenerCount('error'), authority.listeners]).toEqual(listeners);
    });
    process.off('warning', onWarning);
    expect(authority.listeners).toBe(0);
    expect(await stored()).toHaveLength(21);
    expect(warnings).toEqual([]);
  });

  it('ends it when the lease ends', async () => {
    const authority = new Authority(grant);
    const lost = new LeaseLostError(grant.key, 1, 'expired');
    const transaction = bare.dataSource.transaction(async (manager) => {
      await bare.write(authority, (same) => put(same, 'undone'));
      authority.end(lost);
      await other.activate(successorOf(grant));
      await expect(bare.write(authority, async () => undefined)).rejects.toBe(lost);
      await put(manager, 'undone too');
    });
    await expect(transaction).rejects.toBeDefined();
    expect(await stored()).toEqual([]);
  });

  it('may not end it by a statement', async () => {
    const transaction = bare.dataSource.transaction(() => bare.write(grant, (same) => same.query('COMMIT')));
    await expect(transaction).rejects.toBeInstanceOf(FenceBypassError);
  });

  it('takes its isolation as it is, and refuses to ask for another', async () => {
    await bare.dataSource.transaction('SERIALIZABLE', async () => {
      await bare.write(grant, (same) => put(same, 'written'), { isolation: 'SERIALIZABLE' });
      const refusal = bare.write(grant, async () => undefined, { isolation: 'REPEATABLE READ' });
      await expect(refusal).rejects.toBeInstanceOf(FencingConfigError);
    });
    expect(await stored()).toEqual(['written']);
  });
});

describe('a lease', () => {
  it('is refused inside every kind of transaction that the fence can see, and allowed after it', async () => {
    const app = await startFencedApp({ leases: memoryLeases(), entities: [] });
    const { fencing, dataSource } = app;
    const take = () => fencing.run('inner', {}, () => 'taken');
    const refused = (work: () => Promise<unknown>) => expect(work()).rejects.toBeInstanceOf(LeaseOrderError);

    await refused(() => dataSource.transaction(take));
    await refused(() => dataSource.manager.transaction('SERIALIZABLE', take));
    await refused(() => dataSource.transaction((manager) => manager.transaction(take)));
    await refused(() => fencing.run('outer', {}, () => fencing.write({}, take)));
    await refused(() =>
      fencing.run('outer', {}, () => fencing.write({}, () => dataSource.transaction(take))),
    );
    await refused(async () => dataSource.transaction(() => fencing.acquire('inner')));

    // The key that is held may be joined.
    await fencing.run('inner', {}, () => fencing.write({}, take));
    await fencing.run('outer', {}, async () => {
      await fencing.write({}, () => undefined);
      await dataSource.transaction(async () => undefined);
      expect(await take()).toBe('taken');
    });
    await app.close();
  });

  it('that is not the one of the transaction may not write in it', async () => {
    const app = await startFencedApp({ leases: memoryLeases(), entities: [] });
    const lease = await app.fencing.acquire('other');
    await app.fencing.run('outer', {}, () =>
      app.fencing.write({}, async () => {
        await expect(lease.run(() => app.fencing.write({}, () => undefined))).rejects.toBeInstanceOf(
          LeaseOrderError,
        );
      }),
    );
    lease.release();
    await app.close();
  });
});
