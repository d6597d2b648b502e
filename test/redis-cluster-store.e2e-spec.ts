import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, jest } from '@jest/globals';
import { Logger } from '@nestjs/common';
import { type Cluster, type ClusterOptions, Redis } from 'ioredis';
import { Cluster as Cluster5 } from 'ioredis5';
import {
  type Diagnosis,
  FencingConfigError,
  type LeaseSnapshot,
  type LeaseStore,
  type WakeHint,
} from 'nestjs-fencing';
import { redisLeases } from 'nestjs-fencing/redis';
import { HOSTILE_KEYS, leaseStoreContract } from 'nestjs-fencing/testing';
import { BUCKETS, bucketOf } from '../libs/fencing/src/core/buckets.js';
import type { Examination } from '../libs/fencing/src/core/diagnosis.js';
import { slotOf } from '../libs/fencing/src/redis/cluster/cluster-slots.js';
import { startFencedApp } from './support/fenced-app.js';
import { eventually } from './support/gate.js';
import { ClusterOfServers, keysOfAllBuckets } from './support/redis-cluster.js';

describe('leases in a Redis Cluster', () => {
  let cluster: ClusterOfServers;
  let clients: Cluster[];
  beforeAll(async () => {
    cluster = await ClusterOfServers.start();
  }, 60_000);
  afterAll(() => cluster.stop());
  beforeEach(() => {
    clients = [];
  });
  afterEach(async () => {
    for (const client of clients) client.disconnect();
  });

  /** Both majors that the package supports; their types differ, what the package uses of them does not. */
  const connectors = {
    '6': (options: ClusterOptions = {}) => cluster.connect(options),
    '5': (options: ClusterOptions = {}) => {
      const client = new Cluster5(cluster.addresses, options as object) as unknown as Cluster;
      client.on('error', () => undefined);
      return client;
    },
  };
  const connect = (options: ClusterOptions = {}, version: keyof typeof connectors = '6') => {
    clients.push(connectors[version](options));
    return clients.at(-1)!;
  };
  const onEveryMaster = async (...command: [string, ...string[]]) =>
    Promise.all((await cluster.masters()).map((master) => master.command(...command)));

  describe.each(['6', '5'] as const)('the contract, over ioredis %s', (version) => {
    leaseStoreContract({ describe, it }, () => {
      const prefix = `test-${randomUUID()}`;
      return {
        open: () => redisLeases(connect({}, version), { prefix }),
        lose: async () => {
          for (const master of await cluster.masters())
            for (const key of (await master.command('KEYS', `${prefix}:*`)) as string[])
              await master.command('DEL', key);
        },
      };
    });
  });

  describe('requests', () => {
    const evaluations = async () => {
      const stats = (await onEveryMaster('INFO', 'commandstats')).join('\n');
      return [...stats.matchAll(/^cmdstat_(?:evalsha|eval):calls=(\d+)/gm)].reduce(
        (sum, [, n]) => sum + Number(n),
        0,
      );
    };

    it('that are made together go to each bucket in one, whatever node serves it', async () => {
      const store = redisLeases(connect(), { prefix: `test-${randomUUID()}` });
      const keys = keysOfAllBuckets(2);
      const holds = keys.map((key, i) => ({ key, owner: `owner-${i}`, ttlMs: i % 2 ? 20_000 : 30_000 }));
      await store.check();
      await store.acquire({ key: 'first', owner: 'a', ttlMs: 1_000, floor: 0 });
      await onEveryMaster('CONFIG', 'RESETSTAT');
      const grants = await Promise.all(holds.map((hold) => store.acquire({ ...hold, floor: 0 })));
      expect(grants.filter(({ granted }) => granted)).toHaveLength(2 * BUCKETS);
      expect(await evaluations()).toBe(BUCKETS);
      expect(await store.renew(holds)).toEqual(holds.map(() => true));
      expect(await evaluations()).toBe(2 * BUCKETS);
      const others = holds.map((hold, i) => ({ ...hold, owner: i % 3 ? hold.owner : 'somebody else' }));
      expect(await store.renew(others)).toEqual(holds.map((_, i) => i % 3 !== 0));
      const ends = await Promise.all(holds.map((hold) => store.release(hold)));
      expect(ends).toEqual(holds.map(() => ({ held: true })));
    });

    it('work on at every node that has forgotten the script', async () => {
      const store = redisLeases(connect(), { prefix: `test-${randomUUID()}` });
      for (const key of await cluster.keysOnAllMasters()) {
        const hold = { key, owner: 'a', ttlMs: 10_000 };
        await onEveryMaster('SCRIPT', 'FLUSH');
        expect(await store.acquire({ ...hold, floor: 0 })).toMatchObject({ granted: true });
        await onEveryMaster('SCRIPT', 'FLUSH');
        expect(await store.renew([hold])).toEqual([true]);
        await onEveryMaster('SCRIPT', 'FLUSH');
        expect(await store.inspect(key)).toMatchObject({ owner: 'a' });
        expect(await store.release(hold)).toEqual({ held: true });
      }
    });

    it('read at the master, also where the client reads at replicas', async () => {
      const client = connect({ scaleReads: 'slave' });
      const store = redisLeases(client, { prefix: `test-${randomUUID()}` });
      // A replica that has only just come is not among them yet.
      await eventually(() => {
        client.refreshSlotsCache();
        return client.nodes('slave').length === 3;
      });
      const [key] = (await cluster.keysOnAllMasters()) as [string];
      const replica = await cluster.replicaOf(await cluster.masterOf(key));
      await store.acquire({ key, owner: 'a', ttlMs: 10_000, floor: 0 });
      replica.pause();
      try {
        let seen: LeaseSnapshot | undefined;
        void store.inspect(key).then((snapshot) => (seen = snapshot));
        // ioredis gives a replica up after ten seconds, and asks the master.
        await eventually(() => seen, { timeoutMs: 5_000 });
        expect(seen).toMatchObject({ owner: 'a' });
      } finally {
        replica.resume();
      }
    });

    it('field report 17: a master at its memory limit refuses as unavailable, never as busy; the others grant', async () => {
      const store = redisLeases(connect(), { prefix: `test-${randomUUID()}` });
      const [full, ...others] = (await cluster.keysOnAllMasters()) as [string, ...string[]];
      const master = await cluster.masterOf(full);
      const take = (key: string) => store.acquire({ key, owner: 'a', ttlMs: 10_000, floor: 0 });
      await master.command('CONFIG', 'SET', 'maxmemory', '1');
      await expect(take(full)).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
      for (const key of others) expect(await take(key)).toMatchObject({ granted: true });
      await master.command('CONFIG', 'SET', 'maxmemory', '0');
      expect(await take(full)).toMatchObject({ granted: true });
    });
  });

  describe('the keys of one lease share a slot', () => {
    const prefixes: [string, ClusterOptions][] = [
      ['no keyPrefix', {}],
      ['a keyPrefix', { keyPrefix: 'app:' }],
      ['the keyPrefix of redisOptions', { redisOptions: { keyPrefix: 'app:' } }],
      ['a keyPrefix with braces', { keyPrefix: '{app}:' }],
      ['a keyPrefix with half a brace', { keyPrefix: 'a{p}p{' }],
    ];

    it.each(prefixes)(
      'with %s: every key is leased, waited for and handed on by a hint',
      async (_, options) => {
        const prefix = `test-${randomUUID()}`;
        const [mine, theirs] = [connect(options), connect(options)].map((client) =>
          redisLeases(client, { prefix }),
        ) as [LeaseStore, LeaseStore];
        for (const key of [...HOSTILE_KEYS, '{}', '{}{x}', 'ü{', 'x}']) {
          const hold = { key, owner: 'a', ttlMs: 10_000 };
          const hints: WakeHint[] = [];
          const watch = theirs.watch(key, (hint) => hints.push(hint), performance.now());
          await watch.live;
          expect(await mine.acquire({ ...hold, floor: 0 })).toMatchObject({ granted: true });
          const waiter = { id: 'w', forMs: 10_000 };
          expect(await theirs.acquire({ ...hold, owner: 'b', floor: 0, waiter })).toMatchObject({
            granted: false,
          });
          const names = (await onEveryMaster('KEYS', '*')).flat() as string[];
          const ours = names.filter((name) => name.includes(`${prefix}:{${bucketOf(key)}}`));
          expect(ours).toHaveLength(3);
          expect(new Set(ours.map(slotOf)).size).toBe(1);
          expect(await mine.renew([hold])).toEqual([true]);
          expect(await mine.release(hold)).toEqual({ held: true });
          await eventually(() => hints.some(({ waiterId }) => waiterId === 'w'));
          await theirs.withdraw(key, 'w');
          watch.stop();
        }
        await Promise.all([mine.close(), theirs.close()]);
      },
    );

    it.each(['a{}b:', '{}'])('the keyPrefix %j, which would scatter them, is refused', (keyPrefix) => {
      expect(() => redisLeases(connect({ keyPrefix, lazyConnect: true }))).toThrow(FencingConfigError);
      expect(() => redisLeases(connect({ keyPrefix, lazyConnect: true }))).toThrow(/empty braces/);
    });
  });

  it('computes slots as Redis does', async () => {
    const [master] = await cluster.masters();
    for (const name of ['123456789', 'a', '', 'ä😀', 'x{tag}y', '{}x', 'x{a}{b}', '}{a}', '{a', 'a{{b}}'])
      expect([name, slotOf(name)]).toEqual([name, await master!.command('CLUSTER', 'KEYSLOT', name)]);
  });

  describe('the check at boot, and the diagnosis', () => {
    it('have nothing to say of a cluster that is well', async () => {
      expect(await redisLeases(connect()).check()).toEqual([]);
    });

    it('name the node that a finding is about', async () => {
      const [master] = await cluster.masters();
      await master!.command('CONFIG', 'SET', 'maxmemory-policy', 'allkeys-lru');
      try {
        const found = await redisLeases(connect()).check();
        expect(found).toHaveLength(1);
        expect(found[0]!.problem).toMatch(`Node 127.0.0.1:${master!.port}: Redis evicts keys`);
      } finally {
        await master!.command('CONFIG', 'SET', 'maxmemory-policy', 'noeviction');
      }
    });

    it('tell of a node that does not answer, and of the others what they say', async () => {
      const store = redisLeases(connect()) as LeaseStore & { diagnose(): Promise<Examination> };
      await store.check();
      const [frozen, other] = await cluster.masters();
      frozen!.pause();
      try {
        const found = await store.check();
        expect(found.map(({ problem }) => problem)).toEqual([
          expect.stringMatching(`^Node 127.0.0.1:${frozen!.port} of the cluster does not answer`),
        ]);
        const { facts } = await store.diagnose();
        expect(facts).toMatchObject({ 'redis.masters': 3, [`redis 127.0.0.1:${other!.port}.replicas`]: '1' });
      } finally {
        frozen!.resume();
        await cluster.settled();
      }
    });

    it('let an application start while a master is down, with a warning that names it', async () => {
      const masters = await cluster.masters();
      // Not the one that the boot measures a request at.
      const measured = await cluster.masterOf('nestjs-fencing/boot');
      const frozen = masters.find((one) => one !== measured)!;
      const client = connect();
      await client.ping();
      const warnings = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => undefined);
      frozen.pause();
      try {
        const app = await startFencedApp({ leases: redisLeases(client), fence: false });
        await app.close();
        const told = warnings.mock.calls.map(([message]) => String(message)).join('\n');
        expect(told).toMatch(`Node 127.0.0.1:${frozen.port} of the cluster does not answer`);
      } finally {
        frozen.resume();
        warnings.mockRestore();
        await cluster.settled();
      }
    });

    it('the doctor finds all masters by one node', async () => {
      const [master, other] = await cluster.masters();
      await other!.command('CONFIG', 'SET', 'maxmemory-policy', 'volatile-lru');
      try {
        const { stdout } = await doctor(master!.url);
        const { findings, facts } = JSON.parse(stdout) as Diagnosis;
        const problems = findings.map(({ about, problem }) => `${about}: ${problem}`).join('\n');
        expect(problems).toMatch(`redis: Node 127.0.0.1:${other!.port}: Redis evicts keys`);
        expect(problems).toMatch(`redis 127.0.0.1:${other!.port}: This Redis keeps nothing on disk`);
        expect(facts).toMatchObject({
          'redis.masters': 3,
          'redis.requireFullCoverage': 'no',
          [`redis 127.0.0.1:${master!.port}.evictionPolicy`]: 'noeviction',
        });
      } finally {
        await other!.command('CONFIG', 'SET', 'maxmemory-policy', 'noeviction');
      }
    });

    it('refuse a client that knows one node only', async () => {
      const [master] = await cluster.masters();
      const client = new Redis(master!.url);
      await expect(redisLeases(client).check()).rejects.toThrow(/is a node of a cluster.*new Cluster\(/);
      client.disconnect();
    });

    it('refuse to wait for replicas: a Cluster client cannot', () => {
      expect(() => redisLeases(connect({ lazyConnect: true }), { replicas: { min: 1 } })).toThrow(
        FencingConfigError,
      );
    });
  });
});

/** `nestjs-fencing doctor --redis <url> --json`, whatever its exit code. */
async function doctor(url: string): Promise<{ stdout: string }> {
  const file = (name: string) => fileURLToPath(new URL(name, import.meta.url));
  const main = file('../libs/fencing/src/cli/main.ts');
  const args = ['--import', file('./support/swc-loader.mjs'), main, 'doctor', '--redis', url, '--json'];
  const run = promisify(execFile)(process.execPath, args, { cwd: file('..'), timeout: 60_000 });
  return run.catch((error: unknown) => error as { stdout: string });
}
