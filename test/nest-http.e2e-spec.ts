import { afterAll, afterEach, beforeAll, describe, expect, it } from '@jest/globals';
import {
  type ArgumentsHost,
  Body,
  type CanActivate,
  Catch,
  Controller,
  type ExceptionFilter,
  type ExecutionContext,
  Get,
  Injectable,
  Param,
  Post,
  UseFilters,
} from '@nestjs/common';
import { APP_FILTER, APP_GUARD } from '@nestjs/core';
import {
  CommitUnknownError,
  CurrentLease,
  FencedWrite,
  FencingError,
  FencingExceptionFilter,
  FencingService,
  type Lease,
  LeaseBusyError,
  Leased,
  LeaseKeyError,
  LeaseLostError,
  LeaseReleasedError,
  LeaseUncertainError,
  NoLeaseError,
  OperationConflictError,
  StaleGenerationError,
  StoreUnavailableError,
  WaitAbortedError,
} from 'nestjs-fencing';
import request from 'supertest';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';

const SECRET = 'jane.doe@example.com';

@Injectable()
class UserGuard implements CanActivate {
  constructor(private readonly fencing: FencingService) {}

  canActivate(context: ExecutionContext): boolean {
    const req = context.switchToHttp().getRequest<{ user?: object; headers: Record<string, string> }>();
    req.user = { id: req.headers['x-user'] };
    return this.fencing.current() === undefined;
  }
}

@Controller('keys')
class Keys {
  @Post('params/:id')
  @Leased('params:{params.id}')
  async params(@CurrentLease() lease?: Lease): Promise<string> {
    return lease!.key;
  }

  @Post('body')
  @Leased('body:{body.order.id}')
  async body(@CurrentLease() lease?: Lease): Promise<string> {
    return lease!.key;
  }

  @Get('query')
  @Leased('query:{query.q}')
  async query(@CurrentLease() lease?: Lease): Promise<string> {
    return lease!.key;
  }

  @Get('headers')
  @Leased('headers:{headers.X-Tenant}')
  async headers(@CurrentLease() lease?: Lease): Promise<string> {
    return lease!.key;
  }

  @Get('nested')
  @Leased('nested')
  async nested(@CurrentLease() lease?: Lease): Promise<string> {
    await this.argument(undefined, 'nested', { n: 1 });
    return String(lease!.generation);
  }

  @Get('user')
  @Leased('user:{user.id}')
  async user(@CurrentLease() lease?: Lease): Promise<string> {
    return lease!.key;
  }

  @Post('argument/:id')
  @Leased((_lease: unknown, id: string, body: { n: number }) => `argument:${id}/${body.n}`)
  async argument(
    @CurrentLease() lease: Lease | undefined,
    @Param('id') _id: string,
    @Body() _body: object,
  ): Promise<string> {
    return lease!.key;
  }
}

/** What a handler throws, by the name in the path. */
const OUTCOMES: Record<string, () => unknown> = {
  busy: () => new LeaseBusyError(SECRET, 10, 2_100),
  'busy-now': () => new LeaseBusyError(SECRET, 10, 0),
  stale: () => new StaleGenerationError(SECRET, 7, 8),
  lost: () => new LeaseLostError(SECRET, 7, 'expired'),
  released: () => new LeaseReleasedError(SECRET, 7),
  unavailable: () => new StoreUnavailableError('lease store', 'no answer within 2000 ms.', { key: SECRET }),
  uncertain: () => new LeaseUncertainError(SECRET, 7),
  aborted: () => new WaitAbortedError(SECRET, new Error(SECRET)),
  unknown: () => new CommitUnknownError(SECRET, new Error(SECRET)),
  conflict: () => new OperationConflictError(SECRET),
  key: () => new LeaseKeyError('@Leased on Reports.rebuild', 'a part is missing', new Error(SECRET)),
  'no-lease': () => new NoLeaseError('@FencedWrite on Reports.publish'),
};

