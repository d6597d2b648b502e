import { Column, Entity, PrimaryColumn } from 'typeorm';

@Entity('report')
export class Report {
  @PrimaryColumn('text', { name: 'customer_id' })
  customerId!: string;

  @Column('int')
  entries!: number;

  @Column('bigint', { name: 'total_cents' })
  totalCents!: string;

  /** Of the lease that the report was published under: shows who wrote it. */
  @Column('bigint')
  generation!: string;

  @Column('timestamptz', { name: 'published_at' })
  publishedAt!: Date;
}
