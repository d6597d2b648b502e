import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { Controller, Injectable, Post } from '@nestjs/common';
import { CurrentLease, type Lease, Leased } from 'nestjs-fencing';
import request from 'supertest';
import { eventually } from './support/gate.js';
import { FaultBench } from './support/fault-bench.js';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { RedisServer } from './support/redis-server.js';

/** What clients have sent so far; what scripts do inside is counted elsewhere. */
async function requestsOf(redis: RedisServer): Promise<number> {
  const stats = String(await redis.command('INFO', 'commandstats'));
  const calls = [...stats.matchAll(/^cmdstat_(?:evalsha|eval|subscribe):calls=(\d+)/gm)];
  return calls.reduce((sum, [, count]) => sum + Number(count), 0);
}

/** The list of the processes that wait for a key, the holder's own left out. */
async function waitersOf(redis: RedisServer, key: string): Promise<string> {
  const [name = 'none'] = (await redis.command('KEYS', `*:waiters:${key}`)) as string[];
  return name;
}

let running = 0;
let mostAtOnce = 0;
const generations: number[] = [];

@Injectable()
class Reports {
  @Leased('report:contended', { waitMs: 60_000 })
  async rebuild(@CurrentLease() lease?: Lease): Promise<number> {
    mostAtOnce = Math.max(mostAtOnce, ++running);
    generations.push(lease!.generation);
    await new Promise((resolve) => setTimeout(resolve, 1));
    running -= 1;
    return lease!.generation;
  }
}

@Controller()
class ReportsController {
  constructor(private readonly reports: Reports) {}

  @Post('once')
  once(): Promise<number> {
    return this.reports.rebuild();
  }

  @Post('twice')
  twice(): Promise<number[]> {
    return Promise.all([this.reports.rebuild(), this.reports.rebuild()]);
  }
}

describe('many callers of one key', () => {
  let redis: RedisServer;
  beforeAll(async () => {
    redis = await RedisServer.start();
  });
  afterAll(() => redis.stop());
  beforeEach(() => {
    [running, mostAtOnce, generations.length] = [0, 0, 0];
  });

  describe('in one process', () => {
    let app: FencedApp;
    beforeAll(async () => {
      app = await startFencedApp({
        redisUrl: redis.url,
        fence: false,
        http: true,
        providers: [Reports],
        controllers: [ReportsController],
      });
    });
    afterAll(() => app.close());

    const increasing = () => [...new Set(generations)].sort((a, b) => a - b);

    it('field report 5: 50 requests at once run one after the other, each under a generation of its own', async () => {
      const server = app.app as unknown as { getHttpServer(): never };
      const calls = Array.from({ length: 25 }, () => [
        request(server.getHttpServer()).post('/once'),
        request(server.getHttpServer()).post('/twice'),
      ]).flat();
      const answers = await Promise.all(calls);
      expect(answers.map(({ status }) => status)).toEqual(calls.map(() => 201));
      expect(mostAtOnce).toBe(1);
      expect(generations).toHaveLength(75);
      expect(generations).toEqual(increasing());
    });

    it('50 tasks cost Redis at most 1.2 requests each: keys are handed over in the release', async () => {
      const reports = app.get(Reports);
      await reports.rebuild();
      const before = await requestsOf(redis);
      await Promise.all(Array.from({ length: 50 }, () => reports.rebuild()));
      await eventually(async () => ((await redis.command('KEYS', '*:lease:*')) as string[]).length === 0);
      expect((await requestsOf(redis)) - before).toBeLessThanOrEqual(60);
    });
  });

  describe('in four processes, ten tasks each', () => {
    it('all have their turn, mixed, under generations that rise in the order of execution', async () => {
      const bench = await FaultBench.start();
      const names = ['a', 'b', 'c', 'd'];
      const workers = await Promise.all(names.map(() => bench.worker({ redisUrl: redis.url })));
      const key = `report:${randomUUID()}`;
      const before = await requestsOf(redis);
      const options = { ttlMs: 10_000, waitMs: 60_000 };
      const first = workers[0]!.run(key, [{ do: 'gate', name: 'all are waiting' }], options);
      await first.at('all are waiting');
      const runs = workers.flatMap((worker, i) =>
        Array.from({ length: 10 }, () =>
          worker.run(
            key,
            [
              { do: 'write', text: names[i]! },
              { do: 'sleep', ms: 12 },
            ],
            options,
          ),
        ),
      );
      // A process takes its orders one by one: after this one its ten stand in line.
      for (const worker of workers)
        expect(await worker.run(`${key} other`).ended()).toMatchObject({ ok: true });
      await eventually(async () => Number(await redis.command('LLEN', await waitersOf(redis, key))) === 3);
      first.open('all are waiting');
      for (const run of runs) expect(await run.ended(60_000)).toMatchObject({ ok: true });
      const sent = (await requestsOf(redis)) - before;

      const rows = await bench.expectOrder(key);
      expect(rows).toHaveLength(40);
      expect(new Set(rows.map(({ generation }) => generation)).size).toBe(40);
      // A process may keep the key for 10 ms; one that kept it for itself would have its ten turns in a row.
      const changes = rows.filter(({ text }, i) => i > 0 && rows[i - 1]!.text !== text).length;
      expect(changes).toBeGreaterThanOrEqual(20);
      // A release that wakes the next process, its acquisition; at the start each process also asks, subscribes and asks again.
      expect(sent / 40).toBeLessThanOrEqual(4);
      await bench.close();
    });
  });
});
