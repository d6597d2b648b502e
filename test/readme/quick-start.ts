// The first example of the README: what stands between the region marks is there word for word (readme.e2e-spec.ts).
import 'reflect-metadata';
// #region quick start
import { Injectable, Module } from '@nestjs/common';
import { InjectRepository, TypeOrmModule } from '@nestjs/typeorm';
import { FencedWrite, FencingModule, Leased } from 'nestjs-fencing';
import { redisLeases } from 'nestjs-fencing/redis';
import { fencingMigrations, typeOrmFence } from 'nestjs-fencing/typeorm';
import { Column, Entity, PrimaryColumn, Repository } from 'typeorm';

@Entity()
export class Report {
  @PrimaryColumn('text') customerId!: string;
  @Column('int') total!: number;
}

@Injectable()
export class ReportsService {
  constructor(@InjectRepository(Report) private readonly reports: Repository<Report>) {}

  @Leased((customerId: string) => `report:${customerId}`)
  async rebuild(customerId: string): Promise<void> {
    const total = await this.readLedger(customerId); // may take minutes; the lease is renewed meanwhile
    await this.publish(customerId, total);
  }

  @FencedWrite()
  async publish(customerId: string, total: number): Promise<void> {
    await this.reports.save({ customerId, total }); // plain TypeORM; refused if a newer rebuild has begun
  }

  async readLedger(customerId: string): Promise<number> {
    return customerId.length;
  }
}

@Module({
  imports: [
    TypeOrmModule.forRoot({
      type: 'postgres',
      url: process.env.DATABASE_URL!,
      autoLoadEntities: true,
      synchronize: true, // in production: migrations of your own
      migrations: fencingMigrations,
      migrationsRun: true,
    }),
    TypeOrmModule.forFeature([Report]),
    FencingModule.forRoot({ leases: redisLeases({ url: process.env.REDIS_URL! }), fence: typeOrmFence() }),
  ],
  providers: [ReportsService],
})
export class AppModule {}
// #endregion
