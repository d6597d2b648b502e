import { Module } from '@nestjs/common';
import { ScheduleModule } from '@nestjs/schedule';
import { TypeOrmModule } from '@nestjs/typeorm';
import { FencingModule } from 'nestjs-fencing';
import { FencingBoardModule } from 'nestjs-fencing/board';
import { typeOrmFence } from 'nestjs-fencing/typeorm';
import { AccountsModule } from './accounts/accounts.module.js';
import { databaseOptions } from './database/database.options.js';
import { workerEvents } from './home/exercise.js';
import { HomeModule } from './home/home.module.js';
import { leasesFor } from './leases.js';
import { PaymentsModule } from './payments/payments.module.js';
import { ReportsModule } from './reports/reports.module.js';

@Module({
  imports: [
    TypeOrmModule.forRootAsync({ useFactory: () => databaseOptions(process.env.DATABASE_URL) }),
    FencingModule.forRootAsync({
      useFactory: () => ({ leases: leasesFor(process.env.REDIS_URL), fence: typeOrmFence() }),
    }),
    // It has no guard: it answers this machine only, and would refuse to start in production.
    ...(process.env.NODE_ENV === 'production' ? [] : [FencingBoardModule.forRoot({ events: workerEvents })]),
    ScheduleModule.forRoot(),
    HomeModule,
    ReportsModule,
    AccountsModule,
    PaymentsModule,
  ],
})
export class AppModule {}
