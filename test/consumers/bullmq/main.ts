import 'reflect-metadata';
import { BullModule, getQueueToken, Processor, WorkerHost } from '@nestjs/bullmq';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import type { Job, Queue } from 'bullmq';
import { Leased } from 'nestjs-fencing';
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
  const app = await NestFactory.createApplicationContext(AppModule, { logger: ['error', 'warn'] });
  const queue = app.get<Queue>(getQueueToken('reports'));
  await prove(app, (id) => void queue.add('rebuild', { id }), `report:${encodeURIComponent('c 1/ä')}`);
});
