import { Column, Entity, PrimaryColumn } from 'typeorm';

@Entity('ledger_entry')
export class LedgerEntry {
  @PrimaryColumn('bigint')
  id!: string;

  @Column('text', { name: 'customer_id' })
  customerId!: string;

  @Column('bigint', { name: 'amount_cents' })
  amountCents!: string;
}
