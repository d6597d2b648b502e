import { Column, Entity, PrimaryColumn } from 'typeorm';

@Entity('hourly_summary')
export class HourlySummary {
  @PrimaryColumn('timestamptz')
  hour!: Date;

  @Column('int')
  reports!: number;

  @Column('bigint', { name: 'total_cents' })
  totalCents!: string;
}
