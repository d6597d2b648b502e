import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Readable } from 'node:stream';
import { ReadableStream } from 'node:stream/web';
import { Controller, Get, type INestApplication, Sse, StreamableFile } from '@nestjs/common';
import { FencingService, Leased, LeaseLostError, LeaseReleasedError } from 'nestjs-fencing';
import { firstValueFrom, lastValueFrom, Observable, Subject, throwError } from 'rxjs';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { eventually } from './support/gate.js';

/** What a streaming method reads from: the test says what comes and when. */
class Producer implements AsyncIterableIterator<string> {
  readonly leases: (string | undefined)[] = [];
  isClosed = false;
  private readonly items: (string | undefined)[] = [];
  private wake: () => void = () => undefined;

  constructor(private readonly fencing: FencingService) {}

  push(...items: (string | undefined)[]): void {
    this.items.push(...items);
    this.wake();
  }

  async next(): Promise<IteratorResult<string>> {
    this.leases.push(this.fencing.current()?.key);
    while (this.items.length === 0 && !this.isClosed)
      await new Promise<void>((resolve) => (this.wake = resolve));
    const value = this.items.shift();
    if (value === 'fail') throw new Error('in the middle');
    if (value !== undefined) return { done: false, value };
    await this.return();
    return { done: true, value: undefined };
  }

  async return(): Promise<IteratorResult<string>> {
    this.isClosed = true;
    this.wake();
    return { done: true, value: undefined };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  observable(): Observable<string> {
    return new Observable((subscriber) => {
      const run = async (): Promise<void> => {
        for await (const item of { [Symbol.asyncIterator]: () => this }) subscriber.next(item);
        subscriber.complete();
      };
      run().catch((error: unknown) => subscriber.error(error));
      return () => void this.return();
    });
  }

  node(): Readable {
    return Readable.from(this, { objectMode: false });
  }

  web(): ReadableStream<Uint8Array> {
    return new ReadableStream({
      pull: async (controller) => {
        const { done, value } = await this.next();
        if (done) controller.close();
        else controller.enqueue(Buffer.from(value));
      },
      cancel: () => void this.return(),
    });
  }
}

let producer: Producer;
const quick = { ttlMs: 900, waitMs: 0 };

@Controller()
class Streams {
  @Sse('sse')
  @Leased('sse', quick)
  sse(): Observable<string> {
    return producer.observable();
  }

  @Leased('late-sse', quick)
  @Sse('late-sse')
  async lateSse(): Promise<Observable<string>> {
    return producer.observable();
  }

  @Get('file')
  @Leased('file', quick)
  file(): StreamableFile {
    return new StreamableFile(producer.node());
  }

  @Get('node')
  @Leased('node', quick)
  node(): Readable {
    return producer.node();
  }

  @Get('web')
  @Leased('web', quick)
  async web(): Promise<ReadableStream> {
    return producer.web();
  }

  @Get('response')
  @Leased('response', quick)
  async response(): Promise<Response> {
    return new Response(producer.web() as never, { status: 202, headers: { 'x-own': 'yes' } });
  }

  @Get('iterable')
  @Leased('iterable', quick)
  async iterable(): Promise<AsyncIterable<string>> {
    return { [Symbol.asyncIterator]: () => producer };
  }

