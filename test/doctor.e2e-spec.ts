import { execFile } from 'node:child_process';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import type { Diagnosis } from 'nestjs-fencing';
import { quorumLeases, redisLeases } from 'nestjs-fencing/redis';
import { fencingMigrations, GenerationColumn } from 'nestjs-fencing/typeorm';
import { Column, DataSource, Entity, PrimaryColumn } from 'typeorm';
import { diagnosePostgres } from '../libs/fencing/src/typeorm/diagnose-postgres.js';
import { conclude } from '../libs/fencing/src/core/diagnosis.js';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { freshDatabase, PostgresServer } from './support/postgres-server.js';
import { RedisServer } from './support/redis-server.js';

const root = fileURLToPath(new URL('..', import.meta.url));

/** Runs `nestjs-fencing doctor` with these arguments. */
function doctor(...args: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  const loader = path.join(root, 'test', 'support', 'swc-loader.mjs');
  const main = path.join(root, 'libs', 'fencing', 'src', 'cli', 'main.ts');
  return new Promise((resolve) => {
    execFile(
      process.execPath,
      ['--import', loader, main, 'doctor', ...args],
      { cwd: root, timeout: 60_000 },
      (error, stdout, stderr) => resolve({ code: error ? Number(error.code) : 0, stdout, stderr }),
    );
  });
}
const diagnose = async (...args: string[]): Promise<Diagnosis & { code: number }> => {
  const { code, stdout, stderr } = await doctor(...args, '--json');
  if (stdout === '') throw new Error(stderr);
  return { ...(JSON.parse(stdout) as Diagnosis), code };
};
const problems = ({ findings }: Diagnosis) =>
  findings.map(({ severity, problem }) => `${severity}: ${problem}`).join('\n');

@Entity('watched_report')
class WatchedReport {
  @PrimaryColumn()
  id!: string;
  @Column({ default: '' })
  text!: string;
  @GenerationColumn()
  generation!: number;
}

describe('nestjs-fencing doctor', () => {
  const servers: { stop(): Promise<void> }[] = [];
  let sound: { redis: RedisServer; postgres: PostgresServer };
  let wrong: { redis: RedisServer; replica: RedisServer; postgres: PostgresServer };

  beforeAll(async () => {
    const keep = <T extends { stop(): Promise<void> }>(server: T): T => (servers.push(server), server);
    const [a, b, c, d] = await Promise.all([
      RedisServer.start(['--appendonly', 'yes']).then(keep),
      RedisServer.start([
        '--maxmemory',
        '100mb',
        '--maxmemory-policy',
        'allkeys-lru',
        '--timeout',
        '60',
      ]).then(keep),
      PostgresServer.start({ fsync: 'on', synchronous_commit: 'on' }).then(keep),
      PostgresServer.start({
        fsync: 'off',
        synchronous_commit: 'off',
        default_transaction_isolation: 'serializable',
        statement_timeout: 5_000,
        idle_session_timeout: 600_000,
      }).then(keep),
    ]);
    const replica = keep(await RedisServer.start(['--replicaof', '127.0.0.1', String(b.port)]));
    sound = { redis: a, postgres: c };
    wrong = { redis: b, replica, postgres: d };
    const dataSource = new DataSource({ type: 'postgres', url: c.url, migrations: fencingMigrations });
    await dataSource.initialize();
    await dataSource.runMigrations();
    await dataSource.destroy();
  }, 60_000);
  afterAll(() => Promise.all(servers.map((server) => server.stop())));

  it('finds nothing on servers that are set up well, and ends with 0', async () => {
    const found = await diagnose('--redis', sound.redis.url, '--postgres', sound.postgres.url);
    expect(problems(found)).toBe('');
    expect(found.code).toBe(0);
    expect(found.facts).toMatchObject({
      'redis.evictionPolicy': 'noeviction',
      'redis.appendonly': 'yes',
      'redis.role': 'master',
      'postgres.synchronous_commit': 'on',
      'postgres.isStandby': false,
      'clocks.apartMs': expect.any(Number),
    });
  });

  it('names what is wrong in a Redis, with consequence and fix; warnings end with 1', async () => {
    const found = await diagnose('--redis', wrong.redis.url);
    expect(problems(found)).toMatch(/warning: Redis evicts keys .*allkeys-lru/);
    expect(problems(found)).toMatch(/note: This Redis keeps nothing on disk/);
    expect(problems(found)).toMatch(/note: Redis closes connections that are idle for 60 s/);
    for (const { consequence, fix } of found.findings) expect([consequence, fix]).not.toContain('');
    expect(found.code).toBe(1);
    const text = await doctor('--redis', wrong.redis.url);
    expect(text.code).toBe(1);
    expect(text.stdout).toMatch(
      /^WARNING \(redis\): Redis evicts keys[^]*Fix: Set maxmemory-policy to noeviction/,
    );
  });

  it('names what is wrong in a PostgreSQL, the worst first; errors end with 2', async () => {
    const found = await diagnose('--postgres', wrong.postgres.url);
    expect(problems(found)).toMatch(/error: fsync is off/);
    expect(problems(found)).toMatch(/error: .*fencingMigrations/);
    expect(problems(found)).toMatch(/warning: synchronous_commit is off/);
    expect(problems(found)).toMatch(/warning: default_transaction_isolation is 'serializable'/);
    expect(problems(found)).toMatch(/note: .*5000 ms \(statement_timeout\)/);
    expect(problems(found)).toMatch(/note: .*600000 ms \(idle_session_timeout\)/);
    const order = found.findings.map(({ severity }) => ['error', 'warning', 'note'].indexOf(severity));
    expect(order).toEqual([...order].sort());
    expect(found.code).toBe(2);
  });

  it('says nothing of clocks where no server told its own', async () => {
    const { facts } = await diagnose('--redis', 'redis://127.0.0.1:1');
    expect(facts).toEqual({});
  });

  it('a replica, a server without scripts and one that is not there are errors', async () => {
    expect(problems(await diagnose('--redis', wrong.replica.url))).toMatch(/error: This Redis is a replica/);
    await sound.redis.command('ACL', 'SETUSER', 'weak', 'on', '>secret', '~*', '+@all', '-@scripting');
    const weak = new URL(sound.redis.url);
    [weak.username, weak.password] = ['weak', 'secret'];
    const refused = await diagnose('--redis', weak.href);
    expect(problems(refused)).toMatch(/error: Redis does not allow this user to run scripts/);
    const missing = await diagnose(
      '--redis',
      'redis://127.0.0.1:1',
      '--postgres',
      'postgres://127.0.0.1:1/none',
    );
    expect(missing.findings.filter(({ severity }) => severity === 'error')).toHaveLength(2);
    expect(problems(missing).match(/ECONNREFUSED 127\.0\.0\.1:1$/gm)).toHaveLength(2); // not only "Connection is closed."
    expect([refused.code, missing.code]).toEqual([2, 2]);
  });

  it('says how it is called, and that its exit code tells the severity', async () => {
    const help = await doctor('--help');
    expect(help.code).toBe(0);
    expect(help.stdout).toMatch(/exit code: 0 nothing to do, 1 warnings, 2 errors/);
    for (const args of [[], ['--what'], ['extra']])
      expect(await doctor(...args)).toMatchObject({
        code: 2,
        stdout: '',
        stderr: expect.stringMatching(/usage/),
      });
  });
});

