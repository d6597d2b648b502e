import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { FencingError } from 'nestjs-fencing';
import { redisLeases } from 'nestjs-fencing/redis';
import type { EntityManager } from 'typeorm';
import { eventually } from './support/gate.js';
import { FaultBench } from './support/fault-bench.js';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { type SentinelTrio, startSentinelTrio } from './support/sentinel-trio.js';

const KEYS = ['report:1', 'report:2', 'report:3'];

describe('field report 33a: leases behind a Sentinel, under a steady load of two applications', () => {
  let trio: SentinelTrio;
  let bench: FaultBench;
  let clients: Redis[];
  let apps: FencedApp[];
  let load: Load;

  beforeEach(async () => {
    [trio, bench] = await Promise.all([startSentinelTrio(), FaultBench.start()]);
    clients = [1, 2].map(() => new Redis({ sentinels: trio.sentinels, name: trio.name }));
    for (const client of clients) client.on('error', () => undefined);
    apps = [];
    for (const client of clients) {
      const fencing = { storeTimeoutMs: 500 };
      apps.push(
        await startFencedApp({ leases: redisLeases(client), databaseUrl: bench.databaseUrl, fencing }),
      );
    }
    load = new Load(apps);
    await load.goesOn();
  });
  afterEach(async () => {
    await load.stop();
    await Promise.all(apps.map((app) => app.close()));
    for (const client of clients) client.disconnect();
    await bench.close();
    await trio.stop();
  });

  /** All that must hold whatever happened. */
  const expectSoundness = async () => {
    await load.stop();
    expect(load.strangeErrors).toEqual([]);
    for (const key of KEYS) await bench.expectOrder(key);
    // No lease is left locked past its ttl.
    await eventually(async () => (await clients[0]!.keys('*:lease:*')).length === 0);
  };

  it('SCRIPT FLUSH fails no call', async () => {
    await trio.master.command('SCRIPT', 'FLUSH');
    await load.goesOn();
    await trio.master.command('SCRIPT', 'FLUSH');
    await load.goesOn();
    await expectSoundness();
    expect(load.errors).toEqual([]);
  });

  it('a master that becomes a replica on live connections is left for the new one', async () => {
    await trio.replica.command('REPLICAOF', 'NO', 'ONE');
    await trio.master.command('REPLICAOF', '127.0.0.1', trio.replica.port);
    const sentinel = new Redis(trio.sentinels[0]!.port);
    await sentinel.call('SENTINEL', 'REMOVE', trio.name);
    await sentinel.call('SENTINEL', 'MONITOR', trio.name, '127.0.0.1', trio.replica.port, '1');
    sentinel.disconnect();
    await load.goesOn();
    await expectSoundness();
    const commands = String(await trio.replica.command('INFO', 'commandstats'));
    expect(commands).toContain('cmdstat_evalsha');
  });

  it('a killed master: the service resumes on the promoted replica without a restart', async () => {
    await trio.master.kill();
    await trio.failedOver();
    await load.goesOn();
    await expectSoundness();
  });
});

/** Leased calls with a fenced write, without pause, on few keys. */
class Load {
  readonly errors: unknown[] = [];
  private accepted = 0;
  private stopped = false;
  private readonly loops: Promise<void>[];

  constructor(apps: readonly FencedApp[]) {
    this.loops = apps.flatMap((app) => KEYS.map((key) => this.loop(app, key)));
  }

  /** Errors that are none of the package's own. */
  get strangeErrors(): unknown[] {
    return this.errors.filter((error) => !(error instanceof FencingError));
  }

  /** Resolves when every loop may have come round several times since now. */
  async goesOn(): Promise<void> {
    const before = this.accepted;
    await eventually(() => this.accepted >= before + 30, { timeoutMs: 40_000 });
  }

  async stop(): Promise<void> {
    this.stopped = true;
    await Promise.all(this.loops);
  }

  private async loop(app: FencedApp, key: string): Promise<void> {
    while (!this.stopped) {
      try {
        await app.fencing.run(key, { ttlMs: 2_000, waitMs: 4_000 }, async ({ generation, owner }) => {
          await app.fencing.write({}, (manager: EntityManager) =>
            manager.query(
              `WITH report AS (
                 INSERT INTO report AS r (key, text, version) VALUES ($1, '', 1)
                 ON CONFLICT (key) DO UPDATE SET version = r.version + 1 RETURNING version
               )
               INSERT INTO journal (key, version, generation, owner, text) SELECT $1, version, $2, $3, '' FROM report`,
              [key, generation, owner],
            ),
          );
          this.accepted += 1;
        });
      } catch (error) {
        this.errors.push(error);
      }
      // Lets timers and sockets have their turn also when every call fails at once.
      await new Promise((resolve) => setImmediate(resolve));
    }
  }
}