@Catch()
class RecordingFilter implements ExceptionFilter {
  seen: unknown[] = [];
  constructor(private readonly fencing: FencingService) {}

  catch(error: unknown, host: ArgumentsHost): void {
    this.seen.push(error, this.fencing.current());
    host
      .switchToHttp()
      .getResponse<{ status(code: number): { json(body: object): void } }>()
      .status(418)
      .json({ own: error instanceof FencingError });
  }
}

@Controller('outcomes')
class Outcomes {
  @Get('plain/:name')
  fail(@Param('name') name: string): never {
    throw OUTCOMES[name]!();
  }

  @Get('own/:name')
  @UseFilters(RecordingFilter)
  @Leased('own:{params.name}')
  own(@Param('name') name: string): never {
    throw OUTCOMES[name]!();
  }

  @Get('opted-in/:name')
  @UseFilters(FencingExceptionFilter)
  optedIn(@Param('name') name: string): never {
    throw OUTCOMES[name]!();
  }

  @Get('outside')
  @FencedWrite()
  async outside(): Promise<void> {}
}

const server = (app: FencedApp) => (app.app as never as { getHttpServer(): never }).getHttpServer();

describe('keys from the request', () => {
  let app: FencedApp;
  beforeAll(async () => {
    app = await startFencedApp({
      http: true,
      fence: false,
      controllers: [Keys],
      providers: [{ provide: APP_GUARD, useClass: UserGuard }],
    });
  });
  afterAll(() => app.close());

  it.each<[string, (agent: ReturnType<typeof request>) => request.Test, string]>([
    ['{params.id}', (agent) => agent.post('/keys/params/a%3Ab'), 'params:a%3Ab'],
    ['{body.order.id}', (agent) => agent.post('/keys/body').send({ order: { id: 42 } }), 'body:42'],
    ['{query.q}', (agent) => agent.get('/keys/query?q=%7Bx%7D'), 'query:%7Bx%7D'],
    ['{headers.X-Tenant}', (agent) => agent.get('/keys/headers').set('x-tenant', 'acme'), 'headers:acme'],
    ['{user.id}', (agent) => agent.get('/keys/user').set('x-user', 'u1'), 'user:u1'],
    ['a function of the arguments', (agent) => agent.post('/keys/argument/7').send({ n: 1 }), 'argument:7/1'],
  ])('%s; the answer has the header Fencing-Generation', async (_, send, key) => {
    const { status, text, headers } = await send(request(server(app)));
    expect(text).toBe(key);
    expect(status).toBeLessThan(300);
    expect(headers['fencing-generation']).toMatch(/^[1-9]\d{15}$/);
    expect((await app.fencing.inspect(key)).lease).toBeUndefined();
  });

  it('the header Fencing-Generation is of the lease of the handler, also where that calls other leased methods', async () => {
    const { text, headers } = await request(server(app)).get('/keys/nested');
    expect(headers['fencing-generation']).toBe(text);
  });

  it.each<[string, (agent: ReturnType<typeof request>) => request.Test]>([
    ['body that is missing', (agent) => agent.post('/keys/body')],
    ['part of the body that is missing', (agent) => agent.post('/keys/body').send({ order: {} })],
    ['part of the body that is null', (agent) => agent.post('/keys/body').send({ order: { id: null } })],
    ['part of the body that is empty', (agent) => agent.post('/keys/body').send({ order: { id: ' ' } })],
    ['part of the body that is an object', (agent) => agent.post('/keys/body').send({ order: { id: {} } })],
    ['query parameter that is missing', (agent) => agent.get('/keys/query')],
    ['query parameter that is there twice', (agent) => agent.get('/keys/query?q=1&q=2')],
    ['header that is missing', (agent) => agent.get('/keys/headers')],
    ['user without an id', (agent) => agent.get('/keys/user')],
    ['argument that is undefined', (agent) => agent.post('/keys/argument/7').send({})],
  ])('a %s is 400, says which, and takes no lease', async (_, send) => {
    const { status, body, headers } = await send(request(server(app)));
    expect(status).toBe(400);
    expect(body).toMatchObject({ status: 400, code: 'INVALID_KEY' });
    expect(body.detail).toMatch(
      /^@Leased on Keys\.\w+: (\{\w+\.\S+\} of the key|a part of a lease key is missing)/,
    );
    expect(headers['fencing-generation']).toBeUndefined();
  });
});

