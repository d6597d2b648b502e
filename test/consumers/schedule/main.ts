import 'reflect-metadata';
import { Injectable, Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Cron, ScheduleModule } from '@nestjs/schedule';
import { Leased } from 'nestjs-fencing';
import { prove, run } from './prove.js';
import { ReportsService } from './reports.js';
import { imports } from './setup.js';

const due: string[] = [];

@Injectable()
class Nightly {
  constructor(private readonly reports: ReportsService) {}

  @Cron('* * * * * *')
  @Leased('nightly', { onBusy: 'skip', waitMs: 0 })
  async first(): Promise<void> {
    await this.rebuildOne();
  }

  @Leased('nightly', { onBusy: 'skip', waitMs: 0 })
  @Cron('* * * * * *')
  async second(): Promise<void> {
    await this.rebuildOne();
  }

  private async rebuildOne(): Promise<void> {
    const id = due.shift();
    if (id !== undefined) await this.reports.rebuild(id);
  }
}

@Module({ imports: [...imports, ScheduleModule.forRoot()], providers: [ReportsService, Nightly] })
class AppModule {}

run(async () => {
  const app = await NestFactory.createApplicationContext(AppModule, { logger: ['warn'] });
  await prove(app, (id) => void due.push(id), 'nightly');
});
