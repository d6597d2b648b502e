import { randomUUID } from 'node:crypto';
import { type Grant, StoreUnavailableError } from 'nestjs-fencing';
import { BareFence, holdFence, newGrant, successorOf, waitsForLock } from './support/bare-fence.js';
import { Gate } from './support/gate.js';
import { freshDatabase, PostgresServer } from './support/postgres-server.js';

describe('activation', () => {
  let first: BareFence;
  let second: BareFence;
  let observer: BareFence;

  beforeAll(async () => {
    observer = await BareFence.open({ name: 'activation-observer' });
    first = await BareFence.open({ name: 'activation-first' });
    second = await BareFence.open({ name: 'activation-second' });
    await observer.dataSource.query('CREATE TABLE IF NOT EXISTS activation_written (key text)');
  });
  afterAll(async () => {
    await Promise.all([first, second, observer].map((each) => each.close()));
  });

  const activate = (by: BareFence, grant: Grant, waitMs = 10_000) => by.fence.activate({ ...grant, waitMs });

  it('raises the fence to the grant', async () => {
    const grant = newGrant(7);
    expect(await activate(first, grant)).toEqual({ activated: true });
    expect(await first.fence.inspect(grant.key)).toMatchObject({ generation: 7, owner: grant.owner });
    const next = successorOf(grant);
    expect(await activate(second, next)).toEqual({ activated: true });
    expect(await first.fence.inspect(grant.key)).toMatchObject({ generation: 8, owner: next.owner });
  });

  it('I6: of the same grant again is content and changes nothing', async () => {
    const grant = newGrant();
    await activate(first, grant);
    const before = await first.fence.inspect(grant.key);
    expect(await activate(second, grant)).toEqual({ activated: true });
    expect(await first.fence.inspect(grant.key)).toEqual(before);
  });

  it('of the same grant again does not wait for writes under it', async () => {
    const grant = newGrant();
    await activate(first, grant);
    await first.write(grant, async () => {
      expect(await activate(second, grant, 1)).toEqual({ activated: true });
    });
  });

  it('refuses a lower generation, and answers the one of the fence', async () => {
    const newer = newGrant(9);
    await activate(first, newer);
    const older = newGrant(8, newer.key);
    expect(await activate(second, older)).toEqual({ activated: false, generation: 9 });
    expect(await first.fence.inspect(newer.key)).toMatchObject({ generation: 9, owner: newer.owner });
  });

  it('refuses the same generation of another owner', async () => {
    const grant = newGrant(5);
    await activate(first, grant);
    expect(await activate(second, newGrant(5, grant.key))).toEqual({ activated: false, generation: 5 });
    expect(await first.fence.inspect(grant.key)).toMatchObject({ owner: grant.owner });
  });

  it('keeps the largest generation exactly', async () => {
    const grant = newGrant(Number.MAX_SAFE_INTEGER);
    await activate(first, grant);
    expect(await activate(second, newGrant(1, grant.key))).toEqual({
      activated: false,
      generation: Number.MAX_SAFE_INTEGER,
    });
  });

  it('answers the fence as it is after the wait, not as it was before', async () => {
    const grant = newGrant(10);
    await activate(first, grant);
    const third = await holdFence(first, newGrant(50, grant.key));
    const answer = activate(second, newGrant(20, grant.key));
    await waitsForLock(observer.dataSource, 'activation-second');
    await third.commit();
    expect(await answer).toEqual({ activated: false, generation: 50 });
  });

  it('waits for guarded transactions of the previous owner', async () => {
    const grant = newGrant();
    await activate(first, grant);
    const gate = new Gate();
    const { outcome } = await first.begin(grant, async (manager) => {
      await gate.wait();
      await manager.query('INSERT INTO activation_written VALUES ($1)', [grant.key]);
    });
    let activated = false;
    const activation = activate(second, successorOf(grant)).then(() => (activated = true));
    await waitsForLock(observer.dataSource, 'activation-second');
    expect(activated).toBe(false);
    gate.open();
    await activation;
    const written = 'SELECT 1 FROM activation_written WHERE key = $1';
    expect(await observer.dataSource.query(written, [grant.key])).toHaveLength(1);
    await outcome;
  });

  it('that is refused does not wait for the writes of the newer owner', async () => {
    const newer = newGrant(9);
    await activate(first, newer);
    await first.write(newer, async () => {
      expect(await activate(second, newGrant(8, newer.key), 1)).toEqual({ activated: false, generation: 9 });
    });
  });

  it('of another key waits for nobody', async () => {
    const grant = newGrant();
    await activate(first, grant);
    await first.write(grant, async () => {
      expect(await activate(second, newGrant(), 1)).toEqual({ activated: true });
    });
  });

  it('is unavailable when the wait is over, and names the transaction that was in the way', async () => {
    const other = newGrant();
    const grant = newGrant();
    await activate(observer, other);
    await activate(first, grant);
    // An older transaction, of another key, is not to blame.
    await observer.write(other, () =>
      first.write(grant, async (manager) => {
        const [{ pid }] = await manager.query('SELECT pg_backend_pid() AS pid');
        const started = performance.now();
        const refusal = await activate(second, successorOf(grant), 50).catch((error: unknown) => error);
        expect(performance.now() - started).toBeLessThan(15_000);
        expect(refusal).toBeInstanceOf(StoreUnavailableError);
        expect(refusal).toMatchObject({ key: grant.key, store: 'database', cause: { code: '55P03' } });
        expect((refusal as Error).message).toContain(`backend ${pid} (activation-first, idle in transaction`);
        expect((refusal as Error).message).not.toContain(grant.key);
      }),
    );
    expect(await activate(second, successorOf(grant))).toEqual({ activated: true });
  });

  it('leaves one winner of many at once, and tells the others the truth', async () => {
    const key = `key-${randomUUID()}`;
    const grants = Array.from({ length: 20 }, (_, i) => newGrant(i + 1, key));
    const answers = await Promise.all(
      grants.map((grant, i) => activate([first, second, observer][i % 3]!, grant)),
    );
    answers.forEach((answer, i) => {
      if (!answer.activated) expect(answer.generation).toBeGreaterThan(i + 1);
    });
    expect(answers.at(-1)).toEqual({ activated: true });
    expect(await first.fence.inspect(key)).toMatchObject({ generation: 20, owner: grants.at(-1)!.owner });
  });

  it('leaves no setting behind on its connection', async () => {
    const settings = `SELECT name, setting FROM pg_settings WHERE name IN ('lock_timeout', 'synchronous_commit') ORDER BY name`;
    for (const activationDurability of ['durable', 'relaxed'] as const) {
      const single = await BareFence.open({ poolSize: 1, fence: { activationDurability } });
      const before = await single.dataSource.query(settings);
      await activate(single, newGrant());
      expect(await single.dataSource.query(settings)).toEqual(before);
      await single.close();
    }
  });
});

