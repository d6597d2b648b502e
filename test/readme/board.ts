import { Module } from '@nestjs/common';
import { TypeOrmModule } from '@nestjs/typeorm';
import { FencingModule } from 'nestjs-fencing';
import { FencingBoardModule } from 'nestjs-fencing/board';
import { redisLeases } from 'nestjs-fencing/redis';
import { fencingMigrations, typeOrmFence } from 'nestjs-fencing/typeorm';
import { StaffGuard as AdminGuard, StaffModule as AuthModule } from '../support/board-app.js';

const database = TypeOrmModule.forRoot({
  type: 'postgres',
  url: process.env.DATABASE_URL,
  migrations: fencingMigrations,
  migrationsRun: true,
});
const leases = redisLeases({ url: process.env.REDIS_URL! });

// #region board
@Module({
  imports: [
    database,
    FencingModule.forRoot({ leases, fence: typeOrmFence() }),
    FencingBoardModule.forRoot({ path: '/admin/fencing', guard: AdminGuard, imports: [AuthModule] }),
  ],
})
export class AppModule {}
// #endregion
