import 'reflect-metadata';
import { BullModule, getQueueToken, Processor, WorkerHost } from '@nestjs/bullmq';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import type { Job, Queue } from 'bullmq';
import { FencedWrite, Leased } from 'nestjs-fencing';
import { proveRefused } from './prove-refused.js';
import { prove, run } from './prove.js';
import { ReportsService } from './reports.js';
import { imports } from './setup.js';

@Processor('reports', { concurrency: 4 })
class ReportsProcessor extends WorkerHost {
  constructor(private readonly reports: ReportsService) {
    super();
  }

  @Leased('report:{0.data.id}')
  override async process(job: Job<{ id: string }>): Promise<number> {
    return this.reports.rebuild(job.data.id);
  }
}

@Processor('reports')
class CarelessProcessor extends WorkerHost {
  @FencedWrite()
  override async process(): Promise<void> {}
}

@Module({
  imports: [
    ...imports,
    BullModule.forRoot({ connection: { url: process.env.REDIS_URL! } }),
    BullModule.registerQueue({ name: 'reports' }),
  ],
  providers: [ReportsService, ReportsProcessor],
})
class AppModule {}

run(async () => {
  await proveRefused(CarelessProcessor, 'CarelessProcessor.process: it is a queue processor');
  const app = await NestFactory.createApplicationContext(AppModule, { logger: ['error', 'warn'] });
  const queue = app.get<Queue>(getQueueToken('reports'));
  await prove(app, (id) => void queue.add('rebuild', { id }), `report:${encodeURIComponent('c 1/ä')}`);
});
