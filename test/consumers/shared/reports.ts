import { Injectable } from '@nestjs/common';
import { InjectRepository } from '@nestjs/typeorm';
import { CurrentLease, FencedWrite, FencingError, FencingService, type Lease } from 'nestjs-fencing';
import { Column, Entity, PrimaryColumn, Repository } from 'typeorm';

@Entity()
export class Report {
  @PrimaryColumn('text') customerId!: string;
  @Column('int') total!: number;
}

/** What the leased handlers of the consumers call; it notes what became of each call. */
@Injectable()
export class ReportsService {
  readonly outcomes: string[] = [];
  readonly generations: number[] = [];
  mostAtOnce = 0;
  /** Runs between the reading and the writing of a rebuild. */
  between: (customerId: string) => Promise<void> = async () => undefined;
  private atOnce = 0;

  constructor(
    @InjectRepository(Report) private readonly reports: Repository<Report>,
    readonly fencing: FencingService,
  ) {}

  async rebuild(customerId: string): Promise<number> {
    this.mostAtOnce = Math.max(this.mostAtOnce, ++this.atOnce);
    try {
      const total = this.outcomes.length;
      await this.between(customerId);
      await this.publish(customerId, total);
      this.outcomes.push('accepted');
      return total;
    } catch (error) {
      this.outcomes.push(error instanceof FencingError ? error.code : String(error));
      throw error;
    } finally {
      this.atOnce--;
    }
  }

  @FencedWrite()
  async publish(customerId: string, total: number, @CurrentLease() lease?: Lease): Promise<void> {
    this.generations.push(lease!.generation);
    await this.reports.save({ customerId, total });
  }

  async totalOf(customerId: string): Promise<number | undefined> {
    return (await this.reports.findOneBy({ customerId }))?.total;
  }
}
