import { Logger, Module } from '@nestjs/common';
import { ScheduleModule } from '@nestjs/schedule';
import { TypeOrmModule } from '@nestjs/typeorm';
import { FencingModule, memoryLeases } from 'nestjs-fencing';
import { redisLeases } from 'nestjs-fencing/redis';
import { typeOrmFence } from 'nestjs-fencing/typeorm';
import { AccountsModule } from './accounts/accounts.module.js';
import { databaseOptions } from './database/database.options.js';
import { PaymentsModule } from './payments/payments.module.js';
import { ReportsModule } from './reports/reports.module.js';

@Module({
  imports: [
    TypeOrmModule.forRootAsync({ useFactory: () => databaseOptions(process.env.DATABASE_URL) }),
    FencingModule.forRootAsync({
      useFactory: async () => ({ leases: await leasesFor(process.env.REDIS_URL), fence: typeOrmFence() }),
    }),
    ScheduleModule.forRoot(),
    ReportsModule,
    AccountsModule,
    PaymentsModule,
  ],
})
export class AppModule {}

async function leasesFor(redisUrl: string | undefined) {
  if (redisUrl) return redisLeases({ url: redisUrl });
  new Logger('Report publisher').warn(
    'No REDIS_URL: leases are kept in memory, so only this one process takes turns. Stale writes are refused all the same.',
  );
  return memoryLeases();
}
