import { TypeOrmModule } from '@nestjs/typeorm';
import { FencingModule } from 'nestjs-fencing';
import { redisLeases } from 'nestjs-fencing/redis';
import { typeOrmFence } from 'nestjs-fencing/typeorm';
import { Redis } from 'ioredis';
import { Report } from './reports.js';

export const redis = new Redis(process.env.REDIS_URL!);

/** The database of a consumer. */
export const database = [
  TypeOrmModule.forRoot({
    type: 'postgres',
    url: process.env.DATABASE_URL!,
    entities: [Report],
    synchronize: true,
  }),
  TypeOrmModule.forFeature([Report]),
];

/** What every consumer imports: the database, and the package on the application's own ioredis client. */
export const imports = [
  ...database,
  FencingModule.forRoot({ leases: redisLeases(redis), fence: typeOrmFence({ ensureSchema: true }) }),
];