  @Get('generator')
  @Leased('generator', quick)
  async generator(): Promise<AsyncIterable<string>> {
    return producer;
  }
}

const KINDS = ['sse', 'late-sse', 'file', 'node', 'web', 'response', 'iterable', 'generator'];
/** Read by events of a Node stream, so what produces it does not run in the method's context. */
const OUTSIDE = ['file', 'node'];

describe('a method that streams its result', () => {
  let app: FencedApp;
  let port: number;
  let client: { response: IncomingMessage; text: string; ended: Promise<unknown> };

  beforeAll(async () => {
    app = await startFencedApp({ http: true, fence: false, controllers: [Streams] });
    const nest = app.app as INestApplication;
    await nest.listen(0, '127.0.0.1');
    port = (nest.getHttpServer() as { address(): AddressInfo }).address().port;
  });
  afterAll(() => app.close());
  beforeEach(() => {
    producer = new Producer(app.fencing);
  });
  afterEach(() => void client?.response.destroy());

  /** Opens a stream and reads its first item. */
  async function open(kind: string): Promise<typeof client> {
    producer.push('one');
    const [response] = (await once(get({ port, path: `/${kind}`, agent: false }), 'response')) as [
      IncomingMessage,
    ];
    client = { response, text: '', ended: new Promise((resolve) => response.once('close', resolve)) };
    response.on('error', () => undefined);
    response.setEncoding('utf8').on('data', (text) => (client.text += text));
    await eventually(() => client.text.includes('one'));
    return client;
  }

  const holder = async (key: string) => (await app.fencing.inspect(key)).lease;
  /** As after an eviction or a flush: the store no longer knows the lease. */
  const lose = async (key: string) => app.redis.del(await app.redis.keys(`*:lease:${key}`));

  describe.each(KINDS)('%s', (kind) => {
    it('keeps its lease to the end of the stream, longer than its ttl', async () => {
      const stream = await open(kind);
      const { owner } = (await holder(kind))!;
      const since = performance.now();
      await eventually(async () => {
        expect((await holder(kind))?.owner).toBe(owner);
        return performance.now() - since > 2 * quick.ttlMs;
      });
      producer.push('two', undefined);
      await stream.ended;
      expect(stream.response.complete).toBe(true);
      expect(stream.text).toMatch(/one[^]*two/);
      // Nest sends the headers of an event stream before its handler has run.
      const generation = stream.response.headers['fencing-generation'];
      if (!kind.endsWith('sse')) expect(generation).toMatch(/^\d{16}$/);
      await eventually(async () => (await holder(kind)) === undefined);
      if (!OUTSIDE.includes(kind)) expect(new Set(producer.leases)).toEqual(new Set([kind]));
    });

    it('ends with the client: the producer is stopped and the key is free', async () => {
      const stream = await open(kind);
      stream.response.destroy();
      await eventually(() => producer.isClosed);
      await eventually(async () => (await holder(kind)) === undefined);
    });

    it('is ended by the loss of its lease', async () => {
      const stream = await open(kind);
      await lose(kind);
      await stream.ended;
      await eventually(() => producer.isClosed);
      expect(stream.text).not.toContain('two');
      expect(await holder(kind)).toBeUndefined();
    });

    it('lets the key go when it fails in the middle', async () => {
      const stream = await open(kind);
      producer.push('fail');
      await stream.ended;
      await eventually(async () => (await holder(kind)) === undefined);
    });
  });

  it('a web Response keeps its status and headers', async () => {
    const { response } = await open('response');
    expect([response.statusCode, response.headers['x-own']]).toEqual([202, 'yes']);
  });
});

describe('the result of a leased call that is a stream', () => {
  let app: FencedApp;
  beforeAll(async () => {
    app = await startFencedApp({ fence: false, providers: [Streams] });
  });
  afterAll(() => app.close());
  beforeEach(() => {
    producer = new Producer(app.fencing);
  });

  const free = (key: string) => eventually(async () => !(await app.fencing.inspect(key)).lease);

  it.each(KINDS)('%s: that nobody ever reads keeps the key for one ttl', async (kind) => {
    const name = kind.replace('late-sse', 'lateSse') as 'web';
    const result: unknown = await app.get(Streams)[name]();
    expect((await app.fencing.inspect(kind)).lease).toBeDefined();
    await free(kind);
    if (result instanceof Readable || result instanceof StreamableFile) return;
    if (result instanceof Observable) {
      await expect(firstValueFrom(result)).rejects.toThrow(LeaseReleasedError);
    } else if (!(result instanceof ReadableStream) && !(result instanceof Response)) {
      const iterator = (result as AsyncIterable<string>)[Symbol.asyncIterator]();
      await expect(iterator.next()).rejects.toThrow(LeaseReleasedError);
    }
  });

  it('of FencingService.run keeps its lease to the end as well', async () => {
    const { fencing } = app;
    async function* generate() {
      yield* producer;
    }
    const observable = (await fencing.run('run', {}, () => producer.observable()))!;
    producer.push('one', undefined);
    expect(await lastValueFrom(observable)).toBe('one');
    await free('run');
    producer = new Producer(fencing);
    const generator = (await fencing.run('run', {}, () => generate()))!;
    producer.push('one', undefined);
    for await (const item of generator) expect(item).toBe('one');
    expect(new Set(producer.leases)).toEqual(new Set(['run']));
    await free('run');
  });

  it('an Observable that completes or fails at once is given on, and frees the key', async () => {
    const completed = await Promise.resolve(app.get(Streams).sse());
    producer.push('one', undefined);
    await expect(firstValueFrom(completed)).resolves.toBe('one');
    await free('sse');
    class Failing {
      @Leased('failing')
      run(): Observable<never> {
        return throwError(() => new Error('at once'));
      }
    }
    await expect(firstValueFrom(await Promise.resolve(new Failing().run()))).rejects.toThrow('at once');
    await free('failing');
  });

  it('a read that is waiting when the lease is lost rejects with the reason', async () => {
    const iterator = (await app.get(Streams).generator())[Symbol.asyncIterator]();
    producer.push('one');
    await expect(iterator.next()).resolves.toEqual({ done: false, value: 'one' });
    const waiting = iterator.next();
    await app.redis.del(await app.redis.keys('*:lease:generator'));
    await expect(waiting).rejects.toThrow(LeaseLostError);
    await expect(iterator.next()).rejects.toThrow(LeaseLostError);
    expect(producer.isClosed).toBe(true);
  });

  it('two who read at once: the lease is kept to the end of the later one, and its loss ends both', async () => {
    const source = new Subject<number>();
    class Shared {
      @Leased('shared', { waitMs: 0, ttlMs: 900 })
      events(): Observable<number> {
        return source;
      }
    }
    const read = (events: Observable<number>, ends: string[], name: string) =>
      events.subscribe({ error: ({ code }: LeaseLostError) => ends.push(`${name} ${code}`) });
    for (const isLost of [false, true]) {
      const ends: string[] = [];
      const events = await Promise.resolve(new Shared().events());
      const first = read(events, ends, 'first');
      const second = read(events, ends, 'second');
      if (isLost) {
        await app.redis.del(await app.redis.keys('*:lease:shared'));
        await eventually(() => ends.length === 2);
        expect(ends).toEqual(['first LEASE_LOST', 'second LEASE_LOST']);
      } else {
        first.unsubscribe();
        expect((await app.fencing.inspect('shared')).lease).toBeDefined();
        second.unsubscribe();
      }
      await free('shared');
    }
  });

  it('a result that lets nobody look at it is given as it is, and does not keep the key', async () => {
    class Odd {
      @Leased('odd', { waitMs: 0 })
      give<T>(result: T): Promise<T> {
        return result as never;
      }
    }
    const odd = new Odd();
    const strict = new Proxy(
      { total: 1 },
      {
        get(target, name) {
          if (name in target || name === 'then') return target[name as 'total'];
          throw new Error(`no property ${String(name)}`);
        },
      },
    );
    expect((await odd.give(strict)).total).toBe(1);
    await free('odd');
  });

  it.each(['json', 'text', 'arrayBuffer', 'blob'] as const)(
    'a Response that its caller reads by %s() frees the key when it was read',
    async (how) => {
      const response = (await app.fencing.run('response', {}, async () => Response.json({ total: 1 })))!;
      expect((await app.fencing.inspect('response')).lease).toBeDefined();
      const copy = response.clone();
      await Promise.all([response[how](), expect(copy.json()).resolves.toEqual({ total: 1 })]);
      expect([response.status, response.bodyUsed]).toEqual([200, true]);
      await expect(response.text()).rejects.toThrow('Body');
      expect((await app.fencing.run('response', { waitMs: 1_000 }, () => 'free'))!).toBe('free');
    },
  );

  it('a Response of node-fetch, whose body is a Node stream, frees the key when it was read', async () => {
    class NodeFetchResponse {
      readonly [Symbol.toStringTag] = 'Response';
      readonly bodyUsed = false;
      readonly body = Readable.from([Buffer.from('{}')]);
      readonly json = async () => JSON.parse((await this.body.toArray()).join('')) as unknown;
    }
    const response = (await app.fencing.run('response', {}, async () => new NodeFetchResponse()))!;
    expect((await app.fencing.inspect('response')).lease).toBeDefined();
    expect(await response.json()).toEqual({});
    expect(await app.fencing.run('response', { waitMs: 1_000 }, () => 'free')).toBe('free');
  });

  it('a generator that its reader ends by throw() frees the key', async () => {
    async function* generate() {
      try {
        yield 1;
      } catch {
        yield 2;
      }
    }
    const generator = (await app.fencing.run('thrown', {}, () => generate()))!;
    await expect(generator.next()).resolves.toEqual({ done: false, value: 1 });
    await expect(generator.throw(new Error('go on'))).resolves.toEqual({ done: false, value: 2 });
    expect((await app.fencing.inspect('thrown')).lease).toBeDefined();
    await expect(generator.throw(new Error('no'))).rejects.toThrow('no');
    expect(await app.fencing.run('thrown', { waitMs: 1_000 }, () => 'free')).toBe('free');
  });

  it('a generator that is left by "await using" frees the key', async () => {
    async function* generate() {
      yield* [1, 2];
    }
    // As Node 24 gives every generator one.
    const disposable = Object.assign(generate(), { [Symbol.asyncDispose]: async () => undefined });
    {
      await using generator = (await app.fencing.run('used', {}, () => disposable))!;
      await expect(generator.next()).resolves.toEqual({ done: false, value: 1 });
    }
    expect(await app.fencing.run('used', { waitMs: 1_000 }, () => 'free')).toBe('free');
  });

  it('a frozen async iterable is read as any other', async () => {
    class Frozen {
      @Leased('frozen', { waitMs: 0 })
      async rows(): Promise<AsyncIterable<number>> {
        return Object.freeze({
          async *[Symbol.asyncIterator]() {
            yield 1;
          },
        });
      }
    }
    const rows: number[] = [];
    for await (const row of await new Frozen().rows()) rows.push(row);
    expect(rows).toEqual([1]);
  });

  it('a Node stream that is over already, or a locked web stream, does not keep the key', async () => {
    class Over {
      @Leased('over')
      async node(): Promise<Readable> {
        const stream = producer.node();
        stream.destroy();
        await once(stream, 'close');
        return stream;
      }

      @Leased('locked')
      async web(): Promise<ReadableStream> {
        const stream = producer.web();
        stream.getReader();
        return stream;
      }
    }
    await new Over().node();
    await new Over().web();
    await free('over');
    await free('locked');
  });

  it('a stream that ended well emits no error, though its lease ends with it', async () => {
    class Lasting {
      // Such a stream is not destroyed by its end; sockets and requests are of that kind.
      @Leased('lasting')
      async node(): Promise<Readable> {
        return Readable.from(producer, { objectMode: false, autoDestroy: false });
      }
    }
    const stream = await new Lasting().node();
    const errors: unknown[] = [];
    stream.on('error', (error) => errors.push(error));
    producer.push('one', undefined);
    for await (const chunk of stream) expect(String(chunk)).toBe('one');
    await free('lasting');
    await new Promise(setImmediate);
    expect(errors).toEqual([]);
    expect(stream.destroyed).toBe(false);
  });
});
