import { randomUUID } from 'node:crypto';
import { mkdir, rmdir } from 'node:fs/promises';
import path from 'node:path';
import { Controller, Logger, Param, Post } from '@nestjs/common';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, jest } from '@jest/globals';
import {
  FencedWrite,
  FencingEvents,
  keyLabel,
  Leased,
  LeaseLostError,
  memoryLeases,
  StaleGenerationError,
} from 'nestjs-fencing';
import request from 'supertest';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { eventually, Gate } from './support/gate.js';
import { freshDatabase } from './support/postgres-server.js';
import { TcpProxy } from './support/proxy.js';
import { RedisServer } from './support/redis-server.js';

const SECRET = 'mustermann';

let lines: string[];
beforeEach(() => {
  lines = [];
  for (const level of ['log', 'warn', 'error'] as const)
    jest.spyOn(Logger.prototype, level).mockImplementation((...said: unknown[]) => {
      lines.push([level, ...said].join(' '));
    });
});
afterEach(() => {
  jest.restoreAllMocks();
});

describe('I12: the log by default', () => {
  let database: Awaited<ReturnType<typeof freshDatabase>>;
  let proxy: TcpProxy;
  let redisProxy: TcpProxy;
  let key: string;

  beforeAll(async () => {
    database = await freshDatabase();
    proxy = await TcpProxy.start(database.url);
    redisProxy = await TcpProxy.start(process.env.REDIS_URL!);
  });
  afterAll(async () => {
    await proxy.stop();
    await redisProxy.stop();
    await database.drop();
  });
  beforeEach(() => {
    key = `customer:${SECRET}:${randomUUID()}`;
  });

  const start = (options: Parameters<typeof startFencedApp>[0] = {}) =>
    startFencedApp({
      databaseUrl: proxy.url,
      redisUrl: redisProxy.url,
      ...options,
      fencing: { storeTimeoutMs: 300, ...options.fencing },
    });

  /** Everything that is logged while leases run, and a caller's text wherever a caller may put one. */
  async function goThroughEverything({ fencing, dataSource }: FencedApp): Promise<void> {
    const run = (work: () => Promise<unknown>, options = {}) =>
      fencing
        .run(key, { ttlMs: 60_000, waitMs: 5_000, ...options }, work)
        .catch((error: { code?: string }) => error.code ?? 'other');
    const write = (operation?: { id: string; payload: unknown }) =>
      fencing.write({ operation }, () => dataSource.query('SELECT $1::text', [SECRET]));

    // Stale, after a revocation with a reason.
    const stale = async () => {
      await fencing.revoke(key, { by: SECRET, reason: SECRET });
      await write({ id: `${SECRET} ${randomUUID()}`, payload: { name: SECRET } });
    };
    expect(await run(stale)).toBe('STALE_GENERATION');
    // It ends with a COMMIT of its own, beside the work.
    await eventually(async () => (await fencing.audit(key)).some(({ kind }) => kind === 'stale'));
    // Unknown.
    const unknown = async () => {
      void proxy.swallowReplyOnce((sql) => sql === 'COMMIT');
      await write();
    };
    expect(await run(unknown)).toBe('COMMIT_UNKNOWN');
    // A body that fails with the caller's text, in the database and outside.
    const fails = () => fencing.write({}, () => dataSource.query(`SELECT '${SECRET}'::int`));
    expect(await run(fails)).toBe('22P02');
    expect(await run(() => Promise.reject(new Error(SECRET)))).toBe('other');
    // Lost, in an outage.
    const lost = async () => {
      redisProxy.stall();
      const other = fencing.run(`other ${SECRET}`, { waitMs: 0 }, () => undefined);
      await expect(other).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
      await eventually(() => lines.some((line) => line.includes('was lost (expired)')));
      redisProxy.resume();
    };
    expect(await run(lost, { ttlMs: 900 })).toBe('LEASE_LOST');
    // Late.
    const gate = new Gate();
    let late!: Promise<unknown>;
    await run(async () => {
      late = gate.wait().then(() => write());
    });
    gate.open();
    await expect(late).rejects.toMatchObject({ code: 'LEASE_RELEASED' });
  }

  it('has a line for all that an operator must know, and nothing in it that a caller passed in', async () => {
    const app = await start();
    await goThroughEverything(app);
    const told = [
      /^warn Lease #\w+ was revoked/,
      /^warn A write was refused as stale \(FencingService\.write\): lease #\w+, generation \d+, owner \S+; the fence names generation \d+\./,
      /^error The outcome of a write is unknown, its COMMIT had no answer \(FencingService\.write\): lease #\w+/,
      /^error The lease store is unavailable \(no answer\)/,
      /^warn Lease #\w+, generation \d+, owner \S+ was lost \(expired\)/,
      /^error FencingService\.write was refused: Lease #\w+/,
    ];
    const missing = told.filter((line) => lines.filter((one) => line.test(one)).length !== 1);
    expect({ missing, lines }).toEqual({ missing: [], lines });
    expect(lines.join('\n')).toContain(keyLabel(key));
    expect(lines.join('\n')).not.toContain(SECRET);
    await app.close();
    expect(lines.join('\n')).not.toContain(SECRET);
  });

  it('names keys in full with logKeys, and still nothing else that a caller passed in', async () => {
    const app = await start({ fencing: { logKeys: true } });
    await goThroughEverything(app);
    await app.close();
    expect(lines.join('\n')).toContain(JSON.stringify(key));
    expect(lines.join('\n').replaceAll(JSON.stringify(key), '')).not.toContain(SECRET);
  });
});

