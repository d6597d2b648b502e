import { once } from 'node:events';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { Injectable } from '@nestjs/common';
import type { Cluster } from 'ioredis';
import { Cluster as Cluster5 } from 'ioredis5';
import {
  CurrentLease,
  FencedWrite,
  FencingEvents,
  type Lease,
  Leased,
  LeaseLostError,
  type LeaseState,
  StaleGenerationError,
} from 'nestjs-fencing';
import { redisLeases } from 'nestjs-fencing/redis';
import { DataSource } from 'typeorm';
import { bucketOf } from '../libs/fencing/src/core/buckets.js';
import { FaultBench, isAcquire, isRelease, isRenew } from './support/fault-bench.js';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { eventually, Gate } from './support/gate.js';
import { TcpProxy } from './support/proxy.js';
import { ClusterOfServers, slotOfKey } from './support/redis-cluster.js';
import type { RedisServer } from './support/redis-server.js';
import { SteadyLoad } from './support/steady-load.js';

/** A body that holds a lease until it is let go, and tells how that went. */
interface Held {
  readonly lease: Lease;
  readonly states: LeaseState[];
  readonly exit: Gate;
  readonly ended: Promise<unknown>;
}

@Injectable()
class Reports {
  constructor(private readonly database: DataSource) {}

  @Leased((key: string) => key, { ttlMs: 30_000, waitMs: 20_000 })
  async rebuild(key: string, text: string, before?: () => Promise<void>, @CurrentLease() lease?: Lease) {
    await before?.();
    await this.publish(key, text, lease!);
    return lease!.generation;
  }

  @FencedWrite()
  async publish(key: string, text: string, { generation, owner }: Lease) {
    await this.database.query(
      `WITH report AS (
         INSERT INTO report AS r (key, text, version) VALUES ($1, $4, 1)
         ON CONFLICT (key) DO UPDATE SET version = r.version + 1, text = $4 RETURNING version
       )
       INSERT INTO journal (key, version, generation, owner, text) SELECT $1, version, $2, $3, $4 FROM report`,
      [key, generation, owner, text],
    );
  }
}

