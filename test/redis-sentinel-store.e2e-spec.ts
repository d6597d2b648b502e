import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { redisLeases } from 'nestjs-fencing/redis';
import { type LeaseAuthority, leaseStoreContract } from 'nestjs-fencing/testing';
import { type SentinelTrio, startSentinelTrio } from './support/sentinel-trio.js';

describe('leases in Redis behind Sentinel', () => {
  let trio: SentinelTrio;
  beforeAll(async () => {
    trio = await startSentinelTrio();
  });
  afterAll(() => trio.stop());

  const connect = () => {
    const { sentinels, name } = trio;
    // A sentinel that does not answer is asked again soon: the tests wait for it.
    const client = new Redis({ sentinels, name, sentinelRetryStrategy: () => 50, retryStrategy: () => 50 });
    client.on('error', () => undefined);
    return client;
  };
  const authority = (): LeaseAuthority => {
    const prefix = `test-${randomUUID()}`;
    const clients: Redis[] = [];
    const client = () => {
      clients.push(connect());
      return clients.at(-1)!;
    };
    return {
      open: () => redisLeases(client(), { prefix }),
      lose: async () => {
        const own = client();
        const keys = await own.keys(`${prefix}:*`);
        if (keys.length > 0) await own.del(keys);
      },
      close: async () => {
        for (const one of clients) await one.quit();
      },
    };
  };

  describe('the contract', () => {
    leaseStoreContract({ describe, it }, authority);
  });

  describe('the contract, on the replica that became the master', () => {
    beforeAll(async () => {
      await trio.master.kill();
      await trio.failedOver();
      const client = connect();
      expect(String(await client.call('ROLE'))).toContain('master');
      expect(client.stream.remotePort).toBe(trio.replica.port);
      await client.quit();
    });
    leaseStoreContract({ describe, it }, authority);
  });
});