@Controller()
class Reports {
  @Post(':id')
  @Leased('report:{params.id}', { waitMs: 0 })
  @FencedWrite()
  async rebuild(@Param('id') id: string) {
    return id;
  }
}

describe('field report 17: a Redis that refuses to write', () => {
  let server: RedisServer;
  let app: FencedApp;

  beforeAll(async () => {
    server = await RedisServer.start(['--save', '3600 1', '--dbfilename', 'blocked.rdb']);
    app = await startFencedApp({
      controllers: [Reports],
      redisUrl: server.url,
      http: true,
      fencing: { storeTimeoutMs: 1_000 },
    });
  });
  afterAll(async () => {
    await app.close();
    await server.stop();
  });

  const rebuild = () =>
    request((app.app as never as { getHttpServer(): never }).getHttpServer()).post(`/${randomUUID()}`);
  const cannotSave = async (work: () => Promise<void>) => {
    const [, folder] = (await server.command('CONFIG', 'GET', 'dir')) as [string, string];
    // A folder of that name is in the way of every snapshot.
    const blocked = path.join(folder, 'blocked.rdb');
    await mkdir(blocked);
    try {
      await server.command('SET', 'something', 'to save');
      await server.command('BGSAVE');
      await eventually(async () =>
        /last_bgsave_status:err/.test(String(await server.command('INFO', 'persistence'))),
      );
      await work();
    } finally {
      await rmdir(blocked);
      await server.command('CONFIG', 'SET', 'stop-writes-on-bgsave-error', 'no');
    }
  };
  const atItsLimit = async (work: () => Promise<void>) => {
    await server.command('CONFIG', 'SET', 'maxmemory', '1');
    await work();
    await server.command('CONFIG', 'SET', 'maxmemory', '0');
  };
  const withoutPermission = async (work: () => Promise<void>) => {
    await server.command('ACL', 'SETUSER', 'default', '-@scripting');
    await work();
    await server.command('ACL', 'SETUSER', 'default', '+@all');
  };

  it.each([
    ['OOM', 'at its memory limit', atItsLimit],
    ['MISCONF', 'that cannot save', cannotSave],
    ['NOPERM', 'without leave to write', withoutPermission],
  ] as const)(
    '%s (%s) is 503, never 423, and one line in the log however many calls fail',
    async (code, _, inside) => {
      let failed = 0;
      const subscription = app
        .get(FencingEvents)
        .of('store.unavailable')
        .subscribe(() => (failed += 1));
      expect((await rebuild()).status).toBe(201);
      await inside(async () => {
        for (let i = 0; i < 5; i++) {
          const { status, body } = await rebuild();
          expect({ status, code: (body as { code: string }).code }).toEqual({
            status: 503,
            code: 'STORE_UNAVAILABLE',
          });
        }
        expect(failed).toBeGreaterThanOrEqual(5);
        expect(lines.filter((line) => line.includes('is unavailable'))).toEqual([
          expect.stringMatching(new RegExp(`^error The lease store is unavailable \\(${code}\\)`)),
        ]);
      });
      expect((await rebuild()).status).toBe(201);
      await eventually(() => lines.some((line) => /The lease store answers again/.test(line)), {
        timeoutMs: 20_000,
      });
      subscription.unsubscribe();
    },
  );
});

describe('a logger of the application that throws', () => {
  class Late {
    @FencedWrite()
    async write(): Promise<void> {}
  }

  it('ends nobody’s work: what it was told of goes on, keys are free, and no rejection is left unhandled', async () => {
    const broken = jest.fn<() => never>(() => {
      throw new Error('the disk of the log is full');
    });
    const app = await startFencedApp({ leases: memoryLeases(), providers: [Late], fencing: { drainMs: 0 } });
    const { fencing } = app;
    for (const level of ['warn', 'error'] as const)
      jest.spyOn(Logger.prototype, level).mockImplementation(broken);

    const stale = fencing.run('logged', {}, async (lease) => {
      lease.signal.addEventListener('abort', broken);
      await fencing.revoke('logged');
      await fencing.write({}, () => undefined);
    });
    await expect(stale).rejects.toThrow(StaleGenerationError);

    const over = new Gate();
    const lost = fencing.run('logged', { waitMs: 0, ttlMs: 100 }, async (lease) => {
      void over.wait().then(() => {
        void fencing.write({}, () => undefined);
        void app.get(Late).write();
      });
      await fencing.revoke('logged');
      await new Promise((resolve) => lease.signal.addEventListener('abort', resolve));
    });
    await expect(lost).rejects.toThrow(LeaseLostError);

    const told = broken.mock.calls.length;
    await fencing.run('logged', { waitMs: 0 }, () => undefined); // nobody stands in its line any more
    over.open();
    await eventually(() => broken.mock.calls.length >= told + 2);
    const cut = await fencing.acquire('cut');
    await app.close();
    expect(cut.state).toBe('lost');
  });
});
