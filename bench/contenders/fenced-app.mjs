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

/** The same work for both: one row of its own for each caller. */
export const UPDATE = 'UPDATE bench_row SET value = value + 1 WHERE id = $1';

/**
 * @param {object} options
 * @param {string} options.redisUrl
 * @param {string} options.databaseUrl
 * @param {number} [options.poolSize]
 * @param {any[]} [options.controllers]
 * @param {(plain: DataSource) => any[]} [options.providers]
 */
export async function makeFencedApp({
  redisUrl,
  databaseUrl,
  poolSize = 10,
  controllers = [],
  providers = () => [],
}) {
  const redis = await connect(redisUrl);
  const database = /** @type {const} */ ({ type: 'postgres', url: databaseUrl, poolSize });
  const plain = await new DataSource(database).initialize();
  await plain.query('DROP TABLE IF EXISTS bench_row');
  await plain.query('CREATE TABLE bench_row (id int PRIMARY KEY, value int NOT NULL) WITH (fillfactor = 10)');
  await plain.query('INSERT INTO bench_row SELECT n, 0 FROM generate_series(1, $1::int) n', [ROWS]);

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
    fencing: app.get(FencingService),
    close: async () => {
      await app.close();
      await plain.destroy();
      redis.disconnect();
    },
  };
}
