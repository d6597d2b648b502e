import { setTimeout as sleep } from 'node:timers/promises';
import { Cluster, Redis, type RedisOptions } from 'ioredis';
import type { EntityManager } from 'typeorm';
import type { Lease } from 'nestjs-fencing';
import { quorumLeases, redisLeases } from 'nestjs-fencing/redis';
import { postgresLeases } from 'nestjs-fencing/typeorm';
import type { Outcome, RunRequest, Step, WorkerSettings } from './support/fault-bench.js';
import { startFencedApp } from './support/fenced-app.js';
import { gate, tell, told } from './support/worker-side.js';

/*
 * A whole application in a process of its own, for fault tests: a Nest app that runs leased calls as the test tells it to.
 * `support/fault-bench.ts` is the test's side.
 */

const { client, storeTimeoutMs, leases, nodes = [] } = JSON.parse(process.argv[2]!) as WorkerSettings;
for (const event of ['uncaughtException', 'unhandledRejection'] as const) {
  process.on(event, (error: unknown) => console.error(event, error));
}

const redis = new Redis({ ...addressOf(process.env.REDIS_URL!), ...client });
redis.on('error', () => undefined);
const quorum = leases === 'quorum' ? nodes.map((url) => new Redis(url)) : [];
const cluster = new Cluster([...nodes], { lazyConnect: true });
const stores = {
  redis: () => redisLeases(redis),
  postgres: () => postgresLeases({ ensureSchema: true }),
  quorum: () => quorumLeases(quorum),
  cluster: () => redisLeases(cluster),
};
const app = await startFencedApp({
  leases: stores[leases ?? 'redis'](),
  fencing: { storeTimeoutMs },
});
await tell('ready');

for (;;) {
  const request = await told<RunRequest | 'close'>('run');
  if (request === 'close') break;
  void run(request);
}
await app.close();
for (const one of [redis, ...quorum, cluster]) one.disconnect();

async function run({ id, key, options, steps }: RunRequest): Promise<void> {
  let lease: Lease | undefined;
  const outcome: Outcome = { ok: true };
  try {
    outcome.value = await app.fencing.run(key, options, async (held) => {
      lease = held;
      held.signal.addEventListener('abort', () => void tell(`aborted ${id}`));
      if (steps.some((step) => step.do === 'throwing listener')) {
        held.signal.addEventListener('abort', () => {
          throw new Error('a listener of the application');
        });
      }
      await tell(`began ${id}`, { generation: held.generation, owner: held.owner });
      return perform(id, held, steps);
    });
    // Where it was skipped there is no value.
  } catch (error) {
    const facts = error as Error & { code?: string; reason?: string; bodyError?: Error & { code?: string } };
    outcome.ok = false;
    outcome.error = {
      code: facts.code,
      message: facts.message,
      reason: facts.reason,
      acceptedWrites: (error as { acceptedWrites?: number }).acceptedWrites,
      result: (error as { result?: unknown }).result,
      bodyError: facts.bodyError && { code: facts.bodyError.code, message: facts.bodyError.message },
    };
  }
  outcome.aborted = lease?.signal.aborted;
  outcome.state = lease?.state;
  await tell(`ended ${id}`, outcome);
}

async function perform(id: string, lease: Lease, steps: readonly Step[]): Promise<unknown> {
  for (const step of steps) {
    switch (step.do) {
      case 'gate':
        await gate(`${id} ${step.name}`);
        break;
      case 'write':
        await write(lease, step.text).then(
          () => tell(`wrote ${id}`, { accepted: true }),
          async (error: { code?: string }) => {
            await tell(`wrote ${id}`, { accepted: false, code: error.code });
            if (!step.caught) throw error;
          },
        );
        break;
      case 'block':
        for (const end = performance.now() + step.ms; performance.now() < end;);
        break;
      case 'sleep':
        await sleep(step.ms);
        break;
      case 'shift wall clock':
        shiftWallClock(step.ms);
        break;
      case 'wait for the abort':
        if (!lease.signal.aborted) {
          const held = sleep(60_000, undefined, { ref: true, signal: lease.signal });
          await held.catch(() => undefined);
        }
        break;
      case 'throw':
        throw new Error(step.message);
      case 'return':
        return step.value;
    }
  }
  return undefined;
}

/** The version of the report's row orders the journal of a key as its writes were committed. */
function write(lease: Lease, text: string): Promise<unknown> {
  return app.fencing.write({}, (manager: EntityManager) =>
    manager.query(
      `WITH report AS (
         INSERT INTO report AS r (key, text, version) VALUES ($1, $2, 1)
         ON CONFLICT (key) DO UPDATE SET text = excluded.text, version = r.version + 1 RETURNING version
       )
       INSERT INTO journal (key, version, generation, owner, text) SELECT $1, version, $3, $4, $2 FROM report`,
      [lease.key, text, lease.generation, lease.owner],
    ),
  );
}

function shiftWallClock(ms: number): void {
  const now = Date.now.bind(Date);
  Date.now = () => now() + ms;
}

function addressOf(url: string): RedisOptions {
  const { hostname, port, pathname } = new URL(url);
  return { host: hostname, port: Number(port), db: Number(pathname.slice(1) || 0) };
}
