import 'reflect-metadata';
import type { Type } from '@nestjs/common';
import { Test, type TestingModuleBuilder } from '@nestjs/testing';
import { TypeOrmModule } from '@nestjs/typeorm';
import { Redis } from 'ioredis';
import { FencingModule, type FencingModuleOptions, FencingService } from 'nestjs-fencing';
import { redisLeases } from 'nestjs-fencing/redis';
import { typeOrmFence, type TypeOrmFenceOptions } from 'nestjs-fencing/typeorm';
import { DataSource, type DataSourceOptions } from 'typeorm';

export interface FencedAppOptions {
  providers?: unknown[];
  controllers?: Type[];
  imports?: unknown[];
  entities?: DataSourceOptions['entities'];
  /** @default the Redis of the test run */
  redisUrl?: string;
  /** Used instead of Redis. */
  leases?: FencingModuleOptions['leases'];
  /** @default the database of the test worker */
  databaseUrl?: string;
  poolSize?: number;
  dataSource?: Partial<DataSourceOptions>;
  fence?: TypeOrmFenceOptions | false;
  fencing?: Partial<FencingModuleOptions>;
  customize?(builder: TestingModuleBuilder): TestingModuleBuilder;
  /** Makes an HTTP application. */
  http?: boolean;
}

/** A Nest application on real servers, as a user of the package would set it up. */
export async function startFencedApp(options: FencedAppOptions = {}) {
  const redis = options.leases ? undefined : new Redis(options.redisUrl ?? process.env.REDIS_URL!);
  redis?.on('error', () => undefined);
  const database = TypeOrmModule.forRoot({
    type: 'postgres',
    url: options.databaseUrl ?? process.env.DATABASE_URL,
    entities: options.entities,
    synchronize: true,
    poolSize: options.poolSize ?? 10,
    retryAttempts: 0,
    ...options.dataSource,
  } as never);
  const fence = options.fence === false ? undefined : typeOrmFence({ ensureSchema: true, ...options.fence });
  const builder = Test.createTestingModule({
    imports: [
      ...(options.fence === false && !options.entities ? [] : [database]),
      ...(options.entities ? [TypeOrmModule.forFeature(options.entities as never)] : []),
      FencingModule.forRoot({ leases: options.leases ?? redisLeases(redis!), fence, ...options.fencing }),
      ...((options.imports as never[]) ?? []),
    ],
    providers: (options.providers as never[]) ?? [],
    controllers: options.controllers,
  });
  const module = await (options.customize?.(builder) ?? builder).compile();
  const app = options.http ? module.createNestApplication({ logger: false }) : module;
  await app.init();
  return {
    app,
    module,
    redis: redis!,
    fencing: module.get(FencingService, { strict: false }),
    get<T>(token: Type<T> | string | symbol): T {
      return module.get<T>(token, { strict: false });
    },
    get dataSource(): DataSource {
      return module.get(DataSource, { strict: false });
    },
    async close(): Promise<void> {
      await app.close();
      redis?.disconnect();
    },
  };
}

export type FencedApp = Awaited<ReturnType<typeof startFencedApp>>;
