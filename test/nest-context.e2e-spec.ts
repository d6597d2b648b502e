import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import {
  type ArgumentsHost,
  type CallHandler,
  type CanActivate,
  Catch,
  Controller,
  type ExceptionFilter,
  Injectable,
  type NestInterceptor,
  Param,
  type PipeTransform,
  Post,
  UseFilters,
  UseGuards,
  UseInterceptors,
} from '@nestjs/common';
import type { Response } from 'express';
import { FencingService, Leased } from 'nestjs-fencing';
import { finalize, tap } from 'rxjs';
import request from 'supertest';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';

/** What each stage of a request saw: the key of the lease that it stands on, and whether it could take one of its own. */
@Injectable()
class Seen {
  readonly stages: string[] = [];

  constructor(private readonly fencing: FencingService) {}

  async note(stage: string): Promise<void> {
    const before = this.fencing.current()?.key ?? 'none';
    const own = await this.fencing.run(
      `own:${stage}`,
      { waitMs: 0 },
      (lease) => lease.key === `own:${stage}`,
    );
    this.stages.push(`${stage}: ${before}, ${own}`);
  }

  /** For what cannot wait. */
  noteNow(stage: string): void {
    this.stages.push(`${stage}: ${this.fencing.current()?.key ?? 'none'}`);
  }
}

@Injectable()
class FirstGuard implements CanActivate {
  constructor(protected readonly seen: Seen) {}

  async canActivate(): Promise<boolean> {
    await this.seen.note(this.constructor.name);
    return true;
  }
}

@Injectable()
class SecondGuard extends FirstGuard {}

@Injectable()
class Around implements NestInterceptor {
  constructor(private readonly seen: Seen) {}

  async intercept(_: unknown, next: CallHandler) {
    await this.seen.note(`${this.constructor.name} before`);
    return next.handle().pipe(
      tap({ error: () => this.seen.noteNow(`${this.constructor.name} error`) }),
      finalize(() => this.seen.noteNow(`${this.constructor.name} after`)),
    );
  }
}

@Injectable()
class Outer extends Around {}

@Injectable()
class Inner extends Around {}

@Injectable()
class Pipe implements PipeTransform {
  constructor(private readonly seen: Seen) {}

  async transform(value: string): Promise<string> {
    await this.seen.note('pipe');
    return value;
  }
}

@Catch()
class Filter implements ExceptionFilter {
  constructor(private readonly seen: Seen) {}

  async catch(error: Error, host: ArgumentsHost): Promise<void> {
    await this.seen.note('filter');
    host.switchToHttp().getResponse<Response>().status(500).send(error.message);
  }
}

@Controller()
class Reports {
  constructor(private readonly seen: Seen) {}

  @UseGuards(FirstGuard, SecondGuard)
  @UseInterceptors(Outer)
  @UseFilters(Filter)
  @Post(':id')
  @Leased('report:{params.id}')
  @UseInterceptors(Inner)
  async rebuild(@Param('id', Pipe) id: string): Promise<string> {
    await this.seen.note('handler');
    if (id === 'bad') throw new Error('as planned');
    return id;
  }
}

let app: FencedApp;

const post = async (id: string) => {
  app.get(Seen).stages.length = 0;
  const { status } = await request((app.app as never as { getHttpServer(): never }).getHttpServer()).post(
    `/${id}`,
  );
  return { status, stages: app.get(Seen).stages };
};

const BEFORE = ['FirstGuard', 'SecondGuard', 'Outer before', 'Inner before', 'pipe'];

describe('field report R10: the lease of a request is there for the handler, and for what it calls', () => {
  beforeAll(async () => {
    const providers = [Seen, FirstGuard, SecondGuard, Outer, Inner, Pipe, Filter];
    app = await startFencedApp({ fence: false, http: true, controllers: [Reports], providers });
  });
  afterAll(() => app.close());

  it('and not for guards, interceptors and pipes, which take leases of their own', async () => {
    const { status, stages } = await post('good');
    expect(status).toBe(201);
    const around = ['Inner after: none', 'Outer after: none'];
    expect(stages.sort()).toEqual(
      [...BEFORE.map((stage) => `${stage}: none, true`), 'handler: report:good, true', ...around].sort(),
    );
  });

  it('nor for exception filters, where it has ended with its call', async () => {
    const { status, stages } = await post('bad');
    expect(status).toBe(500);
    expect(stages.at(-1)).toBe('filter: none, true');
    const around = ['Inner error', 'Outer error', 'Inner after', 'Outer after'].map(
      (stage) => `${stage}: none`,
    );
    expect(stages.slice(BEFORE.length, -1).sort()).toEqual(['handler: report:bad, true', ...around].sort());
  });
});
