import { Redis } from 'ioredis';
import pg from 'pg';
import { eventually } from './gate.js';
import { freshDatabase, PostgresServer } from './postgres-server.js';
import { RedisServer } from './redis-server.js';
import { startSentinelTrio } from './sentinel-trio.js';

describe('RedisServer', () => {
  let server: RedisServer;
  beforeEach(async () => {
    server = await RedisServer.start(['--maxmemory', '50mb']);
  });
  afterEach(() => server.stop());

  it('comes back on its port with its data, with none, or with an old dump', async () => {
    const { url, pid } = server;
    await server.command('SET', 'a', 'old');
    const dump = await server.saveDump();
    await server.command('SET', 'a', 'new');
    await server.restart();
    expect(server.url).toBe(url);
    expect(server.pid).not.toBe(pid);
    expect(await server.command('GET', 'a')).toBe('new');
    await server.restart({ empty: true });
    expect(await server.command('DBSIZE')).toBe(0);
    await server.kill();
    await expect(server.command('PING')).rejects.toThrow();
    await server.restart({ dump });
    expect(await server.command('GET', 'a')).toBe('old');
    expect(await server.command('CONFIG', 'GET', 'maxmemory')).toContain(String(50 * 1024 * 1024));
  });

  it('can be frozen and thawed, and ended or restarted while frozen', async () => {
    const client = new Redis(server.url);
    await client.set('a', 1);
    server.pause();
    const answer = client.get('a');
    const patience = new Promise((resolve) => setTimeout(resolve, 100, 'no answer'));
    expect(await Promise.race([answer, patience])).toBe('no answer');
    server.resume();
    expect(await answer).toBe('1');
    client.disconnect();
    server.pause();
    await server.restart();
    expect(await server.command('GET', 'a')).toBe('1');
    server.pause();
  });
});

describe('startSentinelTrio', () => {
  it('fails over to the replica, and a Sentinel client follows', async () => {
    const trio = await startSentinelTrio();
    const client = new Redis({ sentinels: trio.sentinels, name: trio.name, role: 'master' });
    client.on('error', () => undefined);
    try {
      await client.set('a', 1);
      await eventually(async () => (await trio.replica.command('GET', 'a')) === '1');
      await trio.master.kill();
      await trio.failedOver();
      await eventually(async () => (await client.set('a', 2)) === 'OK');
      expect(await trio.replica.command('GET', 'a')).toBe('2');
    } finally {
      client.disconnect();
      await trio.stop();
    }
  });
});

describe('PostgresServer', () => {
  it('keeps what was committed over a restart and a crash', async () => {
    const server = await PostgresServer.start({ max_connections: 20 });
    const query = async (sql: string): Promise<unknown[]> => {
      const client = new pg.Client({ connectionString: server.url });
      await client.connect();
      try {
        return (await client.query(sql)).rows as unknown[];
      } finally {
        await client.end();
      }
    };
    try {
      const { url } = server;
      expect(await query('SHOW max_connections')).toEqual([{ max_connections: '20' }]);
      await query('CREATE TABLE kept (id int); INSERT INTO kept VALUES (1)');
      await server.restart();
      await query('INSERT INTO kept VALUES (2)');
      await server.shutDown('immediate');
      await expect(query('SELECT 1')).rejects.toThrow('ECONNREFUSED');
      await server.restart();
      expect(server.url).toBe(url);
      expect(await query('SELECT id FROM kept ORDER BY id')).toEqual([{ id: 1 }, { id: 2 }]);
    } finally {
      await server.stop();
    }
  });
});

describe('freshDatabase', () => {
  it('is empty, another one each time, and goes even while somebody is connected', async () => {
    const [one, two] = await Promise.all([freshDatabase(), freshDatabase()]);
    expect(one.name).not.toBe(two.name);
    const client = new pg.Client({ connectionString: one.url });
    client.on('error', () => undefined);
    await client.connect();
    const { rows } = await client.query(`SELECT count(*)::int FROM pg_tables WHERE schemaname = 'public'`);
    expect(rows).toEqual([{ count: 0 }]);
    await Promise.all([one.drop(), two.drop()]);
    await expect(client.query('SELECT 1')).rejects.toThrow();
    await client.end();
  });
});
