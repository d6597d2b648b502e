import { Injectable, NotFoundException } from '@nestjs/common';
import { InjectRepository } from '@nestjs/typeorm';
import { CurrentLease, FencedWrite, type Lease, Leased } from 'nestjs-fencing';
import type { Repository } from 'typeorm';
import { Order } from './order.entity.js';
import { OutboxCharge } from './outbox-charge.entity.js';

// #region outbox-write
@Injectable()
export class PaymentsService {
  constructor(
    @InjectRepository(Order) private readonly orders: Repository<Order>,
    @InjectRepository(OutboxCharge) private readonly outbox: Repository<OutboxCharge>,
  ) {}

  @Leased('order:{0}')
  charge(orderId: string): Promise<Order> {
    return this.requestCharge(orderId);
  }

  /** The order and its effect are committed together, or neither is. Nothing is sent from here: a commit may still fail. */
  @FencedWrite()
  async requestCharge(orderId: string, @CurrentLease() lease?: Lease): Promise<Order> {
    const order = await this.orders.findOneBy({ id: orderId });
    if (!order) throw new NotFoundException('There is no such order.');
    if (order.status !== 'open') return order;
    await this.outbox.insert({
      orderId,
      amountCents: order.amountCents,
      idempotencyKey: lease!.idempotencyKey('charge'),
    });
    return this.orders.save({ ...order, status: 'charging' });
  }
}
// #endregion
