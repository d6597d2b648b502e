import 'reflect-metadata';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { TypeOrmModule } from '@nestjs/typeorm';
import { FencingEvents, FencingModule } from 'nestjs-fencing';
import { typeOrmFence } from 'nestjs-fencing/typeorm';
import { databaseOptions } from '../database/database.options.js';
import { leasesFor } from '../leases.js';
import { LedgerEntry } from '../reports/ledger-entry.entity.js';
import { Report } from '../reports/report.entity.js';
import { type Order, type Told, TTL_MS } from './exercise-record.js';
import { ExerciseReportsService } from './exercise-reports.service.js';
import { standStillWhenStopped } from '../drill/suspended-clock.js';

// One worker process of the exercise: it does what it is told, and tells what happened.

// As on a machine that is suspended: after waking up, nothing in the process can tell that time has passed.
standStillWhenStopped();

const { DATABASE_URL, REDIS_URL } = process.env;

@Module({
  imports: [
    TypeOrmModule.forRoot(databaseOptions(DATABASE_URL)),
    TypeOrmModule.forFeature([LedgerEntry, Report]),
    FencingModule.forRootAsync({
      useFactory: () => ({
        leases: leasesFor(REDIS_URL),
        fence: typeOrmFence(),
        defaults: { ttlMs: TTL_MS, waitMs: 20_000 },
      }),
    }),
  ],
  providers: [ExerciseReportsService],
})
class WorkerModule {}

const tell = (told: Told) => void process.send?.(told);
process.once('disconnect', () => process.exit(0));

const app = await NestFactory.createApplicationContext(WorkerModule, { logger: ['error', 'fatal'] });
app.get(FencingEvents).subscribe((event) => {
  // What a cause of an error holds may be anything; the board shows none of it.
  if (event.name !== 'store.unavailable') tell({ told: 'event', event });
});
const reports = app.get(ExerciseReportsService);
let write: () => void = () => undefined;

process.on('message', (order: Order) => {
  if (order.order === 'write') return write();
  const mayWrite = order.waits ? new Promise<void>((resolve) => (write = resolve)) : Promise.resolve();
  const script = { tell, mayWrite };
  // A call whose lease was lost rejects, whatever became of its write.
  void reports
    .withLock(script)
    .finally(() => tell({ told: 'ended', side: 'lock' }))
    .catch(() => undefined);
  void reports
    .withFence(script)
    .finally(() => tell({ told: 'ended', side: 'fence' }))
    .catch(() => undefined);
});
tell({ told: 'ready' });
