import { LeaseLostError } from 'nestjs-fencing';
import type { EntityManager } from 'typeorm';
import { Authority, BareFence, newGrant, successorOf, waitsForLock } from './support/bare-fence.js';
import { eventually, Gate } from './support/gate.js';
import { forkWorker } from './support/workers.js';

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
const idleLimit = async (manager: EntityManager) => {
  const [row] = await manager.query(
    `SELECT setting::int AS ms FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'`,
  );
  return row.ms as number;
};

describe('a transaction of a lease', () => {
  let owner: BareFence;
  let successor: BareFence;

  beforeAll(async () => {
    owner = await BareFence.open({ name: 'lease-end-owner' });
    successor = await BareFence.open({ name: 'lease-end-successor' });
    await owner.dataSource.query('CREATE TABLE IF NOT EXISTS ended (key text)');
  });
  afterAll(async () => {
    await Promise.all([owner, successor].map((each) => each.close()));
  });

  const lease = async (validMs?: number) => {
    const grant = newGrant();
    await owner.activate(grant);
    return {
      grant,
      authority: new Authority(grant, validMs),
      lost: new LeaseLostError(grant.key, 1, 'expired'),
    };
  };
  const put = (manager: EntityManager, key: string) => manager.query('INSERT INTO ended VALUES ($1)', [key]);
  const stored = async (key: string) =>
    (await successor.dataSource.query('SELECT 1 FROM ended WHERE key = $1', [key])).length as number;

  it('that has ended takes no connection', async () => {
    const { authority, lost } = await lease();
    let acquired = 0;
    owner.pool.on('acquire', () => (acquired += 1));
    authority.end(lost);
    await expect(owner.write(authority, async () => 'ran')).rejects.toBe(lost);
    expect(acquired).toBe(0);
  });

  it('that ends while it waits for a connection does not begin', async () => {
    const single = await BareFence.open({ poolSize: 1 });
    const { authority, lost } = await lease();
    const runner = single.dataSource.createQueryRunner();
    await runner.connect();
    let ran = false;
    const write = single.write(authority, async () => (ran = true));
    await eventually(() => single.pool.waitingCount === 1);
    authority.end(lost);
    await expect(write).rejects.toBe(lost);
    await runner.release();
    await eventually(() => single.checkedOut === 0 && single.pool.waitingCount === 0);
    expect([ran, authority.listeners]).toEqual([false, 0]);
    await single.close();
  });

  it('that is over when the connection comes does not begin', async () => {
    const { authority, lost } = await lease();
    let ran = false;
    // The local timer has not fired: the event loop was blocked.
    const write = owner.write(
      Object.assign(Object.create(authority) as Authority, {
        ended: () => (owner.checkedOut > 0 ? lost : undefined),
      }),
      async () => (ran = true),
    );
    await expect(write).rejects.toBe(lost);
    expect([ran, owner.checkedOut]).toEqual([false, 0]);
  });

  it('leaves no listener behind, however it ended', async () => {
    const { authority } = await lease();
    await owner.write(authority, async () => undefined);
    await expect(owner.write(authority, () => Promise.reject(new Error('no')))).rejects.toThrow('no');
    await successor.activate(successorOf(authority.grants[0]!));
    await expect(owner.write(authority, async () => undefined)).rejects.toMatchObject({
      code: 'STALE_GENERATION',
    });
    expect(authority.listeners).toBe(0);
  });

  it('ends with it, and the successor need not wait for the body', async () => {
    const { grant, authority, lost } = await lease(600_000);
    const gate = new Gate();
    let late: unknown;
    const { outcome: write } = await owner.begin(authority, async (manager) => {
      await put(manager, grant.key);
      await gate.wait();
      late = await put(manager, grant.key).catch((error: unknown) => error);
      throw late as Error;
    });
    const activation = successor.activate(successorOf(grant), 20_000);
    await waitsForLock(owner.dataSource, 'lease-end-successor');
    authority.end(lost);
    await activation;
    gate.open();
    await expect(write).rejects.toBe(lost);
    expect(late).toBe(lost);
    expect([await stored(grant.key), owner.checkedOut, authority.listeners]).toEqual([0, 0, 0]);
  });

  it('ends with it also while a statement runs on and on', async () => {
    const { grant, authority, lost } = await lease(600_000);
    const { outcome: write } = await owner.begin(authority, async (manager) => {
      await put(manager, grant.key);
      await manager.query('SELECT pg_sleep(600)');
    });
    const running = `SELECT 1 FROM pg_stat_activity WHERE application_name = 'lease-end-owner' AND query LIKE '%600%'`;
    await eventually(async () => (await successor.dataSource.query<unknown[]>(running)).length > 0);
    const activation = successor.activate(successorOf(grant), 20_000);
    await waitsForLock(owner.dataSource, 'lease-end-successor');
    authority.end(lost);
    await activation;
    await expect(write).rejects.toBe(lost);
    expect(await stored(grant.key)).toBe(0);
  });

  it.each(['end', 'expire'] as const)('is not committed once it has ended (%s)', async (how) => {
    const { grant, authority, lost } = await lease();
    const write = owner.write(authority, async (manager) => {
      await put(manager, grant.key);
      authority[how](lost);
      return 'done';
    });
    await expect(write).rejects.toBe(lost);
    expect([await stored(grant.key), owner.checkedOut]).toEqual([0, 0]);
  });

  it('may be idle for as long as the lease is valid, and not longer', async () => {
    const { grant, authority } = await lease(12_345);
    await owner.write(authority, async (manager) => {
      expect(await idleLimit(manager)).toBe(12_345);
      // The event that a paused worker never gets.
      authority.renew(54_321);
      expect(await idleLimit(manager)).toBe(54_321);
    });

    const paused = new Authority(grant, 300);
    const gate = new Gate();
    const { outcome: write } = await owner.begin(paused, async (manager) => {
      await put(manager, grant.key);
      await gate.wait();
      await put(manager, grant.key);
    });
    await successor.activate(successorOf(grant), 60_000);
    gate.open();
    await expect(write).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE', cause: { code: '25P03' } });
    expect([await stored(grant.key), owner.checkedOut]).toEqual([0, 0]);
  });

  it('that was cut says so also where the body sends nothing more', async () => {
    const { grant, authority } = await lease(100);
    const write = owner.write(authority, async (manager) => {
      await put(manager, grant.key);
      await successor.activate(successorOf(grant), 60_000);
    });
    await expect(write).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE', cause: { code: '25P03' } });
    expect(await stored(grant.key)).toBe(0);
  });

  it('is not cut while its lease is renewed, however long the body is idle', async () => {
    const { grant, authority } = await lease(3_000);
    await owner.write(authority, async (manager) => {
      for (let i = 0; i < 10; i++) {
        await sleep(450);
        authority.renew();
      }
      await put(manager, grant.key);
    });
    expect(await stored(grant.key)).toBe(1);
  });

  it('is given its new limit after a statement that ran during the renewal', async () => {
    const { authority } = await lease(10_000);
    await owner.write(authority, async (manager) => {
      const running = manager.query('SELECT pg_sleep(0.2)');
      authority.renew(77_000);
      await running;
      expect(await idleLimit(manager)).toBe(77_000);
    });
  });

  it.each([
    ['idle in its transaction', 'idle'],
    ['with a statement under way', 'busy'],
  ])('of a process that is stopped %s ends in time for the successor', async (_, mode) => {
    const worker = forkWorker(new URL('./fence-lease-end.worker.ts', import.meta.url), [mode]);
    try {
      const key = await worker.waitFor<string>('inside');
      worker.pause();
      const started = performance.now();
      await successor.activate(newGrant(2, key), 60_000);
      // 1.5 s on a machine with nothing else to do: what the lease had left.
      expect(performance.now() - started).toBeLessThan(30_000);
      worker.resume();
      expect(await worker.waitFor('refused')).toMatchObject({ code: 'STORE_UNAVAILABLE' });
      await worker.exited;
      expect(await stored(key)).toBe(0);
    } finally {
      await worker.kill();
    }
  });
});
