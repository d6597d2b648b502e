import { Injectable, Logger } from '@nestjs/common';
import { Cron, CronExpression } from '@nestjs/schedule';
import { InjectRepository } from '@nestjs/typeorm';
import { FencedWrite, Leased } from 'nestjs-fencing';
import type { Repository } from 'typeorm';
import { HourlySummary } from './hourly-summary.entity.js';
import { Report } from './report.entity.js';

/** Runs in every instance of the app; one of them does the work, and once an hour however their clocks differ. */
@Injectable()
export class SummaryJob {
  private readonly logger = new Logger('Hourly summary');

  constructor(
    @InjectRepository(Report) private readonly reports: Repository<Report>,
    @InjectRepository(HourlySummary) private readonly summaries: Repository<HourlySummary>,
  ) {}

  @Cron(CronExpression.EVERY_HOUR)
  tick(): Promise<number | undefined> {
    return this.summarize(startOfHour(new Date()));
  }

  /** Prevents overlap: an instance that finds the key taken skips this tick. */
  @Leased(() => 'hourly-summary', { waitMs: 0, onBusy: 'skip' })
  async summarize(hour: Date): Promise<number | undefined> {
    const reports = await this.write(hour);
    this.logger.log(`Summarized ${reports} reports.`);
    return reports;
  }

  /** Prevents repetition: an instance whose clock is late gets the stored result of the same hour. */
  @FencedWrite({ operation: (hour: Date) => `hourly-summary:${hour.toISOString()}` })
  async write(hour: Date): Promise<number> {
    const { reports, totalCents } = (await this.reports
      .createQueryBuilder('report')
      .select('count(*)::int', 'reports')
      .addSelect('coalesce(sum(report.total_cents), 0)', 'totalCents')
      .getRawOne<{ reports: number; totalCents: string }>())!;
    await this.summaries.insert({ hour, reports, totalCents });
    return reports;
  }
}

export function startOfHour(time: Date): Date {
  return new Date(Math.floor(time.getTime() / 3_600_000) * 3_600_000);
}
