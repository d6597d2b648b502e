import { Column, Entity, PrimaryColumn } from 'typeorm';

@Entity('account')
export class Account {
  @PrimaryColumn('text')
  id!: string;

  @Column('bigint', { name: 'balance_cents' })
  balanceCents!: string;
}
