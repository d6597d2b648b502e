import { afterAll, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import {
  type ArgumentMetadata,
  Body,
  type CallHandler,
  type CanActivate,
  Controller,
  type ExecutionContext,
  Header,
  HttpCode,
  Injectable,
  type NestInterceptor,
  Param,
  ParseIntPipe,
  type PipeTransform,
  Post,
  SetMetadata,
  type Type,
  UseGuards,
  UseInterceptors,
  UsePipes,
} from '@nestjs/common';
import { APP_GUARD, Reflector } from '@nestjs/core';
import {
  ApiBearerAuth,
  ApiBody,
  ApiCreatedResponse,
  ApiOperation,
  ApiProperty,
  DocumentBuilder,
  SwaggerModule,
} from '@nestjs/swagger';
import { CurrentLease, FencedWrite, type Lease, Leased } from 'nestjs-fencing';
import type { Observable } from 'rxjs';
import { tap } from 'rxjs/operators';
import request from 'supertest';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';

let log: string[] = [];

@Injectable()
class RolesGuard implements CanActivate {
  constructor(private readonly reflector: Reflector) {}

  canActivate(context: ExecutionContext): boolean {
    const roles = this.reflector.get<string[] | undefined>('roles', context.getHandler());
    const { headers } = context.switchToHttp().getRequest<{ headers: Record<string, string> }>();
    log.push(`global guard: ${context.getHandler().name} needs ${roles?.join() ?? 'nothing'}`);
    return !roles || roles.includes(headers['x-role'] ?? '');
  }
}

@Injectable()
class MethodGuard implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    log.push(`method guard: ${context.getClass().name.length > 0 && context.getHandler().length}`);
    return true;
  }
}

@Injectable()
class LogInterceptor implements NestInterceptor {
  intercept(context: ExecutionContext, next: CallHandler): Observable<unknown> {
    log.push(`interceptor before ${context.getHandler().name}`);
    return next.handle().pipe(tap((value) => log.push(`interceptor after: ${JSON.stringify(value)}`)));
  }
}

class LogPipe implements PipeTransform {
  transform(value: unknown, metadata: ArgumentMetadata): unknown {
    log.push(`pipe: ${metadata.type} ${metadata.metatype?.name} ${JSON.stringify(value)}`);
    return value;
  }
}

class Dto {
  @ApiProperty({ description: 'how much' })
  amount!: number;
}

/** The decorators of the other libraries, from the outermost to the innermost. */
const OTHERS: MethodDecorator[] = [
  Post(':id'),
  HttpCode(202),
  Header('X-Own', 'yes'),
  SetMetadata('roles', ['editor']),
  UseGuards(MethodGuard),
  UseInterceptors(LogInterceptor),
  UsePipes(LogPipe),
  ApiOperation({ summary: 'Rebuilds', operationId: 'rebuild' }),
  ApiBearerAuth(),
  ApiBody({ type: Dto }),
  ApiCreatedResponse({ type: Dto }),
];

/** The one controller, with our decorators at these places among the others; without any: as if the package did not exist. */
function controllerWith(ours: (others: MethodDecorator[]) => MethodDecorator[]): Type {
  @Controller('reports')
  class Reports {
    async rebuild(id: number, body: Dto): Promise<object> {
      log.push(`handler ${id} ${JSON.stringify(body)}`);
      return { id, amount: body.amount };
    }
  }
  const { prototype } = Reports;
  Param('id', ParseIntPipe)(prototype, 'rebuild', 0);
  Body()(prototype, 'rebuild', 1);
  Reflect.defineMetadata('design:paramtypes', [Number, Dto], prototype, 'rebuild');
  Reflect.defineMetadata('design:returntype', Promise, prototype, 'rebuild');
  const descriptor = Object.getOwnPropertyDescriptor(prototype, 'rebuild')!;
  for (const decorate of ours(OTHERS).reverse()) decorate(prototype, 'rebuild', descriptor);
  Object.defineProperty(prototype, 'rebuild', descriptor);
  return Reports;
}

const leased = Leased('report:{params.id}') as MethodDecorator;
const fenced = FencedWrite() as MethodDecorator;
const middle = OTHERS.length / 2;

const PLACES: Record<string, (others: MethodDecorator[]) => MethodDecorator[]> = {
  '@Leased above': (others) => [leased, ...others],
  '@Leased between': (others) => [...others.slice(0, middle), leased, ...others.slice(middle)],
  '@Leased below': (others) => [...others, leased],
  '@Leased and @FencedWrite above': (others) => [leased, fenced, ...others],
  '@Leased above, @FencedWrite between': (others) => [
    leased,
    ...others.slice(0, middle),
    fenced,
    ...others.slice(middle),
  ],
  '@Leased above, @FencedWrite below': (others) => [leased, ...others, fenced],
  '@Leased and @FencedWrite below': (others) => [...others, leased, fenced],
  ...Object.fromEntries(
    OTHERS.map((_, place) => [
      `@Leased at place ${place}`,
      (others: MethodDecorator[]) => [...others.slice(0, place), leased, ...others.slice(place)],
    ]),
  ),
};

