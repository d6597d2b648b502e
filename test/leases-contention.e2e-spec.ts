import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { Controller, Injectable, Post } from '@nestjs/common';
import { CurrentLease, type Lease, Leased } from 'nestjs-fencing';
import request from 'supertest';
import { eventually } from './support/gate.js';
import { FaultBench } from './support/fault-bench.js';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { TcpProxy } from './support/proxy.js';
import { ClusterOfServers } from './support/redis-cluster.js';
import { RedisServer } from './support/redis-server.js';

/** What clients have sent so far; what scripts do inside is counted elsewhere. */
async function requestsOf(redis: RedisServer): Promise<number> {
  const stats = String(await redis.command('INFO', 'commandstats'));
  const calls = [...stats.matchAll(/^cmdstat_(?:evalsha|eval|s?subscribe):calls=(\d+)/gm)];
  return calls.reduce((sum, [, count]) => sum + Number(count), 0);
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
});

/** A lease store that four processes contend at. */
interface Place {
  /** What a worker is told of it. */
  readonly worker: Parameters<FaultBench['worker']>[0];
  /** Requests of the lease store so far; of a quorum, to the node that had most. */
  requests(): Promise<number> | number;
  /** Activations that were requests of their own. */
  activations?(): number;
  /** Requests for each critical section, at most. */
  readonly most: number;
  stop(): Promise<unknown>;
}

const PLACES: Record<string, (bench: FaultBench) => Promise<Place>> = {
  'one Redis': async () => {
    const redis = await RedisServer.start();
    // A release that wakes the next process, its acquisition; at the start each process also asks, subscribes and asks again.
    return {
      worker: { redisUrl: redis.url },
      requests: () => requestsOf(redis),
      most: 4,
      stop: () => redis.stop(),
    };
  },
  'a quorum of three': async () => {
    const nodes = await Promise.all([1, 2, 3].map(() => RedisServer.start()));
    return {
      worker: { leases: 'quorum', nodes: nodes.map(({ url }) => url) },
      requests: async () => Math.max(...(await Promise.all(nodes.map(requestsOf)))),
      // Four, and more where the nodes have to agree on a generation or a tie is settled.
      most: 8,
      stop: () => Promise.all(nodes.map((node) => node.stop())),
    };
  },
  'a Redis Cluster': async () => {
    const cluster = await ClusterOfServers.start();
    const requests = async () => {
      const each = await Promise.all(cluster.servers.map(requestsOf));
      return each.reduce((sum, count) => sum + count, 0);
    };
    return {
      worker: { leases: 'cluster', nodes: cluster.servers.map(({ url }) => url) },
      requests,
      most: 4,
      stop: () => cluster.stop(),
    };
  },
  PostgreSQL: async (bench) => {
    const proxy = await TcpProxy.start(bench.databaseUrl);
    const executed = (pattern: RegExp) =>
      proxy.requests.filter(({ type, text }) => type !== 'P' && pattern.test(text)).length;
    return {
      worker: { leases: 'postgres', databaseUrl: proxy.url },
      requests: () => executed(/fencing_lease_(steps|take|renew)\(|LISTEN/),
      activations: () => executed(/SELECT fencing_activate\(/),
      most: 4,
      stop: () => proxy.stop(),
    };
  },
};

const TASKS = 20;
const PROCESSES = ['a', 'b', 'c', 'd'];
const ALL = TASKS * PROCESSES.length;

describe.each(Object.entries(PLACES))(
  `four processes, ${TASKS} tasks each, with leases at %s`,
  (_name, placeOn) => {
    let bench: FaultBench;
    let place: Place;
    beforeAll(async () => {
      bench = await FaultBench.start();
      place = await placeOn(bench);
    });
    afterAll(async () => {
      await bench.close();
      await place.stop();
    });

    it('nobody starves, nobody polls, and generations rise in the order of execution', async () => {
      const workers = await Promise.all(PROCESSES.map(() => bench.worker(place.worker)));
      const key = `report:${randomUUID()}`;
      const options = { ttlMs: 10_000, waitMs: 120_000 };
      const before = await place.requests();
      const first = workers[0]!.run(key, [{ do: 'gate', name: 'all are waiting' }], options);
      await first.at('all are waiting');
      const runs = workers.flatMap((worker, i) =>
        Array.from({ length: TASKS }, () =>
          worker.run(
            key,
            [
              { do: 'write', text: PROCESSES[i]! },
              { do: 'sleep', ms: 12 },
            ],
            options,
          ),
        ),
      );
      // A process takes its orders one by one: after this one its tasks stand in line.
      for (const worker of workers)
        expect(await worker.run(`${key} other`).ended()).toMatchObject({ ok: true });
      const activatedBefore = place.activations?.() ?? 0;
      first.open('all are waiting');
      for (const run of runs) expect(await run.ended(120_000)).toMatchObject({ ok: true });
      const perSection = ((await place.requests()) - before) / ALL;

      const rows = await bench.expectOrder(key);
      expect(rows).toHaveLength(ALL);
      expect(new Set(rows.map(({ generation }) => generation)).size).toBe(ALL);
      // While all of them want it, each has its share within a factor of two: before the first of them can have run out of tasks.
      const contended = rows.slice(0, TASKS * 2);
      for (const name of PROCESSES) {
        const share =
          contended.filter(({ text }) => text === name).length / (contended.length / PROCESSES.length);
        expect(share).toBeGreaterThanOrEqual(1 / 2);
        expect(share).toBeLessThanOrEqual(2);
      }
      // A process may keep the key for 10 ms; one that kept it for itself would have its turns in a row.
      const changes = rows.filter(({ text }, i) => i > 0 && rows[i - 1]!.text !== text).length;
      expect(changes).toBeGreaterThanOrEqual(ALL / 2);
      expect(perSection).toBeLessThanOrEqual(place.most);
      // Where the fence is in the same database, hardly any: one whose row was locked at that moment.
      if (place.activations) expect(place.activations() - activatedBefore).toBeLessThanOrEqual(ALL / 10);
    }, 240_000);
  },
);
