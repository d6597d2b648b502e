import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { redisLeases } from 'nestjs-fencing/redis';
import { eventually } from './support/gate.js';
import { FaultBench } from './support/fault-bench.js';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { type SentinelTrio, startSentinelTrio } from './support/sentinel-trio.js';
import { SteadyLoad } from './support/steady-load.js';

const KEYS = ['report:1', 'report:2', 'report:3'];

describe('field report 33a: leases behind a Sentinel, under a steady load of two applications', () => {
  let trio: SentinelTrio;
  let bench: FaultBench;
  let clients: Redis[];
  let apps: FencedApp[];
  let load: SteadyLoad;

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
    load = new SteadyLoad(apps, KEYS);
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
