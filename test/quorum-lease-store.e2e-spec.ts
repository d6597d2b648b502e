import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { quorumLeases } from 'nestjs-fencing/redis';
import { leaseStoreContract } from 'nestjs-fencing/testing';
import { eventually } from './support/gate.js';
import { RedisServer } from './support/redis-server.js';

describe('leases at a quorum of 3 nodes', () => {
  let servers: RedisServer[];

  beforeAll(async () => {
    servers = await Promise.all(Array.from({ length: 3 }, () => RedisServer.start()));
  });
  afterAll(() => Promise.all(servers.map((server) => server.stop())));

  describe('the contract', () => {
    contract(() => servers);
  });
});

describe('leases at a quorum of 5 nodes, one killed and one frozen', () => {
  let servers: RedisServer[];

  beforeAll(async () => {
    servers = await Promise.all(Array.from({ length: 5 }, () => RedisServer.start()));
    await servers[1]!.kill();
    servers[3]!.pause();
  });
  afterAll(async () => {
    servers[3]!.resume();
    await Promise.all(servers.map((server) => server.stop()));
  });

  describe('the contract', () => {
    contract(() => servers);
  });
});

/** The contract of lease stores, with connections of their own for each, as processes have them. */
function contract(serversOf: () => RedisServer[]): void {
  leaseStoreContract({ describe, it }, () => {
    const prefix = `test-${randomUUID()}`;
    const opened: Redis[] = [];
    const connect = (server: RedisServer): Redis => {
      const client = new Redis(server.url);
      client.on('error', () => undefined); // a node that was killed refuses connections
      opened.push(client);
      return client;
    };
    const clients = serversOf().map(connect);
    return {
      open: async () => {
        const mine = serversOf().map(connect);
        const up = () => mine.filter(({ status }) => status === 'ready').length;
        await eventually(() => up() > serversOf().length / 2, { everyMs: 1 });
        return quorumLeases(mine, { prefix, nodeTimeoutMs: 700 });
      },
      lose: async () => {
        const up = clients.filter(({ status }) => status === 'ready');
        await Promise.all(up.map((client) => forget(client, prefix)));
      },
      close: async () => {
        for (const client of opened) client.disconnect();
      },
    };
  });
}

/** Generations run ahead of the clocks by some milliseconds; a restart takes longer than that. */
async function forget(client: Redis, prefix: string): Promise<void> {
  const keys = await client.keys(`${prefix}:*`);
  const counters = keys.filter((key) => key.endsWith(':generation'));
  const issued = counters.length > 0 ? (await client.mget(counters)).map(Number) : [];
  if (keys.length > 0) await client.del(keys);
  const clockUs = async () => {
    const [seconds, us] = await client.time();
    return Number(seconds) * 1_000_000 + Number(us);
  };
  await eventually(async () => (await clockUs()) > Math.max(0, ...issued), { everyMs: 1 });
}
