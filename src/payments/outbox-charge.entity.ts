import { Column, Entity, PrimaryGeneratedColumn } from 'typeorm';

/** A charge that is to be sent to the payment provider, or was. */
@Entity('outbox_charge')
export class OutboxCharge {
  @PrimaryGeneratedColumn('identity', { type: 'bigint', generatedIdentity: 'ALWAYS' })
  id!: string;

  /** The same for every owner and retry: the provider charges once for it, however often it is sent. */
  @Column('text', { name: 'idempotency_key', unique: true })
  idempotencyKey!: string;

  @Column('text', { name: 'order_id' })
  orderId!: string;

  @Column('int', { name: 'amount_cents' })
  amountCents!: number;

  /** When the provider's answer was recorded; it may have been sent more than once by then. */
  @Column('timestamptz', { name: 'answered_at', nullable: true })
  answeredAt!: Date | null;
}
