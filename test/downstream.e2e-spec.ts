import { jest } from '@jest/globals';
import { AsyncResource } from 'node:async_hooks';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { PassThrough } from 'node:stream';
import {
  Body,
  Controller,
  type ExecutionContext,
  Get,
  type INestApplication,
  Injectable,
  Param,
  Post,
  StreamableFile,
} from '@nestjs/common';
import { InjectRepository } from '@nestjs/typeorm';
import {
  AcceptFencing,
  CurrentLease,
  FencedWrite,
  FencingConfigError,
  fencingHeaders,
  FencingService,
  type Lease,
  Leased,
  NoLeaseError,
} from 'nestjs-fencing';
import { MemoryLeaseStore } from 'nestjs-fencing/testing';
import { Column, Entity, PrimaryColumn, type Repository } from 'typeorm';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { eventually, Gate } from './support/gate.js';
import { freshDatabase } from './support/postgres-server.js';

const SECRET = 'x-internal-token';

@Entity('charge')
class Charge {
  @PrimaryColumn('text') id!: string;
  @Column('text') text!: string;
}

@Injectable()
class Charges {
  readonly entered = new Gate();
  readonly mayWrite = new Gate();
  readonly seen: (Lease | undefined)[] = [];

  constructor(@InjectRepository(Charge) readonly charges: Repository<Charge>) {}

  @FencedWrite()
  async write(id: string, text: string, @CurrentLease() lease?: Lease): Promise<object> {
    this.seen.push(lease);
    await this.charges.save({ id, text });
    return { generation: lease!.generation, owner: lease!.owner };
  }

  @Leased('order:{0}')
  takeOver(id: string, text: string): Promise<object> {
    return this.write(id, text);
  }
}

const yes = (): boolean => true;
const trust = (context: ExecutionContext) => context.switchToHttp().getRequest().headers[SECRET] === 'yes';

@Controller()
class ChargesController {
  constructor(
    private readonly charges: Charges,
    private readonly fencing: FencingService,
  ) {}

  @Post('charges/:id')
  @AcceptFencing({ trust })
  charge(@Param('id') id: string, @Body() body: { text: string }) {
    return this.charges.write(id, body.text);
  }

  @Post('slow/:id')
  @AcceptFencing({ trust: async (context) => trust(context) })
  async slow(@Param('id') id: string) {
    this.charges.entered.open();
    await this.charges.mayWrite.wait();
    return this.charges.write(id, 'slow');
  }

  @Post('brief/:id')
  @AcceptFencing({ trust, ttlMs: 300 })
  async brief(@Param('id') id: string) {
    const { signal } = this.fencing.current()!;
    await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }));
    return this.charges.write(id, 'too late');
  }

  @Post('joined/:id')
  @AcceptFencing({ trust })
  joined(@Param('id') id: string) {
    return this.charges.takeOver(id, 'joined');
  }

  @Get('open/:id')
  @AcceptFencing({ trust, required: false })
  open(@Param('id') id: string) {
    return this.charges.write(id, 'open');
  }

  @Post('own/:id')
  own(@Param('id') id: string) {
    return this.charges.write(id, 'without @AcceptFencing');
  }

  @Post('plain/:id')
  plain(@Param('id') id: string, @Body() { text }: { text: string }) {
    return this.charges.charges.save({ id, text });
  }

  @Post('doubtful/:id')
  @AcceptFencing({ trust: async () => false })
  doubtful(@Param('id') id: string) {
    return this.charges.write(id, 'doubtful');
  }

  @Post('only-orders/:id')
  @AcceptFencing({ trust: (_, { key }) => key.startsWith('order:') })
  onlyOrders(@Param('id') id: string) {
    return this.charges.write(id, 'order');
  }

  @Post('elsewhere/:id')
  @AcceptFencing({
    trust: () => true,
    headers: (context) => context.switchToHttp().getRequest().body.fencing,
  })
  elsewhere(@Param('id') id: string) {
    return this.charges.write(id, 'elsewhere');
  }

  @Post('streamed/:id')
  @AcceptFencing({ trust })
  streamed(@Param('id') id: string) {
    const stream = new PassThrough();
    const report = async () => {
      stream.write('begun ');
      await this.charges.mayWrite.wait();
      await this.charges.write(id, 'streamed');
      stream.end('written');
    };
    report().catch((error: Error) => stream.destroy(error));
    return new StreamableFile(stream);
  }
}

