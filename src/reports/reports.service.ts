import { setTimeout as pause } from 'node:timers/promises';
import { Injectable, NotFoundException } from '@nestjs/common';
import { InjectRepository } from '@nestjs/typeorm';
import { CurrentLease, FencedWrite, type Lease, Leased } from 'nestjs-fencing';
import { MoreThan, type Repository } from 'typeorm';
import { LedgerEntry } from './ledger-entry.entity.js';
import { Report } from './report.entity.js';

export interface Totals {
  entries: number;
  totalCents: bigint;
}

const PAGE = 100;
/** Stands for what makes a real rebuild slow: other services, big files, a busy database. */
const PAGE_MS = Number(process.env.REBUILD_PAGE_MS ?? 300);

@Injectable()
export class ReportsService {
  constructor(
    @InjectRepository(Report) private readonly reports: Repository<Report>,
    @InjectRepository(LedgerEntry) private readonly ledger: Repository<LedgerEntry>,
  ) {}

  /** One rebuild of a customer at a time, in all instances of the app; the lease is renewed while it runs. */
  @Leased('report:{0}')
  async rebuild(customerId: string, @CurrentLease() lease?: Lease): Promise<Report> {
    const totals = await this.readLedger(customerId, lease!);
    return this.publish(customerId, totals);
  }

  /** Refused by PostgreSQL if a newer rebuild of the customer has begun, whatever this process believes. */
  @FencedWrite()
  async publish(customerId: string, totals: Totals, @CurrentLease() lease?: Lease): Promise<Report> {
    return this.reports.save({
      customerId,
      entries: totals.entries,
      totalCents: String(totals.totalCents),
      generation: String(lease!.generation),
      publishedAt: new Date(),
    });
  }

  async find(customerId: string): Promise<Report> {
    const report = await this.reports.findOneBy({ customerId });
    if (!report) throw new NotFoundException(`There is no report of this customer yet; rebuild it first.`);
    return report;
  }

  private async readLedger(customerId: string, lease: Lease): Promise<Totals> {
    const totals = { entries: 0, totalCents: 0n };
    for (let after = '0'; ;) {
      // Saves work, nothing else: a rebuild that lost its lease may as well stop reading.
      lease.assertHeld();
      const page = await this.ledger.find({
        where: { customerId, id: MoreThan(after) },
        order: { id: 'ASC' },
        take: PAGE,
      });
      for (const { amountCents } of page) totals.totalCents += BigInt(amountCents);
      totals.entries += page.length;
      if (page.length < PAGE) return totals;
      after = page.at(-1)!.id;
      await pause(PAGE_MS, undefined, { signal: lease.signal }).catch(() => lease.assertHeld());
    }
  }
}
