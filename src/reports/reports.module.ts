import { Module } from '@nestjs/common';
import { TypeOrmModule } from '@nestjs/typeorm';
import { HourlySummary } from './hourly-summary.entity.js';
import { LedgerEntry } from './ledger-entry.entity.js';
import { Report } from './report.entity.js';
import { ReportsController } from './reports.controller.js';
import { ReportsService } from './reports.service.js';
import { SummaryJob } from './summary.job.js';

@Module({
  imports: [TypeOrmModule.forFeature([HourlySummary, LedgerEntry, Report])],
  controllers: [ReportsController],
  providers: [ReportsService, SummaryJob],
})
export class ReportsModule {}
