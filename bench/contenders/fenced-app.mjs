// A Nest application with the fence, and a second DataSource on the same database that knows nothing of it.
import 'reflect-metadata';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { TypeOrmModule } from '@nestjs/typeorm';
import { DataSource } from 'typeorm';
import { FencingModule, FencingService } from '../../libs/fencing/dist/esm/index.js';
import { redisLeases } from '../../libs/fencing/dist/esm/redis/index.js';
import { typeOrmFence } from '../../libs/fencing/dist/esm/typeorm/index.js';
import { connect } from './client.mjs';

const ROWS = 100;

/**
 * A table with a row for each caller, and room for its new versions beside it.
 * @param {DataSource} plain @param {string} table @param {number} [rows]
 */
export async function makeRows(plain, table, rows = ROWS) {
  await plain.query(`DROP TABLE IF EXISTS ${table}`);
  await plain.query(
    `CREATE TABLE ${table} (id int PRIMARY KEY, value int NOT NULL, generation bigint NOT NULL DEFAULT 0) WITH (fillfactor = 10)`,
  );
  await plain.query(`INSERT INTO ${table} SELECT n, 0, 0 FROM generate_series(1, $1::int) n`, [rows]);
}

/** The same work for both: one row of its own for each caller. */
export const UPDATE = 'UPDATE bench_row SET value = value + 1 WHERE id = $1';

/**
 * @param {object} options
 * @param {string} options.redisUrl
 * @param {string} options.databaseUrl
 * @param {number} [options.poolSize]
 * @param {any[]} [options.entities]
 * @param {any[]} [options.controllers]
 * @param {(plain: DataSource) => any[]} [options.providers]
 */
export async function makeFencedApp({
  redisUrl,
  databaseUrl,
  poolSize = 10,
  entities = [],
  controllers = [],
  providers = () => [],
}) {
  const redis = await connect(redisUrl);
  const database = /** @type {const} */ ({ type: 'postgres', url: databaseUrl, poolSize, entities });
  const plain = await new DataSource(database).initialize();
  await makeRows(plain, 'bench_row');

  class BenchModule {}
  Module({
    imports: [
      TypeOrmModule.forRoot({ ...database, retryAttempts: 0 }),
      FencingModule.forRoot({ leases: redisLeases(redis), fence: typeOrmFence({ ensureSchema: true }) }),
    ],
    controllers,
    providers: providers(plain),
  })(BenchModule);
  const app = await NestFactory.create(BenchModule, { logger: ['error', 'warn'] });
  await app.init();
  return {
    app,
    plain,
    /** What the fence and its repositories go through. */
    fencedData: app.get(DataSource),
    fencing: app.get(FencingService),
    close: async () => {
      await app.close();
      await plain.destroy();
      redis.disconnect();
    },
  };
}