describe('errors over HTTP', () => {
  let app: FencedApp;
  beforeAll(async () => {
    app = await startFencedApp({ http: true, controllers: [Outcomes], providers: [RecordingFilter] });
  });
  afterAll(() => app.close());

  it.each([
    ['busy', 423, 'LEASE_BUSY'],
    ['stale', 409, 'STALE_GENERATION'],
    ['lost', 409, 'LEASE_LOST'],
    ['released', 409, 'LEASE_RELEASED'],
    ['unavailable', 503, 'STORE_UNAVAILABLE'],
    ['uncertain', 503, 'LEASE_UNCERTAIN'],
    ['aborted', 503, 'WAIT_ABORTED'],
    ['unknown', 503, 'COMMIT_UNKNOWN'],
    ['conflict', 422, 'OPERATION_CONFLICT'],
    ['key', 400, 'INVALID_KEY'],
  ])('%s is %i, as a problem document with the code %s and no key text', async (name, status, code) => {
    const answer = await request(server(app)).get(`/outcomes/plain/${name}`);
    expect(answer.status).toBe(status);
    expect(answer.headers['content-type']).toMatch(/^application\/problem\+json/);
    expect(answer.body).toEqual({
      type: 'about:blank',
      status,
      title: expect.any(String),
      code,
      detail: (OUTCOMES[name]!() as Error).message,
    });
    expect(answer.text).not.toContain('jane');
  });

  it('busy says when to try again, in whole seconds and at least one', async () => {
    expect((await request(server(app)).get('/outcomes/plain/busy')).headers['retry-after']).toBe('3');
    expect((await request(server(app)).get('/outcomes/plain/busy-now')).headers['retry-after']).toBe('1');
    expect((await request(server(app)).get('/outcomes/plain/stale')).headers['retry-after']).toBeUndefined();
  });

  it('faults of the application stay 500, without a word about them', async () => {
    for (const path of ['/outcomes/plain/no-lease', '/outcomes/outside']) {
      const { status, body } = await request(server(app)).get(path);
      expect(status).toBe(500);
      expect(body).toEqual({ statusCode: 500, message: 'Internal server error' });
    }
  });

  it("a filter of the application's own goes first; by then the call is over and its lease released", async () => {
    const { seen } = app.get(RecordingFilter);
    seen.length = 0;
    expect((await request(server(app)).get('/outcomes/own/stale')).status).toBe(418);
    expect(seen).toEqual([expect.any(StaleGenerationError), undefined]);
    expect((await app.fencing.inspect('own:stale')).lease).toBeUndefined();
  });
});

describe('httpErrors: false', () => {
  let app: FencedApp | undefined;
  afterEach(async () => {
    await app?.close();
  });

  it('leaves the answer to Nest: 500; a controller may still opt in', async () => {
    app = await startFencedApp({
      http: true,
      controllers: [Outcomes],
      providers: [RecordingFilter],
      fencing: { httpErrors: false },
    });
    expect((await request(server(app)).get('/outcomes/plain/busy')).status).toBe(500);
    expect((await request(server(app)).get('/outcomes/opted-in/busy')).status).toBe(423);
  });

  it("leaves the error to a catch-all filter of the application's own", async () => {
    app = await startFencedApp({
      http: true,
      controllers: [Outcomes],
      providers: [RecordingFilter, { provide: APP_FILTER, useExisting: RecordingFilter }],
      fencing: { httpErrors: false },
    });
    expect((await request(server(app)).get('/outcomes/plain/busy')).body).toEqual({ own: true });
  });
});