describe('FencingService.diagnose', () => {
  const closing: (() => Promise<unknown>)[] = [];
  afterEach(async () => {
    for (const close of closing.splice(0).reverse()) await close();
  });
  const app = async (leases: Parameters<typeof startFencedApp>[0] = {}): Promise<FencedApp> => {
    const database = await freshDatabase();
    closing.push(() => database.drop());
    const started = await startFencedApp({ databaseUrl: database.url, entities: [WatchedReport], ...leases });
    closing.push(() => started.close());
    return started;
  };

  it('knows the triggers that entities miss, the pool, and the servers', async () => {
    const { fencing } = await app({ poolSize: 7 });
    const found = await fencing.diagnose();
    expect(problems(found)).toMatch(/warning: WatchedReport has a @GenerationColumn\(\) and no trigger/);
    expect(found.facts).toMatchObject({ 'postgres.poolSize': 7, 'redis.role': 'master' });
    expect(found.facts['clocks.apartMs']).toBeLessThan(5_000);
  });

  it('a pool that the server cannot serve is a warning', async () => {
    const { fencing } = await app({ poolSize: 5_000 });
    expect(problems(await fencing.diagnose())).toMatch(
      /warning: The pool of one process may open 5000 connections/,
    );
  });

  it('a lease store that does not answer is a finding, not a rejection', async () => {
    const redis = new Redis('redis://127.0.0.1:1', { retryStrategy: () => null, lazyConnect: true });
    redis.on('error', () => undefined);
    const { fencing } = await app({ leases: redisLeases(redis) });
    expect(problems(await fencing.diagnose())).toMatch(/error: The lease store is unavailable/);
  });

  it('looks at each node of a quorum', async () => {
    const nodes = await Promise.all([1, 2, 3].map(() => RedisServer.start()));
    const clients = nodes.map((node) => new Redis(node.url));
    closing.push(async () => {
      for (const client of clients) client.disconnect();
      await Promise.all(nodes.map((node) => node.stop()));
    });
    const { fencing } = await app({ leases: quorumLeases(clients) });
    const { facts, findings } = await fencing.diagnose();
    expect(facts).toMatchObject({ 'quorum.nodes': 3, 'node 3: redis.role': 'master' });
    expect(findings.map(({ about }) => about)).toContain('node 2');
  });
});

describe('what cannot be set up here', () => {
  it('a pooler is seen by the process that it names', async () => {
    const query = async (text: string) =>
      text.includes('pg_backend_pid')
        ? [{ clockMs: String(Date.now()), pid: 42, isStandby: true, connections: 1, replicas: 2 }]
        : [];
    const seen = await diagnosePostgres({ query: query as never, processId: 7 });
    expect(problems(seen)).toMatch(/A connection pooler .* stands between/);
    expect(problems(seen)).toMatch(/error: This PostgreSQL is a standby/);
    const direct = await diagnosePostgres({ query: query as never, processId: 42 });
    expect(problems(direct)).not.toMatch(/pooler/);
  });

  it('clocks that are far apart are a warning that names both', () => {
    const none = { findings: [], facts: {} };
    const found = conclude({
      redis: { ...none, clockAheadMs: -4_000 },
      postgres: { ...none, clockAheadMs: 3_000 },
    });
    expect(problems(found)).toBe('warning: The clock of postgres is 7000 ms ahead of that of redis.');
    expect(conclude({ redis: { ...none, clockAheadMs: 4_000 } }).findings).toEqual([]);
  });
});