describe('a service downstream', () => {
  let upstream: FencedApp;
  let downstream: FencedApp;
  let charges: Charges;
  let url: string;
  const store = new MemoryLeaseStore();
  let database: Awaited<ReturnType<typeof freshDatabase>>;

  beforeAll(async () => {
    // Each has a database of its own; they share nothing but what the requests carry.
    database = await freshDatabase();
    upstream = await startFencedApp();
    downstream = await startFencedApp({
      http: true,
      databaseUrl: database.url,
      leases: store,
      entities: [Charge],
      controllers: [ChargesController],
      providers: [Charges],
    });
    const http = downstream.app as INestApplication;
    await http.listen(0, '127.0.0.1');
    url = await http.getUrl();
  });
  afterAll(async () => {
    await upstream.close();
    await downstream.close();
    await database.drop();
  });
  beforeEach(async () => {
    await downstream.dataSource.query('TRUNCATE charge');
    charges = downstream.get(Charges);
    Object.assign(charges, { entered: new Gate(), mayWrite: new Gate(), seen: [] });
  });

  const post = async (path: string, headers: object = fencingHeaders(), body: object = { text: 'x' }) => {
    const answer = await fetch(`${url}/${path}`, {
      method: path.startsWith('open') ? 'GET' : 'POST',
      headers: { 'Content-Type': 'application/json', [SECRET]: 'yes', ...headers },
      body: path.startsWith('open') ? undefined : JSON.stringify(body),
    });
    const text = await answer.text();
    return {
      status: answer.status,
      text,
      body: (text.startsWith('{') ? JSON.parse(text) : {}) as { code?: string },
    };
  };
  const under = <T>(key: string, work: (lease: Lease) => Promise<T>) =>
    upstream.fencing.run(key, { ttlMs: 60_000 }, work) as Promise<T>;
  /** Headers of a grant of the key, which ends before they are used. */
  const headersOf = (key: string) => under(key, async () => fencingHeaders());
  const fence = async (key: string) => (await downstream.fencing.inspect(key)).fence;
  const rows = () => downstream.dataSource.getRepository(Charge).find();

  it('writes under the generation and the owner of the caller, and remembers them in its own database', async () => {
    await under('order:1', async (lease) => {
      const { status, body } = await post('charges/1');
      expect(status).toBe(201);
      expect(body).toEqual({ generation: lease.generation, owner: lease.owner });
      expect(await fence('order:1')).toMatchObject({ generation: lease.generation, owner: lease.owner });
    });
    expect(await rows()).toEqual([{ id: '1', text: 'x' }]);
  });

  it('accepts any number of requests of one grant, also at once', async () => {
    await under('order:2', async () => {
      const answers = await Promise.all([1, 2, 3, 4].map((n) => post(`charges/${n}`)));
      expect(answers.map(({ status }) => status)).toEqual([201, 201, 201, 201]);
    });
    expect(await rows()).toHaveLength(4);
  });

  it('refuses a grant that is older than one it has accepted: 409, and the handler does not run', async () => {
    const older = await headersOf('order:3');
    const newer = await headersOf('order:3');
    expect(await post('charges/3', newer)).toMatchObject({ status: 201 });
    charges.seen.length = 0;
    expect(await post('charges/3', older, { text: 'late' })).toMatchObject({
      status: 409,
      body: { code: 'STALE_GENERATION' },
    });
    charges.mayWrite.open();
    expect(await post('slow/3', older)).toMatchObject({ status: 409, body: { code: 'STALE_GENERATION' } });
    expect(charges.entered.isOpen).toBe(false);
    expect(charges.seen).toEqual([]);
    expect(await rows()).toEqual([{ id: '3', text: 'x' }]);
  });

  it('refuses the write of an older grant that was at work when a newer one came', async () => {
    const older = await headersOf('order:4');
    const slow = post('slow/4', older);
    await charges.entered.wait();
    expect(await post('charges/4', await headersOf('order:4'))).toMatchObject({ status: 201 });
    charges.mayWrite.open();
    expect(await slow).toMatchObject({ status: 409, body: { code: 'STALE_GENERATION' } });
    expect(await rows()).toEqual([{ id: '4', text: 'x' }]);
  });

  it('refuses the same generation of another owner', async () => {
    const headers = await headersOf('order:5');
    await post('charges/5', headers);
    expect(await post('charges/5', { ...headers, 'Fencing-Owner': 'somebody-else' })).toMatchObject({
      status: 409,
      body: { code: 'STALE_GENERATION' },
    });
  });

  it.each([
    'order:ä/€ {x} "q" %2F',
    "k'; DROP TABLE charge; --",
    'line\nbreak\t',
    '🙂:1',
    ' lead and trail ',
  ])('takes any key that a lease can have: %j', async (key) => {
    expect(await post('charges/6', await headersOf(key))).toMatchObject({ status: 201 });
    expect(await fence(key)).toBeDefined();
  });

  describe('trusts only whom the application trusts', () => {
    it('a caller that is not trusted is refused, and fences nobody off', async () => {
      const headers = await headersOf('order:7');
      const forged = { ...headers, 'Fencing-Generation': String(Number.MAX_SAFE_INTEGER), [SECRET]: 'no' };
      expect(await post('charges/7', forged)).toMatchObject({
        status: 400,
        body: { code: 'INVALID_FENCING_HEADERS' },
      });
      expect(await fence('order:7')).toBeUndefined();
      expect(await post('charges/7', headers)).toMatchObject({ status: 201 });
    });

    it('a promise of false is no trust', async () =>
      expect(await post('doubtful/7', await headersOf('order:71'))).toMatchObject({ status: 400 }));

    it('trust may go by the key', async () => {
      expect(await post('only-orders/7', await headersOf('order:72'))).toMatchObject({ status: 201 });
      expect(await post('only-orders/7', await headersOf('user:72'))).toMatchObject({ status: 400 });
    });

    it('headers to a handler that does not accept any are nothing to it: its write has no lease', async () =>
      expect(await post('own/7', await headersOf('order:73'))).toMatchObject({ status: 500 }));
  });

  it('a malformed grant is refused with 400, and the handler does not run', async () => {
    const headers = await headersOf('order:8');
    for (const wrong of [{ 'Fencing-Generation': '0' }, { 'Fencing-Key': '%FF' }, { 'Fencing-Owner': '' }]) {
      expect(await post('charges/8', { ...headers, ...wrong })).toMatchObject({
        status: 400,
        body: { code: 'INVALID_FENCING_HEADERS' },
      });
    }
    expect(charges.seen).toEqual([]);
  });

  it('a request without a grant is refused, or runs without a lease where none is required', async () => {
    expect(await post('charges/9', {})).toMatchObject({
      status: 400,
      body: { code: 'INVALID_FENCING_HEADERS' },
    });
    expect(await post('open/9', {})).toMatchObject({ status: 500 });
    expect(await post('open/9', await headersOf('order:9'))).toMatchObject({ status: 200 });
  });

  it('a leased method of the same key joins the accepted lease', async () => {
    await under('order:10', async (lease) => {
      expect((await post('joined/10')).body).toEqual({ generation: lease.generation, owner: lease.owner });
    });
  });

  it('the fields may be wherever the application says', async () => {
    const fencing = await headersOf('order:11');
    expect(await post('elsewhere/11', {}, { fencing })).toMatchObject({ status: 201 });
    expect(await post('elsewhere/11', {}, {})).toMatchObject({ status: 400 });
  });

  it('the accepted lease ends with its request: late work is refused', async () => {
    await under('order:12', () => post('charges/12'));
    const [lease] = charges.seen;
    expect(lease!.state).toBe('released');
    expect(lease!.signal.aborted).toBe(false);
  });

  it('the accepted lease lasts until a streamed answer ends', async () => {
    const headers = await headersOf('order:13');
    const answer = post('streamed/13', headers);
    charges.mayWrite.open();
    expect(await answer).toMatchObject({ status: 201, text: 'begun written' });
    await eventually(() => charges.seen[0]!.state === 'released');
  });

  it('a handler that hangs may write for ttlMs and no longer', async () => {
    expect(await post('brief/14', await headersOf('order:14'))).toMatchObject({
      status: 409,
      body: { code: 'LEASE_LOST' },
    });
    expect(await rows()).toEqual([]);
  });

  it('nothing of the accepted lease is asked of its own lease store', async () => {
    const asked = (['acquire', 'renew', 'release'] as const).map((step) => jest.spyOn(store, step));
    await under('order:15', () => post('charges/15'));
    for (const step of asked) expect(step).not.toHaveBeenCalled();
    asked.forEach((step) => step.mockRestore());
  });

  it('without @AcceptFencing the hole is open: the late request of an older owner wins', async () => {
    const older = await headersOf('order:16');
    const newer = await headersOf('order:16');
    await post('plain/16', newer, { text: 'newer' });
    await post('plain/16', older, { text: 'older' });
    expect(await rows()).toEqual([{ id: '16', text: 'older' }]);
  });

  describe('fencingHeaders()', () => {
    it('outside a lease there is nothing to send', () =>
      expect(() => fencingHeaders()).toThrow(NoLeaseError));

    it('of several leases one must be named', async () => {
      await under('order:17', (outer) =>
        under('order:18', async (inner) => {
          expect(() => fencingHeaders()).toThrow(FencingConfigError);
          expect(fencingHeaders(outer)['Fencing-Key']).toBe('order%3A17');
          expect(fencingHeaders(inner)['Fencing-Generation']).toBe(String(inner.generation));
        }),
      );
    });

    it('of a lease that has ended are refused', async () => {
      const lease = await under('order:19', async (one) => one);
      const late = await under('order:20', async () => AsyncResource.bind(() => fencingHeaders()));
      expect(late).toThrow(expect.objectContaining({ code: 'LEASE_RELEASED' }));
      expect(() => fencingHeaders(lease)).toThrow(expect.objectContaining({ code: 'LEASE_RELEASED' }));
      expect(() => fencingHeaders({} as Lease)).toThrow(FencingConfigError);
    });

    it('every key is a legal header value', async () => {
      const server: Server = createServer((request, response) =>
        response.end(JSON.stringify(request.headers)),
      );
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
      try {
        await under('k: ü\r\nSet-Cookie: a=b\u2028', async () => {
          const answer = await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, {
            headers: { ...fencingHeaders() },
          });
          expect(await answer.json()).toMatchObject({
            'fencing-key': encodeURIComponent('k: ü\r\nSet-Cookie: a=b\u2028'),
          });
        });
      } finally {
        server.closeAllConnections();
        await new Promise((resolve) => server.close(resolve));
      }
    });
  });

  it.each([
    ['no options', undefined],
    ['no trust', {}],
    ['trust that is no function', { trust: true }],
    ['an unknown option', { trust: yes, trusted: true }],
    ['a wrong ttlMs', { trust: yes, ttlMs: '2s' }],
    ['headers that are no function', { trust: yes, headers: {} }],
    ['required that is no boolean', { trust: yes, required: 'yes' }],
  ])('%s is refused at decoration', (_, options) => {
    expect(() =>
      AcceptFencing(options as never)(ChargesController.prototype, 'charge', { value: () => 1 }),
    ).toThrow(FencingConfigError);
  });

  it('without a fence the application does not start', async () => {
    @Controller()
    class Unfenced {
      @Post('x')
      @AcceptFencing({ trust: () => true })
      handle() {}
    }
    const start = startFencedApp({ fence: false, leases: new MemoryLeaseStore(), controllers: [Unfenced] });
    await expect(start).rejects.toThrow(/Unfenced\.handle .*has no fence/);
  });
});
