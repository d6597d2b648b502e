import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, jest } from '@jest/globals';
import type { Cluster, Redis } from 'ioredis';
import { Cluster as Cluster5 } from 'ioredis5';
import type { LeaseStore, WakeHint, Watch } from 'nestjs-fencing';
import { redisLeases } from 'nestjs-fencing/redis';
import { bucketOf } from '../libs/fencing/src/core/buckets.js';
import { startFencedApp } from './support/fenced-app.js';
import { eventually } from './support/gate.js';
import { TcpProxy } from './support/proxy.js';
import { ClusterOfServers, slotOfKey } from './support/redis-cluster.js';

describe('a Redis Cluster', () => {
  let cluster: ClusterOfServers;
  beforeAll(async () => {
    cluster = await ClusterOfServers.start();
  }, 60_000);
  afterAll(() => cluster.stop());

  /** Both majors that the package supports. */
  const CLIENTS = [
    ['6', () => cluster.connect()],
    ['5', () => new Cluster5(cluster.addresses) as unknown as Cluster],
  ] as const;

  describe.each(CLIENTS)('its hints, over ioredis %s', (_, connect) => {
    let prefix: string;
    let clients: Cluster[];
    let mine: LeaseStore;
    let theirs: LeaseStore;
    let key: string;
    let hints: WakeHint[];
    let watch: Watch;

    beforeEach(async () => {
      prefix = `test-${randomUUID()}`;
      clients = [connect(), connect()];
      for (const client of clients) client.on('error', () => undefined);
      [mine, theirs] = clients.map((client) => redisLeases(client, { prefix })) as [LeaseStore, LeaseStore];
      [key] = (await cluster.keysOnAllMasters()) as [string];
      hints = [];
      await mine.acquire({ key, owner: 'a', ttlMs: 60_000, floor: 0 });
      watch = theirs.watch(key, (hint) => hints.push(hint), performance.now());
      await watch.live;
      await standInLine();
    });
    afterEach(async () => {
      watch.stop();
      await Promise.all([mine.close(), theirs.close()]);
      for (const client of clients) client.disconnect();
      await cluster.settled();
      await cluster.replicated();
    }, 40_000);

    const standInLine = async () => {
      const waiter = { id: 'w', forMs: 60_000 };
      expect(await theirs.acquire({ key, owner: 'b', ttlMs: 60_000, floor: 0, waiter })).toMatchObject({
        granted: false,
      });
    };
    const channel = () => `${prefix}:{${bucketOf(key)}}:wake`;
    const listenersAt = async (server: { command(name: string, ...args: string[]): Promise<unknown> }) =>
      Number(((await server.command('PUBSUB', 'SHARDNUMSUB', channel())) as [string, number])[1]);
    /** Whoever listened before is told that hints may have been missed, and hears the next one. */
    const expectToHear = async () => {
      await eventually(() => hints.some(({ waiterId }) => waiterId === undefined), { timeoutMs: 20_000 });
      await eventually(async () => (await listenersAt(await cluster.masterOf(key))) === 1);
      expect(await mine.release({ key, owner: 'a' })).toEqual({ held: true });
      await eventually(() => hints.some(({ waiterId }) => waiterId === 'w'));
    };

    it('are heard at the master of the key, and nowhere else', async () => {
      for (const server of cluster.servers)
        expect(await listenersAt(server)).toBe(server === (await cluster.masterOf(key)) ? 1 : 0);
      expect(await mine.release({ key, owner: 'a' })).toEqual({ held: true });
      await eventually(() => hints.some(({ waiterId }) => waiterId === 'w'));
      expect(hints).toEqual([{ waiterId: 'w', reservedMs: 100 }]);
    });

    it('are heard again after CLUSTER FAILOVER', async () => {
      const master = await cluster.masterOf(key);
      await cluster.failOver(master);
      await expectToHear();
    });

    it('are not looked for at a demoted master, although the node that was asked names it still', async () => {
      const client = clients[1]!;
      const nodes = client.nodes.bind(client);
      let before: unknown = await nodes('master')[0]!.call('CLUSTER', 'SLOTS');
      const call = jest.fn(async (node: Redis, command: string, ...args: string[]) => {
        const answer = before ?? (await node.call(command, ...args));
        before = undefined;
        return answer;
      });
      jest
        .spyOn(client, 'nodes')
        .mockImplementation((role) =>
          nodes(role).map(
            (node) => Object.create(node, { call: { value: call.bind(undefined, node) } }) as Redis,
          ),
        );
      const master = await cluster.masterOf(key);
      await cluster.failOver(master);
      await expectToHear();
      expect(before).toBeUndefined();
      expect(call.mock.calls.length).toBeGreaterThan(1);
    });

    it('are heard again after the slot has moved', async () => {
      const from = await cluster.masterOf(key);
      const to = (await cluster.masters()).find((one) => one !== from)!;
      await (await cluster.beginMove(slotOfKey(key), to)).end();
      await expectToHear();
      expect(await listenersAt(to)).toBe(1);
      await (await cluster.beginMove(slotOfKey(key), from)).end();
    });

    it('are heard again after their connection broke', async () => {
      await (await cluster.masterOf(key)).command('CLIENT', 'KILL', 'TYPE', 'pubsub');
      await expectToHear();
    });

    it('are heard again after their master was frozen and another took over: a request without an answer is enough to look', async () => {
      const master = await cluster.masterOf(key);
      master.pause();
      try {
        await cluster.failedOver(master);
        // The old connections are open, and silent.
        void standInLine().catch(() => undefined);
        await expectToHear();
      } finally {
        master.resume();
      }
    });
  });

  describe('those who wait', () => {
    /** What clients have sent to the masters; what scripts do inside is counted elsewhere. */
    const requests = async () => {
      const stats = await Promise.all(
        cluster.servers.map(async (server) => String(await server.command('INFO', 'commandstats'))),
      );
      const calls = [
        ...stats.join('\n').matchAll(/^cmdstat_(?:evalsha|eval|ssubscribe|cluster\|slots):calls=(\d+)/gm),
      ];
      return calls.reduce((sum, [, count]) => sum + Number(count), 0);
    };

    it.each(['before', 'after'])('do not poll, %s a failover: few requests for each turn', async (when) => {
      const clients = [cluster.connect(), cluster.connect()];
      const prefix = `test-${randomUUID()}`;
      const apps = await Promise.all(
        clients.map((client) => startFencedApp({ leases: redisLeases(client, { prefix }), fence: false })),
      );
      const key = 'report:contended';
      const turns: string[] = [];
      const takeTurns = (count: number) =>
        Promise.all(
          apps.flatMap((app, i) =>
            Array.from({ length: count }, () =>
              app.fencing.run(key, { ttlMs: 10_000, waitMs: 60_000 }, async () => {
                turns.push(`app ${i}`);
                await new Promise((resolve) => setTimeout(resolve, 12));
              }),
            ),
          ),
        );
      await takeTurns(2);
      if (when === 'after') {
        const master = await cluster.masterOf(key);
        await cluster.failOver(master);
        await takeTurns(2);
      }
      turns.length = 0;
      const before = await requests();
      await takeTurns(20);
      expect(turns).toHaveLength(40);
      // A process that kept the key for itself would have its twenty turns in a row.
      expect(turns.filter((turn, i) => i > 0 && turns[i - 1] !== turn).length).toBeGreaterThanOrEqual(20);
      expect(((await requests()) - before) / 40).toBeLessThanOrEqual(4);
      await Promise.all(apps.map((app) => app.close()));
      for (const client of clients) client.disconnect();
    });

    it('hear hints through the natMap of their client', async () => {
      const proxies = new Map<number, TcpProxy>();
      for (const server of cluster.servers) proxies.set(server.port, await TcpProxy.start(server.url));
      const natMap = Object.fromEntries(
        [...proxies].map(([port, { url }]) => [
          `127.0.0.1:${port}`,
          { host: '127.0.0.1', port: Number(new URL(url).port) },
        ]),
      );
      const client = cluster.connect({ natMap });
      const prefix = `test-${randomUUID()}`;
      const store = redisLeases(client, { prefix });
      const key = 'report:1';
      const heard: WakeHint[] = [];
      const watch = store.watch(key, (hint) => heard.push(hint), performance.now());
      await watch.live;
      await store.acquire({ key, owner: 'a', ttlMs: 10_000, floor: 0 });
      const waiter = { id: 'w', forMs: 10_000 };
      await store.acquire({ key, owner: 'b', ttlMs: 10_000, floor: 0, waiter });
      await store.release({ key, owner: 'a' });
      await eventually(() => heard.some(({ waiterId }) => waiterId === 'w'));
      expect(proxies.get((await cluster.masterOf(key)).port)!.count('SSUBSCRIBE')).toBe(1);
      watch.stop();
      await store.close();
      client.disconnect();
      for (const proxy of proxies.values()) await proxy.stop();
    });
  });
});
