import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import type { EntityManager } from 'typeorm';
import { eventually } from './support/gate.js';
import { isAcquire, isRelease } from './support/fault-bench.js';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { TcpProxy } from './support/proxy.js';

describe('what a call costs on the wire', () => {
  let redis: TcpProxy;
  let postgres: TcpProxy;
  let app: FencedApp;
  let key: string;

  beforeAll(async () => {
    redis = await TcpProxy.start(process.env.REDIS_URL!);
    postgres = await TcpProxy.start(process.env.DATABASE_URL!);
    app = await startFencedApp({ redisUrl: redis.url, databaseUrl: postgres.url, poolSize: 1 });
    await app.dataSource.query('CREATE TABLE IF NOT EXISTS cost (id text)');
  });
  afterAll(async () => {
    await app.dataSource.query('DROP TABLE cost');
    await app.close();
    await redis.stop();
    await postgres.stop();
  });
  beforeEach(() => {
    key = `report:${randomUUID()}`;
    redis.forget();
    postgres.forget();
  });

  const insert = (manager: EntityManager) => manager.query('INSERT INTO cost VALUES ($1)', ['a']);

  it('a leased call that nobody contends: one Redis request before the body, one after, none in between', async () => {
    await app.fencing.run(key, {}, () => {
      expect(redis.requests.map(({ text }) => isAcquire(text))).toEqual([true]);
    });
    await eventually(() => redis.requests.length >= 2);
    expect(redis.requests.map(({ text }) => [isAcquire(text), isRelease(text)])).toEqual([
      [true, false],
      [false, true],
    ]);
    // The next one as well: nothing follows later.
    await app.fencing.run(key, {}, () => undefined);
    await eventually(() => redis.requests.length >= 4);
    expect(redis.count()).toBe(4);
  });

  it('its caller does not wait for the release to be answered', async () => {
    const result = await app.fencing.run(key, {}, () => {
      redis.stall('replies');
      return 'result';
    });
    expect(result).toBe('result');
    await eventually(() => redis.requests.some(({ text }) => isRelease(text)));
    redis.resume();
  });

  it('a leased call in a fenced application: one statement of PostgreSQL before the body', async () => {
    await app.fencing.run(key, {}, () => {
      expect(new Set(postgres.requests.map(({ text }) => text.includes('fencing_activate')))).toEqual(
        new Set([true]),
      );
    });
    const statements = postgres.count('Q') + postgres.count('E');
    expect(statements).toBe(1);
  });

  it('a fenced write: one statement more than the plain transaction, in the same message as its BEGIN', async () => {
    await app.dataSource.transaction(insert);
    const plain = postgres.requests.map(({ type, text }) => ({ type, text }));
    const fenced = await app.fencing.run(key, {}, async () => {
      postgres.forget();
      await app.fencing.write({}, insert);
      return postgres.requests.map(({ type, text }) => ({ type, text }));
    });
    expect(fenced!.map(({ type }) => type)).toEqual(plain.map(({ type }) => type));
    const [begin, ...rest] = fenced!;
    const [plainBegin, ...plainRest] = plain;
    expect(plainBegin).toEqual({ type: 'Q', text: 'START TRANSACTION' });
    expect(begin!.text.split('; ')).toEqual([
      'START TRANSACTION',
      expect.stringMatching(/^CALL fencing_guard\(/),
    ]);
    expect(rest).toEqual(plainRest);
  });

  it('a fenced write under two leases: one message all the same', async () => {
    await app.dataSource.transaction(insert);
    const plain = postgres.count();
    await app.fencing.run([`${key} a`, `${key} b`], {}, async () => {
      postgres.forget();
      await app.fencing.write({}, insert);
      expect(postgres.count()).toBe(plain);
    });
  });

  it('joining a lease costs nothing', async () => {
    await app.fencing.run(key, {}, async () => {
      redis.forget();
      postgres.forget();
      await app.fencing.run(key, {}, () => undefined);
      expect([redis.count(), postgres.count()]).toEqual([0, 0]);
    });
  });
});
