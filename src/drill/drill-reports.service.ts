import { Injectable } from '@nestjs/common';
import { InjectRepository } from '@nestjs/typeorm';
import { CurrentLease, FencedWrite, type Lease, Leased, LeaseUncertainError } from 'nestjs-fencing';
import type { Repository } from 'typeorm';
import { LedgerEntry } from '../reports/ledger-entry.entity.js';
import { Report } from '../reports/report.entity.js';
import type { Booked, Published } from './events.js';
import type { LateWrites, Order } from './orders.js';
import { codeOf, gateOf, granted, pauseAt, refused, uncertain, wrote } from './worker-calls.js';

const LATE_WRITES = 20;
/** Long enough for the drill to break and mend the network between two renewals. */
const POLICY_TTL_MS = 6_000;

/** The report publisher, with places where the drill can stop it. */
@Injectable()
export class DrillReportsService {
  constructor(
    @InjectRepository(Report) private readonly reports: Repository<Report>,
    @InjectRepository(LedgerEntry) private readonly ledger: Repository<LedgerEntry>,
  ) {}

  @Leased('report:{0.customerId}')
  async rebuild(order: Order, @CurrentLease() lease?: Lease): Promise<Published> {
    return this.readAndPublish(order, lease!);
  }

  /** Its lease outlasts a restart of Redis. */
  @Leased('report:{0.customerId}', { ttlMs: 60_000 })
  async rebuildSlowly(order: Order, @CurrentLease() lease?: Lease): Promise<Published> {
    return this.readAndPublish(order, lease!);
  }

  /** Never looks at its lease again, and takes no refusal for an answer. */
  @Leased('report:{0.customerId}')
  async keepWriting(order: Order, @CurrentLease() lease?: Lease): Promise<LateWrites> {
    await granted(order, lease!);
    const totals = await this.readLedger(order.customerId);
    await wrote(order, await this.publish(order, order.operationId, totals));
    await pauseAt('after the write', order, lease!);
    let landed = 0;
    const refusals: Record<string, number> = {};
    for (let n = 1; n <= LATE_WRITES; n++) {
      try {
        await this.publish(order, `${order.operationId}-${n}`, totals);
        landed += 1;
      } catch (error) {
        const code = codeOf(error);
        refusals[code] = (refusals[code] ?? 0) + 1;
      }
    }
    return { landed, refusals };
  }

  @Leased('report:{0.customerId}')
  async bookFee(order: Order, @CurrentLease() lease?: Lease): Promise<Booked> {
    await granted(order, lease!);
    const booked = await this.book(order.operationId, order.customerId, order.amountCents!);
    await wrote(order, booked);
    await pauseAt('after the write', order, lease!);
    return booked;
  }

  @Leased('report:{0.customerId}', { ttlMs: POLICY_TTL_MS, onUncertain: 'stop' })
  async orStop(order: Order, @CurrentLease() lease?: Lease): Promise<Published> {
    return this.publishWhenTold(order, lease!);
  }

  @Leased('report:{0.customerId}', { ttlMs: POLICY_TTL_MS, onUncertain: 'withhold' })
  async orWithhold(order: Order, @CurrentLease() lease?: Lease): Promise<Published> {
    return this.publishWhenTold(order, lease!);
  }

  @Leased('report:{0.customerId}', { ttlMs: POLICY_TTL_MS, onUncertain: 'reconcile' })
  async orReconcile(order: Order, @CurrentLease() lease?: Lease): Promise<Published> {
    return this.publishWhenTold(order, lease!);
  }

  @FencedWrite({ operation: (_order: Order, operationId: string) => operationId })
  async publish(
    order: Order,
    _operationId: string,
    totals: Published,
    @CurrentLease() lease?: Lease,
  ): Promise<Published> {
    await pauseAt('inside the write', order, lease!);
    const { customerId } = order;
    await this.reports.save({
      customerId,
      ...totals,
      generation: String(lease!.generation),
      publishedAt: new Date(),
    });
    return totals;
  }

  @FencedWrite({ operation: (operationId: string) => operationId })
  async book(_operationId: string, customerId: string, amountCents: number): Promise<Booked> {
    const inserted = await this.ledger
      .createQueryBuilder()
      .insert()
      .values({ customerId, amountCents: String(amountCents) })
      .returning('id')
      .execute();
    const [row] = inserted.raw as [{ id: string }];
    return { entryId: row.id, amountCents };
  }

  private async readAndPublish(order: Order, lease: Lease): Promise<Published> {
    await granted(order, lease);
    const totals = await this.readLedger(order.customerId);
    await pauseAt('before the write', order, lease);
    await wrote(order, await this.publish(order, order.operationId, totals));
    await pauseAt('after the write', order, lease);
    return totals;
  }

  /** Tries again when a write was refused because its lease could not be confirmed, as long as the lease lets it. */
  private async publishWhenTold(order: Order, lease: Lease): Promise<Published> {
    await granted(order, lease);
    const totals = await this.readLedger(order.customerId);
    await uncertain(order, lease);
    for (let attempt = 1; ; attempt++) {
      await gateOf(order, `write ${attempt}`);
      try {
        await wrote(order, await this.publish(order, order.operationId, totals));
        return totals;
      } catch (error) {
        await refused(order, error);
        if (!(error instanceof LeaseUncertainError) || lease.signal.aborted) throw error;
      }
    }
  }

  private async readLedger(customerId: string): Promise<Published> {
    const entries = await this.ledger.findBy({ customerId });
    const total = entries.reduce((sum, { amountCents }) => sum + BigInt(amountCents), 0n);
    return { entries: entries.length, totalCents: String(total) };
  }
}
