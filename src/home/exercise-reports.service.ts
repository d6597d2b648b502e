import { setTimeout as pause } from 'node:timers/promises';
import { Injectable } from '@nestjs/common';
import { InjectRepository } from '@nestjs/typeorm';
import { CurrentLease, FencedWrite, FencingError, type Lease, Leased } from 'nestjs-fencing';
import type { Repository } from 'typeorm';
import { LedgerEntry } from '../reports/ledger-entry.entity.js';
import { Report } from '../reports/report.entity.js';
import { customerOf, type Figures, type Side, type Told, TTL_MS } from './exercise-record.js';

/** Stands for what makes a real rebuild slow, ms. */
const WORK_MS = 600;

export interface Script {
  readonly tell: (told: Told) => void;
  /** Resolves when the report may be published. */
  readonly mayWrite: Promise<void>;
}

/** One rebuild, published in two ways. */
@Injectable()
export class ExerciseReportsService {
  constructor(
    @InjectRepository(Report) private readonly reports: Repository<Report>,
    @InjectRepository(LedgerEntry) private readonly ledger: Repository<LedgerEntry>,
  ) {}

  /** WHAT NOT TO DO: whoever got the lock writes, whenever that may be. */
  @Leased('report:exercise-with-lock')
  async withLock(script: Script, @CurrentLease() lease?: Lease): Promise<void> {
    const figures = await this.read('lock', script, lease!);
    await this.reports.save(reportOf('lock', figures, lease!));
    script.tell({ told: 'wrote', side: 'lock', figures });
  }

  @Leased('report:exercise-with-fence')
  async withFence(script: Script, @CurrentLease() lease?: Lease): Promise<void> {
    const figures = await this.read('fence', script, lease!);
    try {
      await this.publish(figures, lease!);
      script.tell({ told: 'wrote', side: 'fence', figures });
    } catch (error) {
      script.tell({ told: 'refused', side: 'fence', code: codeOf(error) });
    }
  }

  @FencedWrite()
  async publish(figures: Figures, lease: Lease): Promise<void> {
    await this.reports.save(reportOf('fence', figures, lease));
  }

  private async read(side: Side, { tell, mayWrite }: Script, lease: Lease): Promise<Figures> {
    tell({ told: 'granted', side, generation: lease.generation });
    await pause(WORK_MS);
    const entries = await this.ledger.findBy({ customerId: customerOf(side) });
    const total = entries.reduce((sum, { amountCents }) => sum + BigInt(amountCents), 0n);
    const figures = { entries: entries.length, totalCents: String(total) };
    // The exercise may stop the process from here on: no renewal may be due just when it wakes up.
    while (lease.remainingMs() < 0.8 * TTL_MS) await pause(10);
    tell({ told: 'read', side, figures });
    await mayWrite;
    return figures;
  }
}

function reportOf(side: Side, figures: Figures, lease: Lease): Report {
  const generation = String(lease.generation);
  return { customerId: customerOf(side), ...figures, generation, publishedAt: new Date() };
}

function codeOf(error: unknown): string {
  return error instanceof FencingError ? error.code : String(error);
}
