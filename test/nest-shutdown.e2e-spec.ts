import { afterAll, afterEach, beforeAll, describe, expect, it, jest } from '@jest/globals';
import { Logger } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { FencingModule, FencingService, StoreUnavailableError } from 'nestjs-fencing';
import { redisLeases } from 'nestjs-fencing/redis';
import { typeOrmFence } from 'nestjs-fencing/typeorm';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { eventually, Gate } from './support/gate.js';
import { RedisServer } from './support/redis-server.js';
import { forkWorker, type WorkerProcess } from './support/workers.js';

const TTL_MS = 2_000;

describe('a process that is told to stop while a leased method runs', () => {
  let app: FencedApp;
  let worker: WorkerProcess | undefined;
  let key = '';
  let runs = 0;

  beforeAll(async () => {
    app = await startFencedApp();
  });
  afterAll(() => app.close());
  afterEach(async () => {
    await worker?.kill();
  });

  async function start({ drainMs = 30_000, ttlMs = TTL_MS, env = {} } = {}) {
    key = `shutdown-${runs++}`;
    const settings = JSON.stringify({ key, ttlMs, drainMs });
    worker = forkWorker(new URL('./nest-shutdown.worker.ts', import.meta.url), [settings], env);
    return worker.waitFor<{ owner: string; generation: number }>('began');
  }
  const signal = (name: NodeJS.Signals) => process.kill(worker!.pid, name);
  const holder = async () => (await app.fencing.inspect(key)).lease?.owner;
  /** Another process that keeps trying the key. */
  const successor = () => app.fencing.run(key, { waitMs: 60_000 }, (lease) => lease.generation);

  it.each([
    ['SIGTERM', 1],
    ['two SIGTERMs', 2],
  ])(
    '(%s) keeps its lease until the method ends, accepts its write, releases before it closes, and exits with 0',
    async (_, signals) => {
      const { owner, generation } = await start();
      const next = successor();
      signal('SIGTERM');
      const since = performance.now();
      await eventually(async () => {
        expect(await holder()).toBe(owner);
        if (signals === 2 && performance.now() - since > TTL_MS / 2) signal('SIGTERM');
        return performance.now() - since > 1.5 * TTL_MS; // only renewals can have kept it
      });
      worker!.send('finish');
      expect(await worker!.waitFor('returned')).toBe('written');
      expect(await worker!.exited).toEqual({ code: 0, signal: null });
      expect(await holder()).not.toBe(owner);
      expect(await next).toBeGreaterThan(generation);
      expect(worker!.stderr).not.toMatch(/error|warning/i);
    },
  );

  it('past its drain limit aborts the method, releases at once, and refuses its late write', async () => {
    const { owner, generation } = await start({ drainMs: 300, ttlMs: 60_000 });
    const next = successor();
    signal('SIGTERM');
    expect(await worker!.waitFor('aborted')).toEqual({ code: 'LEASE_LOST', reason: 'drained' });
    expect(await worker!.waitFor('late write')).toBe('LEASE_LOST');
    // The ttl would have kept the key for a minute.
    expect(await next).toBeGreaterThan(generation);
    expect(await holder()).not.toBe(owner);
    worker!.send('finish');
    expect(await worker!.waitFor('returned')).toBe('LEASE_LOST');
    expect(await worker!.exited).toEqual({ code: 0, signal: null });
  });

  it('killed with SIGKILL, leaves its key to its ttl and no longer', async () => {
    const { owner, generation } = await start();
    await worker!.kill();
    const lease = (await app.fencing.inspect(key)).lease;
    expect(lease?.owner).toBe(owner);
    expect(lease!.remainingMs).toBeLessThanOrEqual(TTL_MS);
    expect(await successor()).toBeGreaterThan(generation);
  });

  it('while its Redis is down, ends within its drain limit', async () => {
    const redis = await RedisServer.start();
    await start({ drainMs: 1_000, ttlMs: 60_000, env: { REDIS_URL: redis.url } });
    await redis.kill();
    signal('SIGTERM');
    expect(await worker!.waitFor('aborted')).toEqual({ code: 'LEASE_LOST', reason: 'drained' });
    worker!.send('finish');
    expect(await worker!.waitFor('returned')).toBe('LEASE_LOST');
    expect(await worker!.exited).toEqual({ code: 0, signal: null });
    await redis.stop();
  });
});

