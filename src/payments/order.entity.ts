import { Column, Entity, PrimaryColumn } from 'typeorm';

/** `charging`: the charge is in the outbox, and will be sent. */
export type OrderStatus = 'open' | 'charging' | 'charged' | 'declined';

@Entity('customer_order')
export class Order {
  @PrimaryColumn('text')
  id!: string;

  @Column('int', { name: 'amount_cents' })
  amountCents!: number;

  @Column('text', { default: 'open' })
  status!: OrderStatus;

  /** The provider's own number of the charge. */
  @Column('text', { name: 'charge_id', nullable: true })
  chargeId!: string | null;
}