const guard = { provide: APP_GUARD, useClass: RolesGuard };
const startWith = (controller: Type) =>
  startFencedApp({ http: true, controllers: [controller], providers: [guard, MethodGuard, LogInterceptor] });

async function observe(app: FencedApp) {
  const document = SwaggerModule.createDocument(
    app.app as never,
    new DocumentBuilder().setTitle('reports').build(),
  );
  const server = (app.app as { getHttpServer?(): never }).getHttpServer!();
  const answers: unknown[] = [];
  const send = async (path: string, role: string, body: object) => {
    const { status, body: answer, headers } = await request(server).post(path).set('x-role', role).send(body);
    answers.push({ path, role, status, answer, own: headers['x-own'], type: headers['content-type'] });
  };
  log = [];
  await send('/reports/7', 'editor', { amount: 1 });
  await send('/reports/7', 'reader', { amount: 1 });
  await send('/reports/seven', 'editor', { amount: 1 });
  await send('/nowhere', 'editor', {});
  return { document: JSON.stringify(document), answers, log: [...log] };
}

describe('field report 11: a controller with guard, interceptor, pipe, metadata and OpenAPI is what it was, with', () => {
  let plain: Awaited<ReturnType<typeof observe>>;
  let face: { name: string; length: number };

  beforeAll(async () => {
    const controller = controllerWith((others) => others);
    face = (controller.prototype as { rebuild: () => unknown }).rebuild;
    const app = await startWith(controller);
    plain = await observe(app);
    await app.close();
  });

  it('(the plain one answers 202, 403, 400, 404 and logs every step)', () => {
    expect(plain.answers).toMatchObject([{ status: 202 }, { status: 403 }, { status: 400 }, { status: 404 }]);
    expect(plain.log).toEqual([
      'global guard: rebuild needs editor',
      'method guard: 2',
      'interceptor before rebuild',
      'pipe: param Number "7"',
      'pipe: body Dto {"amount":1}',
      'handler 7 {"amount":1}',
      'interceptor after: {"id":7,"amount":1}',
      'global guard: rebuild needs editor',
      'global guard: rebuild needs editor',
      'method guard: 2',
      'interceptor before rebuild',
      'pipe: param Number "seven"',
      'pipe: body Dto {"amount":1}',
    ]);
    expect(plain.document).toContain('how much');
  });

  it.each(Object.entries(PLACES))('%s', async (_, place) => {
    const controller = controllerWith(place);
    const { name, length } = (controller.prototype as { rebuild: () => unknown }).rebuild;
    expect([name, length]).toEqual([face.name, face.length]);
    const app = await startWith(controller);
    const seen = await observe(app);
    await app.close();
    expect(seen.document).toBe(plain.document);
    expect(seen.answers).toEqual(plain.answers);
    expect(seen.log).toEqual(plain.log);
  });
});

describe('the two decorators on one method', () => {
  let app: FencedApp;
  const generations: (number | undefined)[] = [];

  @Controller()
  class Both {
    @Post('right/:id')
    @Leased(['right:{params.id}', 'another:{params.id}'])
    @FencedWrite()
    async right(@Param('id') _id: string, @CurrentLease() lease?: Lease): Promise<string> {
      generations.push(lease?.generation);
      return lease!.key;
    }

    @Post('wrong/:id')
    @FencedWrite()
    @Leased('wrong:{params.id}')
    async wrong(): Promise<void> {
      generations.push(0);
    }
  }

  beforeAll(async () => {
    app = await startFencedApp({ http: true, controllers: [Both] });
  });
  afterAll(() => app.close());
  beforeEach(() => void generations.splice(0));

  const post = (path: string) =>
    request((app.app as never as { getHttpServer(): never }).getHttpServer()).post(path);

  it('with @Leased outside: the write is fenced, and @CurrentLease() is the lease of the first key', async () => {
    const { status, text, headers } = await post('/right/a%20b');
    expect([status, text]).toEqual([201, 'right:a%20b']);
    expect(headers['fencing-generation']).toBe(String(generations[0]));
    expect((await app.fencing.inspect('right:a%20b')).fence?.generation).toBe(generations[0]);
  });

  it('with @FencedWrite outside: refused before the method runs, since there is no lease to write under', async () => {
    expect((await post('/wrong/1')).status).toBe(500);
    expect(generations).toEqual([]);
  });
});
