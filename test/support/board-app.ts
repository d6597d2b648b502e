import 'reflect-metadata';
import {
  type CanActivate,
  type ExecutionContext,
  type INestApplication,
  Injectable,
  Module,
} from '@nestjs/common';
import { ExpressAdapter } from '@nestjs/platform-express';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { Test } from '@nestjs/testing';
import { TypeOrmModule } from '@nestjs/typeorm';
import { Redis } from 'ioredis';
import {
  FencingEvents,
  FencingModule,
  type FencingModuleOptions,
  FencingService,
  memoryLeases,
} from 'nestjs-fencing';
import { FencingBoardModule, type FencingBoardOptions } from 'nestjs-fencing/board';
import { redisLeases } from 'nestjs-fencing/redis';
import { typeOrmFence } from 'nestjs-fencing/typeorm';
import { DataSource } from 'typeorm';

export type Adapter = 'express' | 'fastify';

export interface BoardAppOptions {
  adapter?: Adapter;
  board?: FencingBoardOptions;
  fencing?: Partial<FencingModuleOptions>;
  /** Leases in memory and no fence, where the stores are not the subject. */
  memory?: boolean;
  /** @default '127.0.0.1' */
  listenOn?: string;
  /** Before it listens. */
  customize?(app: INestApplication): void;
}

/** An application with a board, on real servers, that listens. */
export async function startBoardApp(options: BoardAppOptions = {}) {
  const { adapter, board, fencing, memory, listenOn } = options;
  const redis = memory ? undefined : new Redis(process.env.REDIS_URL!);
  const database = { type: 'postgres', url: process.env.DATABASE_URL, retryAttempts: 0 } as const;
  const module = await Test.createTestingModule({
    imports: [
      ...(memory ? [] : [TypeOrmModule.forRoot(database)]),
      FencingModule.forRoot({
        leases: redis ? redisLeases(redis) : memoryLeases(),
        fence: memory ? undefined : typeOrmFence({ ensureSchema: true }),
        ...fencing,
      }),
      FencingBoardModule.forRoot(board),
    ],
  }).compile();
  const http = adapter === 'fastify' ? new FastifyAdapter() : new ExpressAdapter();
  const app = module.createNestApplication(http, { logger: false });
  options.customize?.(app);
  await app.listen(0, listenOn ?? '127.0.0.1');
  const { port } = (app.getHttpServer() as { address(): { port: number } }).address();
  return {
    app,
    port,
    url: `http://127.0.0.1:${port}`,
    fencing: module.get(FencingService, { strict: false }),
    events: module.get(FencingEvents, { strict: false }),
    get dataSource(): DataSource {
      return module.get(DataSource, { strict: false });
    },
    async close(): Promise<void> {
      await app.close();
      redis?.disconnect();
    },
  };
}

export type BoardApp = Awaited<ReturnType<typeof startBoardApp>>;

@Injectable()
export class Staff {
  readonly passwords = new Map([['secret', 'ada']]);
}

@Module({ providers: [Staff], exports: [Staff] })
export class StaffModule {}

/** A guard as applications have them: it injects something, and lets in who brings a password. */
@Injectable()
export class StaffGuard implements CanActivate {
  constructor(private readonly staff: Staff) {}

  canActivate(context: ExecutionContext): boolean {
    const request = context
      .switchToHttp()
      .getRequest<{ headers: Record<string, string | undefined>; user?: string }>();
    request.user = this.staff.passwords.get(request.headers['x-password'] ?? '');
    return request.user !== undefined;
  }
}

export const whoIsIt = (request: unknown) => (request as { user?: string }).user;
