import { Module } from '@nestjs/common';
import { TypeOrmModule } from '@nestjs/typeorm';
import { Order } from './order.entity.js';
import { OutboxCharge } from './outbox-charge.entity.js';
import { OutboxDispatcher } from './outbox-dispatcher.js';
import { PaymentProvider } from './payment-provider.js';
import { PaymentsController } from './payments.controller.js';
import { PaymentsService } from './payments.service.js';

@Module({
  imports: [TypeOrmModule.forFeature([Order, OutboxCharge])],
  controllers: [PaymentsController],
  providers: [OutboxDispatcher, PaymentProvider, PaymentsService],
})
export class PaymentsModule {}