describe('app.close() while leased methods run', () => {
  const start = () => startFencedApp({ fencing: { drainMs: 30_000 } });

  it('waits for them; meanwhile nobody new gets a lease, except what they need to end', async () => {
    const app = await start();
    const { fencing } = app;
    const [entered, leave] = [new Gate(), new Gate()];
    const running = fencing.run('draining', {}, async () => {
      entered.open();
      await leave.wait();
      const inner = await fencing.run('needed', {}, () => 'needed');
      return fencing.write({}, () => `${inner} and written`);
    });
    await entered.wait();
    const waiting = fencing.run('draining', { waitMs: 60_000 }, () => 'never');
    waiting.catch(() => undefined);
    let isClosed = false;
    const closing = app.close().then(() => (isClosed = true));
    await expect(waiting).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE', retryable: false });
    await expect(fencing.run('new', {}, () => 'never')).rejects.toThrow(
      /shutting down and takes no new leases/,
    );
    await expect(fencing.acquire('new')).rejects.toThrow(StoreUnavailableError);
    expect(isClosed).toBe(false);
    leave.open();
    await expect(running).resolves.toBe('needed and written');
    await closing;
  });

  it('cuts them off at the drain limit: the call rejects with what it had done, and its key is free', async () => {
    const app = await startFencedApp({ fencing: { drainMs: 0 } });
    const other = await start();
    const [entered, leave] = [new Gate(), new Gate()];
    const running = app.fencing.run('cut', {}, async (lease) => {
      await app.fencing.write({}, () => undefined);
      entered.open();
      await leave.wait();
      return lease.state;
    });
    running.catch(() => undefined);
    await entered.wait();
    await app.close();
    expect(await other.fencing.run('cut', { waitMs: 0 }, () => 'free')).toBe('free');
    leave.open();
    await expect(running).rejects.toMatchObject({
      code: 'LEASE_LOST',
      reason: 'drained',
      acceptedWrites: 1,
      result: 'lost',
    });
    await other.close();
  });

  it('says in one line how many were cut, and nothing where none was', async () => {
    const said: string[] = [];
    const warn = jest.spyOn(Logger.prototype, 'warn').mockImplementation((line: unknown) => {
      said.push(String(line));
    });
    try {
      const app = await startFencedApp({ fencing: { drainMs: 0 } });
      const leave = new Gate();
      const calls = ['a', 'b', 'c'].map(async (key) => {
        const entered = new Gate();
        const call = app.fencing.run(`cut-${key}`, {}, async () => {
          entered.open();
          await leave.wait();
        });
        call.catch(() => undefined);
        await entered.wait();
        return { call };
      });
      const cut = await Promise.all(calls);
      await app.close();
      leave.open();
      for (const { call } of cut) await expect(call).rejects.toMatchObject({ reason: 'drained' });
      expect(said).toEqual(['3 leased methods were still running after drainMs; aborted, and released.']);
      said.length = 0;
      const quiet = await start();
      await quiet.fencing.run('done', {}, () => undefined);
      await quiet.close();
      expect(said).toEqual([]);
    } finally {
      warn.mockRestore();
    }
  });

  it('may be called twice, and at once where nothing runs', async () => {
    const app = await start();
    await app.app.close();
    await app.close();
  });
});

describe('a connection that redisLeases({ url }) opened is closed with an application that', () => {
  const compile = (fencing: object = {}) =>
    Test.createTestingModule({
      imports: [FencingModule.forRoot({ leases: redisLeases({ url: process.env.REDIS_URL! }), ...fencing })],
    }).compile();

  // An open socket fails the file.
  it('was never started', async () => {
    const module = await compile();
    await module.close();
  });

  it('is closed while it starts', async () => {
    const module = await compile();
    await Promise.all([module.init(), module.close()]);
  });

  it('does not start', async () => {
    const module = await compile({ fence: typeOrmFence() });
    await expect(module.init()).rejects.toThrow('typeOrmFence found no DataSource');
  });
});

describe('ten applications, one after the other in one process', () => {
  it('leave no connection and no listener behind', async () => {
    const observer = await startFencedApp();
    const connections = async () => {
      // Of this file's database only: other files use the same server.
      const mine = ` db=${new URL(process.env.REDIS_URL!).pathname.slice(1)} `;
      const redis = String(await observer.redis.client('LIST'))
        .split('\n')
        .filter((line) => line.includes(mine)).length;
      const [{ count }] = await observer.dataSource.query(
        'SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database()',
      );
      return { redis, postgres: count as number };
    };
    const listeners = () => process.eventNames().map((name) => [name, process.listenerCount(name)]);
    await observer.fencing.run('warm', {}, () => observer.fencing.write({}, () => undefined));
    const before = { connections: await connections(), listeners: listeners() };
    for (let i = 0; i < 10; i++) {
      const leases = await redisLeases({ url: process.env.REDIS_URL! });
      const app = await startFencedApp({ leases });
      const fencing = app.get(FencingService);
      await fencing.run('again', {}, async () => {
        // Somebody waits, so that the connection for hints is opened as well.
        const waiting = observer.fencing.run('again', { waitMs: 300 }, () => undefined);
        await expect(waiting).rejects.toMatchObject({ code: 'LEASE_BUSY' });
        await fencing.write({}, () => undefined);
      });
      await observer.fencing.run('again', {}, async () => {
        await expect(fencing.run('again', { waitMs: 300 }, () => undefined)).rejects.toMatchObject({
          code: 'LEASE_BUSY',
        });
      });
      await app.close();
    }
    // The observer's own connection for hints has been opened meanwhile.
    await eventually(async () => {
      const now = await connections();
      return now.redis <= before.connections.redis + 1 && now.postgres <= before.connections.postgres;
    });
    expect(listeners()).toEqual(before.listeners);
    await observer.close();
  });
});