describe.each([
  ['database', 'repeatable read'],
  ['database', 'serializable'],
  ['role', 'repeatable read'],
  ['role', 'serializable'],
])('where the %s makes every transaction %s, an activation', (level, isolation) => {
  let database: Awaited<ReturnType<typeof freshDatabase>>;
  let role: string;
  let fences: BareFence[];

  beforeAll(async () => {
    database = await freshDatabase();
    const admin = await BareFence.open({ url: database.url });
    role = `role_${randomUUID().replaceAll('-', '')}`;
    const url = new URL(database.url);
    if (level === 'database') {
      await admin.dataSource.query(
        `ALTER DATABASE ${database.name} SET default_transaction_isolation = '${isolation}'`,
      );
    } else {
      await admin.dataSource.query(`CREATE ROLE ${role} LOGIN SUPERUSER PASSWORD 'secret'`);
      await admin.dataSource.query(`ALTER ROLE ${role} SET default_transaction_isolation = '${isolation}'`);
      url.username = role;
      url.password = 'secret';
    }
    fences = await Promise.all(
      ['iso-a', 'iso-b', 'iso-c'].map((name) => BareFence.open({ url: url.href, name, poolSize: 10 })),
    );
    await admin.close();
  });
  afterAll(async () => {
    await Promise.all(fences.map((fence) => fence.close()));
    await database.drop();
    const admin = await BareFence.open({ check: false });
    await admin.dataSource.query(`DROP ROLE IF EXISTS ${role}`);
    await admin.close();
  });

  it('that had to wait answers the fence as it is afterwards', async () => {
    const [one, two, three] = fences as [BareFence, BareFence, BareFence];
    expect(await one.dataSource.query('SHOW transaction_isolation')).toEqual([
      { transaction_isolation: isolation },
    ]);
    const grant = newGrant(10);
    await one.activate(grant);
    const third = await holdFence(one, newGrant(50, grant.key));
    const lower = two.fence.activate({ ...newGrant(20, grant.key), waitMs: 10_000 });
    await waitsForLock(one.dataSource, 'iso-b');
    const higher = three.fence.activate({ ...newGrant(60, grant.key), waitMs: 10_000 });
    await waitsForLock(one.dataSource, 'iso-c');
    await third.commit();
    expect(await higher).toEqual({ activated: true });
    const answer = await lower;
    expect([50, 60]).toContain('generation' in answer && answer.generation);
  });

  it('leaves one winner of many at once', async () => {
    const key = `key-${randomUUID()}`;
    const grants = Array.from({ length: 20 }, (_, i) => newGrant(i + 1, key));
    await Promise.all(grants.map((grant, i) => fences[i % 3]!.fence.activate({ ...grant, waitMs: 10_000 })));
    expect(await fences[0]!.fence.inspect(key)).toMatchObject({
      generation: 20,
      owner: grants.at(-1)!.owner,
    });
  });
});

describe('an activation on a server with synchronous_commit off', () => {
  let server: PostgresServer;

  beforeAll(async () => {
    // Nothing but a commit that asks for it brings the log to the disk soon.
    server = await PostgresServer.start({ synchronous_commit: 'off', wal_writer_delay: '10s' });
  });
  afterAll(() => server.stop());

  async function survivesCrash(activationDurability: 'durable' | 'relaxed'): Promise<boolean> {
    const before = await BareFence.open({ url: server.url, fence: { activationDurability } });
    const grant = newGrant();
    await before.activate(grant);
    await server.shutDown('immediate');
    await before.close();
    await server.restart();
    const after = await BareFence.open({ url: server.url });
    const fence = await after.fence.inspect(grant.key);
    await after.close();
    return fence?.owner === grant.owner;
  }

  it('survives a crash of the server', async () => {
    expect(await survivesCrash('durable')).toBe(true);
  });

  it("does not wait for the disk where it is 'relaxed'", async () => {
    // The server may bring it to the disk for reasons of its own, but not each time.
    const survived: boolean[] = [];
    while (survived.length < 5 && survived.at(-1) !== false) survived.push(await survivesCrash('relaxed'));
    expect(survived.at(-1)).toBe(false);
  });
});
