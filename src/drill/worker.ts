import 'reflect-metadata';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { TypeOrmModule } from '@nestjs/typeorm';
import { Redis } from 'ioredis';
import { FencingModule } from 'nestjs-fencing';
import { redisLeases } from 'nestjs-fencing/redis';
import { typeOrmFence } from 'nestjs-fencing/typeorm';
import { tell, told } from '../../test/support/worker-side.js';
import { databaseOptions } from '../database/database.options.js';
import { LedgerEntry } from '../reports/ledger-entry.entity.js';
import { Report } from '../reports/report.entity.js';
import { DrillReportsService } from './drill-reports.service.js';
import { type Order, TTL_MS } from './orders.js';
import { standStillWhenStopped } from './suspended-clock.js';
import { unfenced } from './unfenced.fence.js';
import { report } from './worker-calls.js';

// One worker process of the drill: a small Nest application that does what it is told.

const { DATABASE_URL, REDIS_URL, DRILL_NAME, DRILL_FENCE, DRILL_CLOCK } = process.env;
if (DRILL_CLOCK === 'suspended') standStillWhenStopped();

// Quick to find a network that is whole again, so that the drill is no longer than it must be.
const redis = new Redis(REDIS_URL!, { retryStrategy: () => 50, maxRetriesPerRequest: null });
redis.on('error', () => undefined);

@Module({
  imports: [
    TypeOrmModule.forRoot({
      ...databaseOptions(DATABASE_URL),
      applicationName: DRILL_NAME,
    }),
    TypeOrmModule.forFeature([LedgerEntry, Report]),
    FencingModule.forRootAsync({
      useFactory: () => ({
        leases: redisLeases(redis),
        fence: DRILL_FENCE === 'off' ? unfenced() : typeOrmFence(),
        defaults: { ttlMs: TTL_MS, waitMs: 15_000 },
        storeTimeoutMs: 500,
      }),
    }),
  ],
  providers: [DrillReportsService],
})
class WorkerModule {}

const app = await NestFactory.createApplicationContext(WorkerModule, { logger: ['error', 'fatal'] });
const service = app.get(DrillReportsService);
await tell('ready');

for (;;) {
  const order = await told<Order>('order');
  void report(order, service[order.method](order));
}
