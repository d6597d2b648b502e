import type { TypeOrmModuleOptions } from '@nestjs/typeorm';
import { fencingLeaseMigrations, fencingMigrations } from 'nestjs-fencing/typeorm';
import { CreatePayments1764000000002 } from '../payments/create-payments.migration.js';
import { CreateReportPublisher1764000000001 } from './create-report-publisher.migration.js';

export function databaseOptions(url: string | undefined): TypeOrmModuleOptions {
  if (!url) throw new Error('DATABASE_URL is not set. `npm start` sets it to a PostgreSQL of its own.');
  return {
    type: 'postgres',
    url,
    autoLoadEntities: true,
    migrations: [
      ...fencingMigrations,
      ...fencingLeaseMigrations,
      CreateReportPublisher1764000000001,
      CreatePayments1764000000002,
    ],
    migrationsRun: true,
  };
}
