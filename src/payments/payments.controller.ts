import { Controller, HttpCode, Param, Post } from '@nestjs/common';
import type { Order } from './order.entity.js';
import { PaymentsService } from './payments.service.js';

@Controller('orders')
export class PaymentsController {
  constructor(private readonly payments: PaymentsService) {}

  /** 202: the charge is committed and will be sent. Asking again answers the order as it is, and charges nothing more. */
  @Post(':id/charge')
  @HttpCode(202)
  charge(@Param('id') id: string): Promise<Order> {
    return this.payments.charge(id);
  }
}
