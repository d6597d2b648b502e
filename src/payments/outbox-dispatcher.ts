import { Injectable, Logger } from '@nestjs/common';
import { Interval } from '@nestjs/schedule';
import { InjectRepository } from '@nestjs/typeorm';
import { CurrentLease, FencedWrite, type Lease, Leased } from 'nestjs-fencing';
import { IsNull, type Repository } from 'typeorm';
import { Order } from './order.entity.js';
import { OutboxCharge } from './outbox-charge.entity.js';
import { type ChargeAnswer, PaymentProvider } from './payment-provider.js';

const BATCH = 100;

// #region outbox-dispatch
/** Sends what was committed: at least once, usually by one instance at a time. */
@Injectable()
export class OutboxDispatcher {
  private readonly logger = new Logger('Outbox');

  constructor(
    private readonly provider: PaymentProvider,
    @InjectRepository(Order) private readonly orders: Repository<Order>,
    @InjectRepository(OutboxCharge) private readonly outbox: Repository<OutboxCharge>,
  ) {}

  @Interval(Number(process.env.OUTBOX_INTERVAL_MS ?? 5_000))
  async tick(): Promise<void> {
    if (!this.provider.isConfigured) return;
    await this.dispatch().catch((error: Error) => this.logger.error(error.message));
  }

  /** The lease keeps the instances from sending the same at the same time. That nobody pays twice does not depend on it. */
  @Leased('outbox:charges', { waitMs: 0, onBusy: 'skip' })
  async dispatch(@CurrentLease() lease?: Lease): Promise<number | undefined> {
    const waiting = await this.outbox.find({
      where: { answeredAt: IsNull() },
      order: { id: 'ASC' },
      take: BATCH,
    });
    let answered = 0;
    for (const charge of waiting) {
      lease!.assertHeld();
      try {
        const answer = await this.provider.charge(charge, lease!.signal);
        // Stopped here, nobody knows that it was sent: it is sent again, under the same idempotency key.
        await this.record(charge, answer);
        answered += 1;
      } catch (error) {
        // One that fails must not hold up the others; the next tick sends it again.
        lease!.assertHeld();
        this.logger.warn(`A charge was not answered and will be sent again: ${(error as Error).message}`);
      }
    }
    return answered;
  }

  @FencedWrite()
  async record(charge: OutboxCharge, answer: ChargeAnswer): Promise<void> {
    await this.outbox.update(charge.id, { answeredAt: new Date() });
    await this.orders.update(charge.orderId, {
      status: answer.chargeId === undefined ? 'declined' : 'charged',
      chargeId: answer.chargeId,
    });
  }
}
// #endregion
