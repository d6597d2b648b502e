import { readFileSync } from 'node:fs';
import { TerminusModule } from '@nestjs/terminus';
import { afterAll, afterEach, beforeAll, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import {
  FencingConfigError,
  type FencingHealth,
  FencingHealthIndicator,
  fencingHealthToken,
  FencingModule,
  memoryLeases,
} from 'nestjs-fencing';
import request from 'supertest';
import { HealthController } from './readme/health.js';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { eventually, Gate } from './support/gate.js';
import { PostgresServer } from './support/postgres-server.js';
import { TcpProxy } from './support/proxy.js';
import { RedisServer } from './support/redis-server.js';

const POOL_SIZE = 2;

describe('field report 40: the health of an application', () => {
  let redis: RedisServer;
  let postgres: PostgresServer;
  let redisProxy: TcpProxy;
  let postgresProxy: TcpProxy;
  let app: FencedApp;

  beforeAll(async () => {
    [redis, postgres] = await Promise.all([RedisServer.start(), PostgresServer.start()]);
    [redisProxy, postgresProxy] = await Promise.all([
      TcpProxy.start(redis.url),
      TcpProxy.start(postgres.url),
    ]);
    app = await startFencedApp({
      imports: [TerminusModule.forRoot({ logger: false })],
      controllers: [HealthController],
      redisUrl: redisProxy.url,
      databaseUrl: postgresProxy.url,
      poolSize: POOL_SIZE,
      http: true,
    });
  });
  afterAll(async () => {
    await app.close();
    await redisProxy.stop();
    await postgresProxy.stop();
    await redis.stop();
    await postgres.stop();
  });
  afterEach(async () => {
    redis.resume();
    redisProxy.resume();
    postgresProxy.resume();
    await isUp();
  });

  const ask = async () => {
    const { status, body } = await request(
      (app.app as never as { getHttpServer(): never }).getHttpServer(),
    ).get('/health');
    const answer = body as { status: string; details: { fencing: FencingHealth } };
    return { status, overall: answer.status, fencing: answer.details.fencing };
  };
  const isUp = () => eventually(async () => (await ask()).fencing.status === 'up', { timeoutMs: 30_000 });
  const held = async (work: () => Promise<void>) => {
    const [inside, out] = [new Gate(), new Gate()];
    const call = app.fencing.run('health', { ttlMs: 60_000 }, async () => {
      inside.open();
      await out.wait();
    });
    await inside.wait();
    try {
      await work();
    } finally {
      out.open();
      await call.catch(() => undefined);
    }
  };

  it('is up while both answer', async () => {
    expect(await ask()).toEqual({
      status: 200,
      overall: 'ok',
      fencing: { status: 'up', leaseStore: 'up', database: 'up', heldLeases: 0, validForMs: 0 },
    });
  });

  it('with its Redis frozen (SIGSTOP): down within its deadline, and up again when it goes on', async () => {
    redis.pause();
    const { status, fencing } = await ask();
    expect(status).toBe(503);
    expect(fencing).toMatchObject({
      status: 'down',
      leaseStore: 'no answer within 1000 ms',
      database: 'up',
    });
  });

  it('with its Redis frozen and a lease that is still valid: degraded, with the time that is left', async () => {
    await held(async () => {
      redis.pause();
      const { status, overall, fencing } = await ask();
      expect({ status, overall }).toEqual({ status: 200, overall: 'degraded' });
      expect(fencing).toMatchObject({ status: 'degraded', heldLeases: 1, database: 'up' });
      expect(fencing.validForMs).toBeGreaterThan(0);
      expect(fencing.validForMs).toBeLessThanOrEqual(60_000);
      redis.resume();
    });
  });

  it('with its Redis gone (connections refused): down, and up again when it is back', async () => {
    redisProxy.refuse();
    redisProxy.cutAll();
    await eventually(async () => (await ask()).fencing.status === 'down');
    await redisProxy.accept();
  });

  it('with its Redis killed and started again: down, and up', async () => {
    await redis.kill();
    await eventually(async () => (await ask()).fencing.status === 'down');
    await redis.restart();
  });

  it('with its database frozen: down, also where a lease is held', async () => {
    await held(async () => {
      postgresProxy.stall();
      const { status, fencing } = await ask();
      expect(status).toBe(503);
      expect(fencing).toMatchObject({
        status: 'down',
        leaseStore: 'up',
        database: 'no answer within 1000 ms',
      });
      postgresProxy.resume();
    });
  });

  it('with its database refusing connections: down, and up again when it is back', async () => {
    postgresProxy.refuse();
    postgresProxy.cutAll();
    await eventually(async () => (await ask()).fencing.database !== 'up');
    await postgresProxy.accept();
  });

  it('with its pool in use by others: down within its deadline, and it does not stand in line more than once', async () => {
    const runners = Array.from({ length: POOL_SIZE }, () => app.dataSource.createQueryRunner());
    const pool = (app.dataSource.driver as never as { master: { waitingCount: number } }).master;
    await Promise.all(runners.map((runner) => runner.connect()));
    try {
      for (let i = 0; i < 5; i++)
        expect((await ask()).fencing).toMatchObject({ status: 'down', leaseStore: 'up' });
      expect(pool.waitingCount).toBe(1);
    } finally {
      await Promise.all(runners.map((runner) => runner.release()));
    }
  });

  it('I11: sixty probes of a Redis that is stuck are one request, and no new connection', async () => {
    const before = { redis: redisProxy.connections, postgres: postgresProxy.connections };
    redis.pause();
    redisProxy.forget();
    const indicator = app.get(FencingHealthIndicator);
    const answers = await Promise.all(
      Array.from({ length: 60 }, () => indicator.isHealthy('fencing', { timeoutMs: 50 })),
    );
    expect(answers.map(({ fencing }) => fencing.status)).toEqual(Array(60).fill('down'));
    const probes = redisProxy.requests.filter(({ text }) => /^get .*nestjs-fencing\/health/.test(text));
    expect(probes).toHaveLength(1);
    expect(redisProxy.connections).toBe(before.redis);
    expect(postgresProxy.connections).toBeLessThanOrEqual(Math.max(before.postgres, POOL_SIZE));
  });
});

describe('the health indicator', () => {
  it('without a fence speaks of the lease store alone, under the name it is given', async () => {
    const app = await startFencedApp({ fence: false, leases: memoryLeases() });
    expect(await app.get(FencingHealthIndicator).isHealthy('leases')).toEqual({
      leases: { status: 'up', leaseStore: 'up', heldLeases: 0, validForMs: 0 },
    });
    await app.close();
  });

  it('of a named instance is its own', async () => {
    const broken = new Redis({ port: 1, lazyConnect: true, retryStrategy: () => null });
    broken.on('error', () => undefined);
    const { redisLeases } = await import('nestjs-fencing/redis');
    const named = FencingModule.forRoot({ name: 'billing', leases: redisLeases(broken) });
    const app = await startFencedApp({ fence: false, leases: memoryLeases(), imports: [named] });
    const billing = app.get<FencingHealthIndicator>(fencingHealthToken('billing'));
    expect((await billing.isHealthy()).fencing.status).toBe('down');
    expect((await app.get(FencingHealthIndicator).isHealthy()).fencing.status).toBe('up');
    await app.close();
    broken.disconnect();
  });

  it('is mounted as docs/observability.md shows', () => {
    const read = (file: string) => readFileSync(new URL(`../${file}`, import.meta.url), 'utf8');
    const [, region] = /\/\/ #region .*\n([\s\S]*?)\n\/\/ #endregion/.exec(read('test/readme/health.ts'))!;
    expect(read('docs/observability.md')).toContain('```ts\n' + region + '\n```');
  });

  it('refuses a deadline that is none', async () => {
    const app = await startFencedApp({ fence: false, leases: memoryLeases() });
    const indicator = app.get(FencingHealthIndicator);
    await expect(indicator.isHealthy('fencing', { timeoutMs: 0 })).rejects.toThrow(FencingConfigError);
    await expect(indicator.isHealthy('fencing', { timeout: 5 } as never)).rejects.toThrow(
      /no option "timeout"/,
    );
    await app.close();
  });
});
