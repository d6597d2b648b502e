import { rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { Redis } from 'ioredis';
import { freePort, startRedis, temporaryFolder } from '../../scripts/services.mjs';
import { eventually } from './gate.js';
import { RedisServer } from './redis-server.js';

/** A master, its replica, and one sentinel that is enough to fail over. */
export interface SentinelTrio {
  readonly master: RedisServer;
  readonly replica: RedisServer;
  /** What an ioredis client needs: `new Redis({ sentinels, name })`. */
  readonly sentinels: { host: string; port: number }[];
  readonly name: string;
  /** Resolves once the replica has become the master, for example after `master.kill()`. */
  failedOver(): Promise<void>;
  stop(): Promise<void>;
}

/**
 * The sentinel calls the master dead after `downAfterMs` of silence. Replication is asynchronous, as everywhere: what the
 * master acknowledged last may be lost.
 */
export async function startSentinelTrio({ downAfterMs = 500 } = {}): Promise<SentinelTrio> {
  const name = 'fencing';
  const dir = temporaryFolder('sentinel');
  const port = await freePort();
  const started: { stop(): Promise<void> }[] = [];
  const stop = async () => {
    await Promise.all(started.map((server) => server.stop()));
    await rm(dir, { recursive: true, force: true });
  };
  try {
    const master = await RedisServer.start(['--repl-diskless-sync-delay', '0']);
    started.push(master);
    const replica = await RedisServer.start(['--replicaof', '127.0.0.1', String(master.port)]);
    started.push(replica);
    await eventually(async () =>
      String(await replica.command('INFO', 'replication')).includes('master_link_status:up'),
    );

    const config = path.join(dir, 'sentinel.conf'); // the sentinel keeps its state in it
    await writeFile(
      config,
      [
        'sentinel resolve-hostnames no',
        `sentinel monitor ${name} 127.0.0.1 ${master.port} 1`,
        `sentinel down-after-milliseconds ${name} ${downAfterMs}`,
        `sentinel failover-timeout ${name} 3000`,
        '',
      ].join('\n'),
    );
    started.push(await startRedis({ port, dir, config, args: ['--sentinel'] }));

    const ask = async (...args: string[]) => {
      const client = new Redis(port, { lazyConnect: true, retryStrategy: () => null });
      try {
        await client.connect();
        return await client.call('SENTINEL', ...args);
      } finally {
        client.disconnect();
      }
    };
    // A sentinel that has not met the replica, or not heard it answer, cannot promote it.
    await eventually(async () => {
      const replicas = JSON.stringify(await ask('REPLICAS', name));
      return replicas.includes(`"${replica.port}"`) && replicas.includes('"master-link-status","ok"');
    });
    return {
      master,
      replica,
      sentinels: [{ host: '127.0.0.1', port }],
      name,
      failedOver: async () => {
        await eventually(
          async () =>
            String(await ask('GET-MASTER-ADDR-BY-NAME', name)) === `127.0.0.1,${replica.port}` &&
            String(await replica.command('ROLE')).startsWith('master'),
          { timeoutMs: 20_000 },
        );
      },
      stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}
