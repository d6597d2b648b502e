import { Injectable } from '@nestjs/common';
import { InjectRepository } from '@nestjs/typeorm';
import { FencedWrite, Leased } from 'nestjs-fencing';
import { Column, Entity, PrimaryColumn, Repository } from 'typeorm';

@Entity()
export class Report {
  @PrimaryColumn('text') customerId!: string;
  @Column('int') total!: number;
}

/** The service of the README's first example, without its module: what docs/testing.md tests. */
@Injectable()
export class ReportsService {
  constructor(@InjectRepository(Report) private readonly reports: Repository<Report>) {}

  @Leased((customerId: string) => `report:${customerId}`)
  async rebuild(customerId: string): Promise<void> {
    const total = await this.readLedger(customerId);
    await this.publish(customerId, total);
  }

  @FencedWrite()
  async publish(customerId: string, total: number): Promise<void> {
    await this.reports.save({ customerId, total });
  }

  async readLedger(customerId: string): Promise<number> {
    return customerId.length;
  }
}
