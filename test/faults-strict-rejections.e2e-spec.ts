import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { eventually } from './support/gate.js';
import { FaultBench, type FencedWorker, isRenew, type Run } from './support/fault-bench.js';
import { TcpProxy } from './support/proxy.js';
import { RedisServer } from './support/redis-server.js';

const TTL_MS = 3_000;

describe('field report 22: faults during a leased call, in a process with --unhandled-rejections=strict', () => {
  let bench: FaultBench;
  let redis: RedisServer;
  let proxy: TcpProxy;
  let worker: FencedWorker;
  let key: string;

  beforeAll(async () => {
    [bench, redis] = await Promise.all([FaultBench.start(), RedisServer.start()]);
    proxy = await TcpProxy.start(redis.url);
    worker = await bench.worker({
      redisUrl: proxy.url,
      // What is under way when the connection breaks fails, instead of being sent again.
      client: { maxRetriesPerRequest: 0 },
      storeTimeoutMs: 1_000,
      nodeOptions: '--unhandled-rejections=strict',
    });
  });
  afterAll(async () => {
    await bench.close();
    await proxy.stop();
    await redis.stop();
  });
  beforeEach(() => {
    key = `report:${randomUUID()}`;
    proxy.forget();
  });

  const deleteLease = async () => {
    for (const name of (await redis.command('KEYS', `*:lease:${key}`)) as string[])
      await redis.command('DEL', name);
  };
  const renewals = () => proxy.requests.filter(({ text }) => isRenew(text)).length;
  /** Two renewals of any lease of the process have been sent since. */
  const twoRenewals = async () => {
    const before = renewals();
    await eventually(() => renewals() >= before + 2, { timeoutMs: 20_000 });
  };
  const bystander = async (): Promise<Run> => {
    const run = worker.run(`bystander ${randomUUID()}`, [{ do: 'gate', name: 'end' }], { ttlMs: TTL_MS });
    await run.began();
    await run.at('end');
    return run;
  };
  const endsWell = async (run: Run) => {
    run.open('end');
    expect(await run.ended()).toMatchObject({ ok: true, state: 'released' });
  };

  it('a cut connection: both leases are kept', async () => {
    const runs = [await bystander(), await bystander()];
    proxy.cutAll();
    await twoRenewals();
    for (const run of runs) await endsWell(run);
  });

  it('SCRIPT FLUSH: both leases are kept', async () => {
    const runs = [await bystander(), await bystander()];
    await redis.command('SCRIPT', 'FLUSH');
    await twoRenewals();
    for (const run of runs) await endsWell(run);
  });

  it('a deleted key: that call ends as lost, once; the other lease is renewed on', async () => {
    const other = await bystander();
    const run = worker.run(key, [{ do: 'wait for the abort' }], { ttlMs: TTL_MS });
    await run.began();
    await deleteLease();
    expect(await run.ended()).toMatchObject({ error: { code: 'LEASE_LOST', reason: 'superseded' } });
    await twoRenewals();
    await endsWell(other);
  });

  it('a listener of the application that throws: contained and logged, nobody else is hurt', async () => {
    const other = await bystander();
    const run = worker.run(key, [{ do: 'throwing listener' }, { do: 'wait for the abort' }], {
      ttlMs: TTL_MS,
    });
    await run.began();
    await deleteLease();
    expect(await run.ended()).toMatchObject({ error: { code: 'LEASE_LOST' } });
    await twoRenewals();
    await endsWell(other);
    await eventually(() =>
      /listener on the signal of lease #\w+ threw/.test(worker.process.stdout + worker.process.stderr),
    );
  });

  it('a method that ignores the abort: its call is lost all the same, and keeps its result', async () => {
    const run = worker.run(
      key,
      [
        { do: 'gate', name: 'end' },
        { do: 'return', value: 'done' },
      ],
      { ttlMs: TTL_MS },
    );
    await run.began();
    await run.at('end');
    await deleteLease();
    await run.aborted();
    run.open('end');
    expect(await run.ended()).toMatchObject({ ok: false, error: { code: 'LEASE_LOST', result: 'done' } });
  });

  it('a network that is silent for longer than the ttl: lost; the next call works', async () => {
    const run = worker.run(key, [{ do: 'wait for the abort' }], { ttlMs: 1_000 });
    await run.began();
    proxy.stall();
    expect(await run.ended()).toMatchObject({ error: { code: 'LEASE_LOST', reason: 'expired' } });
    const unavailable = worker.run(`${key} 2`, [], { waitMs: 500 });
    expect(await unavailable.ended()).toMatchObject({ error: { code: 'STORE_UNAVAILABLE' } });
    proxy.resume();
    expect(await worker.run(key, [{ do: 'write', text: 'A' }], { waitMs: 30_000 }).ended()).toMatchObject({
      ok: true,
    });
  });

  it('a Redis that is stopped: lost; once it is back the next call works', async () => {
    const run = worker.run(key, [{ do: 'wait for the abort' }], { ttlMs: 1_000 });
    await run.began();
    await redis.kill();
    expect(await run.ended()).toMatchObject({ error: { code: 'LEASE_LOST', reason: 'expired' } });
    const unavailable = worker.run(key, [], { waitMs: 500 });
    expect(await unavailable.ended()).toMatchObject({ error: { code: 'STORE_UNAVAILABLE' } });
    await redis.restart({ empty: true });
    expect(await worker.run(key, [{ do: 'write', text: 'A' }], { waitMs: 30_000 }).ended()).toMatchObject({
      ok: true,
    });
  });

  it('the process has seen no unhandled rejection and no uncaught exception, and ends with code 0', async () => {
    expect(await worker.end()).toBe(0);
    expect(worker.process.stderr).not.toMatch(/unhandledRejection|uncaughtException/);
  });
});
