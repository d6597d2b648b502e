import { randomUUID } from 'node:crypto';
import { Injectable, Logger } from '@nestjs/common';
import { Cron, Interval } from '@nestjs/schedule';
import { InjectRepository } from '@nestjs/typeorm';
import {
  CurrentLease,
  FencedWrite,
  FencingService,
  type Lease,
  LeaseBusyError,
  Leased,
} from 'nestjs-fencing';
import { Column, Entity, PrimaryColumn, type Repository } from 'typeorm';

@Entity('everyday_account')
export class Account {
  @PrimaryColumn('text') id!: string;
  @Column('int') cents!: number;
}

@Entity('everyday_invoice_run')
export class InvoiceRun {
  @PrimaryColumn('text') month!: string;
  @Column('text') id!: string;
}

// #region cron
@Injectable()
export class InvoicesCron {
  constructor(@InjectRepository(InvoiceRun) private readonly runs: Repository<InvoiceRun>) {}

  /** Every instance has the cron job; one of them does the work. */
  @Cron('0 3 1 * *')
  tick(): Promise<unknown> {
    return this.run(new Date().toISOString().slice(0, 7));
  }

  /** `skip`: whoever comes while it runs does nothing. `holdAtLeastMs`: nor does whoever comes a little later, by a clock that is behind. */
  @Leased('invoices:{0}', { waitMs: 0, onBusy: 'skip', holdAtLeastMs: 60_000 })
  async run(month: string): Promise<string | undefined> {
    return this.record(month);
  }

  /** Once per month, whatever clocks say: a late second run gets the first one's result. */
  @FencedWrite({ operation: (month: string) => `invoices ${month}` })
  async record(month: string): Promise<string> {
    const { id } = await this.runs.save({ month, id: randomUUID() });
    return id;
  }
}
// #endregion

// #region queue
interface ImportJob {
  readonly id: string;
  readonly data: { readonly supplier: string; readonly prices: Record<string, number> };
}

@Injectable()
export class PriceImports {
  /** The body of a queue's processor (BullMQ, SQS, Kafka): the queue may hand out one job twice, or two jobs of one supplier at once. */
  @Leased((job: ImportJob) => `prices:${job.data.supplier}`, { waitMs: 30_000 })
  async process(job: ImportJob, @CurrentLease() lease?: Lease): Promise<number> {
    const rows = Object.entries(job.data.prices);
    for (const [sku, cents] of rows) {
      lease!.assertHeld(); // a job of an hour ends soon after it was superseded, not after an hour
      await this.validate(sku, cents);
    }
    return this.store(job);
  }

  /** The job's id makes a second delivery harmless. */
  @FencedWrite({ operation: (job: ImportJob) => `prices ${job.id}` })
  async store(job: ImportJob): Promise<number> {
    return Object.keys(job.data.prices).length; // … and the upserts, with plain TypeORM
  }

  protected async validate(sku: string, cents: number): Promise<void> {
    if (cents < 0) throw new Error(`${sku} has a negative price.`);
  }
}
// #endregion

// #region accounts
@Injectable()
export class Transfers {
  constructor(@InjectRepository(Account) private readonly accounts: Repository<Account>) {}

  /** Two leases, taken in sorted order, so that two transfers in opposite directions do not wait for each other. */
  @Leased(['account:{0}', 'account:{1}'])
  async transfer(from: string, to: string, cents: number): Promise<void> {
    await this.book(from, to, cents);
  }

  /** One transaction, guarded by both. */
  @FencedWrite()
  async book(from: string, to: string, cents: number): Promise<void> {
    const debited = await this.accounts
      .createQueryBuilder()
      .update()
      .set({ cents: () => 'cents - :cents' })
      .where('id = :from AND cents >= :cents', { from, cents })
      .execute();
    if (debited.affected === 0) throw new Error('The account has not enough.');
    await this.accounts.increment({ id: to }, 'cents', cents);
  }
}
// #endregion

// #region leader
@Injectable()
export class Leader {
  private readonly logger = new Logger('Leader');

  constructor(private readonly fencing: FencingService) {}

  /** One instance leads for as long as it lives and its lease holds; the others ask again every ten seconds. */
  @Interval(10_000)
  async campaign(): Promise<void> {
    try {
      await this.fencing.run('leader', { waitMs: 0 }, (lease) => this.lead(lease));
    } catch (error) {
      if (error instanceof LeaseBusyError) return; // somebody else leads
      this.logger.warn(`Leads no more: ${(error as Error).message}`);
    }
  }

  /** Works until the lease is lost. What it writes goes through fenced writes: a leader that is late does no harm. */
  protected async lead(lease: Lease): Promise<void> {
    while (!lease.signal.aborted) await this.step(lease.signal);
  }

  protected async step(signal: AbortSignal): Promise<void> {
    await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }));
  }
}
// #endregion
