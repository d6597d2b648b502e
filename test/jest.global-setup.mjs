// One PostgreSQL and one Redis for the whole run; each Jest worker gets a database and a Redis index of its own.
import { chmodSync, mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import pg from 'pg';
import {
  endServersOnSignals,
  findOrStartPostgres,
  findOrStartRedis,
  findRedisServer,
  installRedisServer,
  REDIS_HELP,
} from '../scripts/services.mjs';
import globalTeardown, { services } from './jest.global-teardown.mjs';

/** @param {import('jest').Config} globalConfig */
export default async function globalSetup({ maxWorkers }) {
  // Throw-away servers, also those of fault tests, keep their files here; the folder goes as a whole.
  const folder = mkdtempSync(path.join(os.tmpdir(), 'fencing-test-'));
  chmodSync(folder, 0o755);
  process.env.SERVICES_TMP = folder;
  process.once('exit', () => rmSync(folder, { recursive: true, force: true, maxRetries: 3 }));
  endServersOnSignals();
  try {
    const postgres = await findOrStartPostgres({ settings: { max_connections: 300 } });
    services.push(postgres);
    process.env.TEST_DATABASE_URL = postgres.url;
    if (postgres.bin) process.env.PG_BIN = postgres.bin; // for servers that a test starts itself

    const server = findRedisServer() ?? (await installRedisServer());
    if (server) process.env.REDIS_SERVER = server;
    const redis = await findOrStartRedis();
    if (!redis) throw new Error(REDIS_HELP);
    services.push(redis);
    process.env.TEST_REDIS_URL = redis.url;

    await createDatabases(postgres.url, Number(maxWorkers));
  } catch (error) {
    await globalTeardown(); // Jest does not call it after a failed set-up
    throw error;
  }
}

/** @param {string} url @param {number} workers */
async function createDatabases(url, workers) {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    for (let worker = 1; worker <= workers; worker++) {
      await client.query(`DROP DATABASE IF EXISTS fencing_test_${worker} WITH (FORCE)`);
      await client.query(`CREATE DATABASE fencing_test_${worker} TEMPLATE template0`);
    }
  } finally {
    await client.end();
  }
}