describe('field report 33b: leases in a Redis Cluster', () => {
  let cluster: ClusterOfServers;
  let bench: FaultBench;
  let clients: Cluster[];
  let apps: FencedApp[];
  let load: SteadyLoad | undefined;
  /** One for each master. */
  let keys: string[];

  beforeAll(async () => {
    [cluster, bench] = await Promise.all([ClusterOfServers.start(), FaultBench.start()]);
  }, 60_000);
  afterAll(async () => {
    await bench.close();
    await cluster.stop();
  });

  beforeEach(async () => {
    keys = await cluster.keysOnAllMasters();
    await bench.sql.query('TRUNCATE report, journal');
    // Two processes; one of them with the older client.
    clients = [cluster.connect(), new Cluster5(cluster.addresses) as unknown as Cluster];
    clients[1]!.on('error', () => undefined);
    apps = [];
    for (const client of clients)
      apps.push(
        await startFencedApp({
          leases: redisLeases(client),
          databaseUrl: bench.databaseUrl,
          providers: [Reports],
          fencing: { storeTimeoutMs: 1_000 },
        }),
      );
  }, 60_000);
  afterEach(async () => {
    await load?.stop();
    load = undefined;
    await Promise.all(apps.map((app) => app.close()));
    for (const client of clients) client.disconnect();
    // All as it was, with roles as they are now.
    for (const server of cluster.servers) if (!server.answers) await server.restart();
    await cluster.keepSlots();
    await cluster.replicated();
    await cluster.settled();
  }, 60_000);

  const hold = async (app: FencedApp, key: string, ttlMs: number): Promise<Held> => {
    const states: LeaseState[] = [];
    const [begun, exit] = [new Gate(), new Gate()];
    let lease!: Lease;
    app
      .get(FencingEvents)
      .of('lease.uncertain', 'lease.renewed')
      .subscribe((event) => {
        if (event.key !== key) return;
        states.push(event.name === 'lease.uncertain' ? 'uncertain' : 'held');
      });
    const ended = app.fencing
      .run(key, { ttlMs, waitMs: 10_000 }, async (mine) => {
        lease = mine;
        begun.open();
        await Promise.race([exit.wait(), once(mine.signal, 'abort')]);
        return mine.generation;
      })
      .catch((error: unknown) => error);
    await Promise.race([begun.wait(), ended]);
    return { lease, states, exit, ended };
  };
  /** Resolves at the next confirmed renewal. Rejects with what ended the lease. */
  const renewedAgain = async ({ states, ended }: Held): Promise<void> => {
    const before = states.length;
    const renewed = () => states.length > before && states.at(-1) === 'held';
    const tooEarly = ended.then((why) => {
      throw why;
    });
    await Promise.race([eventually(renewed, { timeoutMs: 20_000 }), tooEarly]);
  };
  /** Another key of the same bucket. */
  const neighbourOf = (key: string) => {
    for (let i = 0; ; i++) if (bucketOf(`neighbour:${i}`) === bucketOf(key)) return `neighbour:${i}`;
  };
  const startLoad = async () => {
    load = new SteadyLoad(apps, keys);
    await load.goesOn(10, keys);
    return load;
  };
  /** All that must hold whatever happened. */
  const expectSoundness = async () => {
    await load?.stop();
    expect(load?.strangeErrors ?? []).toEqual([]);
    // A wait of 4 s, and a second for a last answer; the rest is the machine's.
    expect(load?.slowestMs ?? 0).toBeLessThan(15_000);
    for (const key of keys) await bench.expectOrder(key);
    // No lease is left locked past its ttl.
    await eventually(async () => (await leaseNames()).length === 0);
  };
  const leaseNames = async () => {
    const names = await Promise.all(
      (await cluster.masters()).map((master) => master.command('KEYS', '*:lease:*')),
    );
    return names.flat();
  };
  const everyMaster = async (...command: [string, ...string[]]) => {
    for (const master of await cluster.masters()) await master.command(...command);
  };
  /** What is written meanwhile is known to the master alone: its replica is frozen, and nothing is under way to it. */
  const withoutReplica = async (master: RedisServer, replica: RedisServer, work: () => Promise<void>) => {
    replica.pause();
    try {
      await master.command('CLIENT', 'KILL', 'TYPE', 'replica');
      await work();
    } finally {
      replica.resume();
    }
  };

  /** Resolves once the replica has all that the master has written until now. */
  const caughtUp = async (master: RedisServer, replica: RedisServer) => {
    const offset = async (server: RedisServer) => {
      const info = String(await server.command('INFO', 'replication'));
      return Number(/^(?:slave|master)_repl_offset:(\d+)/m.exec(info)![1]);
    };
    const written = await offset(master);
    await eventually(async () => (await offset(replica)) >= written);
  };

  it('SCRIPT FLUSH on every node fails no call', async () => {
    const steady = await startLoad();
    for (let i = 0; i < 3; i++) {
      await everyMaster('SCRIPT', 'FLUSH');
      await steady.goesOn(5, keys);
    }
    await expectSoundness();
    expect(steady.errors).toEqual([]);
  });

  it('CLUSTER FAILOVER: the load goes on at the other node, and the demoted master is left', async () => {
    const steady = await startLoad();
    const master = await cluster.masterOf(keys[0]!);
    const replica = await cluster.failOver(master);
    await steady.goesOn(10, keys);
    await expectSoundness();
    expect(await cluster.masterOf(keys[0]!)).toBe(replica);
  });

  it('a killed master: leases at the others are renewed undisturbed; its own are uncertain, then held again or lost', async () => {
    const [mine, ...others] = keys as [string, ...string[]];
    const master = await cluster.masterOf(mine);
    const replica = await cluster.replicaOf(master);
    const patient = await hold(apps[0]!, mine, 12_000);
    // Due at the same time.
    const [hasty, ...healthy] = (await Promise.all(
      [neighbourOf(mine), ...others].map((key) => hold(apps[0]!, key, 1_800)),
    )) as [Held, ...Held[]];
    await caughtUp(master, replica);
    // Nobody takes over before the test has looked.
    replica.pause();
    await master.kill();
    expect(await hasty.ended).toBeInstanceOf(LeaseLostError);
    expect(hasty.states).toContain('uncertain');
    await eventually(() => patient.states.at(-1) === 'uncertain', { timeoutMs: 15_000 });
    replica.resume();
    await cluster.failedOver(master);
    await eventually(() => patient.states.at(-1) === 'held', { timeoutMs: 15_000 });
    patient.exit.open();
    expect(await patient.ended).toBe(patient.lease.generation);
    for (const { states, lease, exit, ended } of healthy) {
      expect(states.length).toBeGreaterThanOrEqual(6);
      expect(new Set(states)).toEqual(new Set(['held']));
      exit.open();
      expect(await ended).toBe(lease.generation);
    }
    await expectSoundness();
  });

  it('field report 1: generations rise over a failover that lost the counter and the lease; the old worker is refused', async () => {
    const [key] = keys as [string];
    const master = await cluster.masterOf(key);
    const replica = await cluster.replicaOf(master);
    const [old, next] = apps.map((app) => app.get(Reports)) as [Reports, Reports];
    const [started, mayWrite] = [new Gate(), new Gate()];
    let oldRun!: Promise<unknown>;
    await withoutReplica(master, replica, async () => {
      // An hour ahead of every clock: a counter that is lost is really missed.
      const counter = `fencing:{${bucketOf(key)}}:generation`;
      await master.command('SET', counter, Date.now() * 1_000 + 3_600_000_000);
      const atGate = async () => {
        started.open();
        await mayWrite.wait();
      };
      oldRun = old.rebuild(key, 'old', atGate).catch((error: unknown) => error);
      await started.wait();
      await master.kill();
    });
    const before = (await bench.fence(key))!.generation;
    await cluster.failedOver(master);
    const after = await next.rebuild(key, 'new');
    expect(after).toBeGreaterThan(before);
    mayWrite.open();
    expect(await oldRun).toBeInstanceOf(StaleGenerationError);
    expect(await bench.report(key)).toBe('new');
    await expectSoundness();
  });

  it('a frozen master: every call settles, the load resumes at its replica without a restart, and the frozen one comes back demoted', async () => {
    const steady = await startLoad();
    const [mine, ...others] = keys as [string, ...string[]];
    const master = await cluster.masterOf(mine);
    master.pause();
    try {
      await steady.goesOn(10, others);
      await cluster.failedOver(master);
      await steady.goesOn(10, [mine]);
    } finally {
      master.resume();
    }
    await eventually(async () => String(await master.command('ROLE')).startsWith('slave'), {
      timeoutMs: 20_000,
    });
    await steady.goesOn(10, keys);
    await expectSoundness();
  });

  it('a slot that moves: nobody in line is forgotten, what is held is renewed, and the load resumes when it has moved', async () => {
    const [key] = keys as [string];
    const [held, neighbour] = (await Promise.all(
      [key, neighbourOf(key)].map((one) => hold(apps[0]!, one, 8_000)),
    )) as [Held, Held];
    const waiting = [apps[0]!, apps[1]!].map((app) =>
      app.fencing.run(key, { ttlMs: 6_000, waitMs: 30_000 }, async ({ generation }) => generation),
    );
    await eventually(async () => {
      const master = await cluster.masterOf(key);
      return (await master.command('LLEN', `fencing:{${bucketOf(key)}}:waiters:${key}`)) === 1;
    });
    load = new SteadyLoad(apps, keys.slice(1));
    const from = await cluster.masterOf(key);
    const to = (await cluster.masters()).find((one) => one !== from)!;
    const move = await cluster.beginMove(slotOfKey(key), to);
    await renewedAgain(held);
    // One lease here, one there, and both are due: a renewal that is sent alone follows its lease.
    await move.move(`fencing:{${bucketOf(key)}}:lease:${key}`);
    await Promise.all([held, neighbour].map(renewedAgain));
    await move.end();
    for (const { exit, ended, lease } of [held, neighbour]) {
      exit.open();
      expect(await ended).toBe(lease.generation);
    }
    const generations = (await Promise.all(waiting)).map(Number).sort((a, b) => a - b);
    expect(generations[0]).toBeGreaterThan(held.lease.generation);
    expect(generations[1]).toBeGreaterThan(generations[0]!);
    await load.goesOn(10, keys.slice(1));
    await expectSoundness();
  });

  it('a slot that moves under load: calls wait or fail by their type, and resume at the other node', async () => {
    const steady = await startLoad();
    const [key] = keys as [string];
    const from = await cluster.masterOf(key);
    const to = (await cluster.masters()).find((one) => one !== from)!;
    for (const target of [to, from]) {
      const move = await cluster.beginMove(slotOfKey(key), target);
      // The counter leaves; what comes and goes beside it is at both nodes.
      await move.move(`fencing:{${bucketOf(key)}}:generation`);
      await steady.goesOn(5, keys.slice(1));
      await move.end();
      await steady.goesOn(5, keys);
    }
    await expectSoundness();
  });

  it('field report 16: all masters lose everything; generations rise, and who held a lease is refused', async () => {
    const [key] = keys as [string];
    const [old, next] = apps.map((app) => app.get(Reports)) as [Reports, Reports];
    const [started, mayWrite] = [new Gate(), new Gate()];
    const counter = `fencing:{${bucketOf(key)}}:generation`;
    await (await cluster.masterOf(key)).command('SET', counter, Date.now() * 1_000 + 7_200_000_000);
    const oldRun = old
      .rebuild(key, 'old', async () => {
        started.open();
        await mayWrite.wait();
      })
      .catch((error: unknown) => error);
    await started.wait();
    const before = (await bench.fence(key))!.generation;
    await everyMaster('FLUSHALL');
    expect(await next.rebuild(key, 'new')).toBeGreaterThan(before);
    mayWrite.open();
    expect(await oldRun).toBeInstanceOf(StaleGenerationError);
    expect(await bench.report(key)).toBe('new');
    await expectSoundness();
  });

  it('reserve R2: [a, b] against [b, a] on different masters does not deadlock', async () => {
    const [a, b] = keys;
    const runs = Array.from({ length: 20 }, (_, i) =>
      apps[i % 2]!.fencing.run(i % 3 ? [a!, b!] : [b!, a!], { waitMs: 30_000 }, async () => i),
    );
    expect(await Promise.all(runs)).toEqual(runs.map((_, i) => i));
    await expectSoundness();
  });

  describe('field report 14: a reply that is lost changes nothing but time', () => {
    let proxy: TcpProxy;
    let client: Cluster;
    let app: FencedApp;
    let key: string;

    beforeEach(async () => {
      [key] = keys as [string];
      const master = await cluster.masterOf(key);
      proxy = await TcpProxy.start(master.url);
      const behindProxy = { host: '127.0.0.1', port: Number(new URL(proxy.url).port) };
      client = cluster.connect({ natMap: { [`127.0.0.1:${master.port}`]: behindProxy } });
      const fencing = { storeTimeoutMs: 500 };
      app = await startFencedApp({
        leases: redisLeases(client),
        databaseUrl: bench.databaseUrl,
        providers: [Reports],
        fencing,
      });
    });
    afterEach(async () => {
      await app.close();
      client.disconnect();
      await proxy.stop();
    });

    it('of an acquisition, a renewal and a release', async () => {
      const lostAcquire = proxy.swallowReplyOnce(isAcquire);
      const held = await hold(app, key, 3_000);
      await lostAcquire;
      const stored = async () => {
        const name = `fencing:{${bucketOf(key)}}:lease:${key}`;
        return String(await (await cluster.masterOf(key)).command('GET', name));
      };
      expect(await stored()).toBe(`${held.lease.owner} ${held.lease.generation}`);
      expect(await bench.fence(key)).toMatchObject({ generation: held.lease.generation });
      await proxy.swallowReplyOnce(isRenew);
      await eventually(() => held.states.at(-1) === 'held' && held.states.length >= 3, { timeoutMs: 15_000 });
      expect(await stored()).toBe(`${held.lease.owner} ${held.lease.generation}`);
      const lostRelease = proxy.swallowReplyOnce(isRelease);
      held.exit.open();
      await lostRelease;
      expect(await apps[0]!.get(Reports).rebuild(key, 'next')).toBeGreaterThan(held.lease.generation);
      expect(await held.ended).toBe(held.lease.generation);
      await expectSoundness();
    });
  });
});
