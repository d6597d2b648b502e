import { readFileSync } from 'node:fs';
import { afterEach, describe, expect, it } from '@jest/globals';
import type { Lease } from 'nestjs-fencing';
import { postgresLeases } from 'nestjs-fencing/typeorm';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { eventually, Gate } from './support/gate.js';
import { PostgresPair } from './support/postgres-pair.js';

/** Long enough for no renewal to tell a holder of a failover before the test looks at its writes. */
const LONG_MS = 300_000;
const REFUSED = { code: 'STALE_GENERATION' };

/** What docs/operations.md tells operators to run, taken from there. */
function recoveryFromDocs(): string {
  const page = readFileSync(new URL('../docs/operations.md', import.meta.url), 'utf8');
  return /## After a failover of PostgreSQL[^]*?```sql\n([^]*?)```/.exec(page)![1]!;
}

describe('field report 1, in PostgreSQL: a standby is promoted under leases and fence', () => {
  const opened: { close?(): Promise<unknown>; stop?(): Promise<unknown> }[] = [];
  afterEach(async () => {
    for (const one of opened.splice(0).reverse()) await (one.close ?? one.stop)!.call(one);
  });
  const pairOf = async (mode: 'sync' | 'async'): Promise<PostgresPair> => {
    const pair = await PostgresPair.start(mode);
    opened.push(pair);
    return pair;
  };
  const start = async (pair: PostgresPair): Promise<FencedApp> => {
    const app = await startFencedApp({
      leases: postgresLeases({ ensureSchema: true }),
      databaseUrl: pair.address.url,
      fencing: { storeTimeoutMs: 1_000 },
    });
    opened.push(app);
    return app;
  };
  const write = (app: FencedApp, { key, generation }: Lease, text: string) =>
    app.fencing.write({}, () =>
      app.dataSource.query('INSERT INTO written (key, generation, text) VALUES ($1, $2, $3)', [
        key,
        generation,
        text,
      ]),
    );
  const createTable = (app: FencedApp) =>
    app.dataSource.query(
      'CREATE TABLE written (n bigserial PRIMARY KEY, key text, generation bigint, text text)',
    );
  const written = async (pair: PostgresPair, key: string) => {
    const rows = await pair.onStandby<{ text: string; generation: string }>(
      `SELECT text, generation FROM written WHERE key = '${key}' ORDER BY n`,
    );
    return rows.map(({ text, generation }) => ({ text, generation: Number(generation) }));
  };
  const fenceOnStandby = async (pair: PostgresPair, key: string) => {
    const [row] = await pair.onStandby<{ generation: string; owner: string }>(
      `SELECT generation, owner FROM fencing_fence WHERE key = '${key}'`,
    );
    return row && { generation: Number(row.generation), owner: row.owner };
  };
  /** A call that holds its key until the gate opens, and then writes. */
  const hold = async (app: FencedApp, text: string) => {
    const [inside, gate] = [new Gate(), new Gate()];
    let grant!: { generation: number; owner: string };
    const call = app.fencing.run('key', { ttlMs: LONG_MS, waitMs: 30_000 }, async (lease) => {
      grant = { generation: lease.generation, owner: lease.owner };
      await write(app, lease, `${text}, before`);
      inside.open();
      await gate.wait();
      await write(app, lease, `${text}, after`);
    });
    call.catch(() => undefined);
    await Promise.race([inside.wait(), call]);
    return { call, grant, writes: () => (gate.open(), call) };
  };

  it('synchronous: nothing is lost: no generation comes back, no holder is refused, the one from before is', async () => {
    const pair = await pairOf('sync');
    const apps = [await start(pair), await start(pair)];
    await createTable(apps[0]!);
    // The counter, which is not replicated, runs ahead of every clock: only the fence can put that right.
    await apps[0]!.fencing.run('report', {}, () => undefined);
    await pair.onPrimary('UPDATE fencing_lease_counter SET last = last + 3600000000');
    const old = await hold(apps[0]!, 'old');
    const accepted: number[] = [];
    const codes = new Set<string>();
    let stale = 0;
    const loops = apps.map(async (app) => {
      while (accepted.length < 400) {
        await app.fencing
          .run('report', { waitMs: 5_000, ttlMs: 5_000 }, async (lease) => {
            await write(app, lease, 'loop');
            accepted.push(lease.generation);
          })
          .catch(({ code }: { code: string }) => {
            codes.add(code);
            if (code === 'STALE_GENERATION') stale += 1;
          });
      }
    });
    await eventually(() => accepted.length >= 150, { timeoutMs: 60_000 });
    await pair.killPrimary();
    const beforePromotion = accepted.length;
    await pair.promote();
    expect(await fenceOnStandby(pair, 'key')).toEqual(old.grant);
    const kept = new Set((await written(pair, 'report')).map(({ generation }) => generation));
    expect(accepted.slice(0, beforePromotion).filter((generation) => !kept.has(generation))).toEqual([]);
    pair.letIn();
    await Promise.all(loops);

    expect(stale).toBe(0);
    // A call that was under way; what was sent while nobody answered; a commit whose answer was lost.
    for (const code of codes)
      expect(code).toMatch(/^(LEASE_LOST|LEASE_BUSY|STORE_UNAVAILABLE|COMMIT_UNKNOWN)$/);
    const generations = (await written(pair, 'report')).map(({ generation }) => generation);
    expect(generations).toEqual([...new Set(generations)].sort((a, b) => a - b));
    expect(generations).toEqual(expect.arrayContaining(accepted));

    const next = await hold(apps[1]!, 'next');
    expect(next.grant.generation).toBeGreaterThan(old.grant.generation);
    await expect(old.writes()).rejects.toMatchObject(REFUSED);
    await next.writes();
    expect((await written(pair, 'key')).map(({ text }) => text)).toEqual([
      'old, before',
      'next, before',
      'next, after',
    ]);
  }, 180_000);

  describe('asynchronous: the promoted standby has missed an activation, and the write under it', () => {
    /** A former owner, and the newest one, whose activation and write the standby has never heard of. */
    const missed = async () => {
      const pair = await pairOf('async');
      const [first, second, third] = [await start(pair), await start(pair), await start(pair)];
      await createTable(first);
      const former = await hold(first, 'former');
      await pair.caughtUp();
      await pair.cutReplication();
      // As a crash does; the former owner will be told at its next renewal, long after this test.
      await pair.onPrimary('TRUNCATE fencing_lease');
      const newest = await hold(second, 'newest');
      expect(newest.grant.generation).toBeGreaterThan(former.grant.generation);
      await pair.killPrimary();
      await pair.promote();
      expect(await fenceOnStandby(pair, 'key')).toEqual(former.grant);
      return { pair, other: third, former, newest };
    };

    it('as documented: the former owner may write once more, the newest is refused; after the next activation neither writes', async () => {
      const { pair, other, former, newest } = await missed();
      pair.letIn();
      await former.writes();
      await expect(newest.writes()).rejects.toMatchObject(REFUSED);
      const third = await hold(other, 'third');
      expect(third.grant.generation).toBeGreaterThan(former.grant.generation);
      await third.writes();
      expect((await written(pair, 'key')).map(({ text }) => text)).toEqual([
        'former, before',
        'former, after',
        'third, before',
        'third, after',
      ]);
    }, 120_000);

    it('the next activation comes first: the former owner is refused as well', async () => {
      const { pair, other, former, newest } = await missed();
      pair.letIn();
      const third = await hold(other, 'third');
      await expect(former.writes()).rejects.toMatchObject(REFUSED);
      await expect(newest.writes()).rejects.toMatchObject(REFUSED);
      await third.writes();
    }, 120_000);

    it('revoke() of the key: the former owner is refused, and who takes the key next writes', async () => {
      const { pair, other, former, newest } = await missed();
      pair.letIn();
      await eventually(() =>
        other.fencing.revoke('key', { by: 'ops', reason: 'failover' }).catch(() => undefined),
      );
      await expect(former.writes()).rejects.toMatchObject(REFUSED);
      await expect(newest.writes()).rejects.toMatchObject(REFUSED);
      await (await hold(other, 'third')).writes();
      expect((await written(pair, 'key')).map(({ text }) => text)).toEqual([
        'former, before',
        'third, before',
        'third, after',
      ]);
    }, 120_000);

    it('the statement of operations.md, before anybody is let in: no grant from before the failover writes any more', async () => {
      const { pair, other, former, newest } = await missed();
      await pair.onStandby(recoveryFromDocs());
      pair.letIn();
      await expect(former.writes()).rejects.toMatchObject(REFUSED);
      await expect(newest.writes()).rejects.toMatchObject(REFUSED);
      const third = await hold(other, 'third');
      expect(third.grant.generation).toBeGreaterThan(newest.grant.generation);
      await third.writes();
      expect((await written(pair, 'key')).map(({ text }) => text)).toEqual([
        'former, before',
        'third, before',
        'third, after',
      ]);
    }, 120_000);
  });
});
