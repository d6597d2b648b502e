import { Redis } from 'ioredis';
import { Redis as Redis5 } from 'ioredis5';
import pg from 'pg';
import { eventually } from './gate.js';
import { TcpProxy } from './proxy.js';
import { type Exchange, type Message, PostgresWire, RedisWire } from './wire.js';

describe('TcpProxy in front of Redis', () => {
  let proxy: TcpProxy;
  let direct: Redis;
  const clients: (Redis | Redis5)[] = [];

  beforeEach(async () => {
    proxy = await TcpProxy.start(process.env.REDIS_URL!);
    direct = connected(new Redis(process.env.REDIS_URL!));
    await direct.flushdb();
  });
  afterEach(async () => {
    for (const client of clients.splice(0)) client.disconnect();
    await proxy.stop();
  });

  function connected<T extends Redis | Redis5>(client: T): T {
    client.on('error', () => undefined);
    clients.push(client);
    return client;
  }
  const through = () =>
    connected(
      new Redis(proxy.url, { maxRetriesPerRequest: 0, retryStrategy: (times) => Math.min(50, times * 5) }),
    );

  it.each([
    ['ioredis 6', () => through()],
    ['ioredis 5', () => connected(new Redis5(proxy.url))],
    ['ioredis 6, RESP3', () => connected(new Redis(proxy.url, { protocol: 3 } as object))],
  ])('passes everything on and counts commands: %s', async (_, client) => {
    const redis = client();
    await redis.ping();
    proxy.forget();
    const big = 'x'.repeat(300_000);
    expect(await redis.set('a', big)).toBe('OK');
    expect(await redis.get('a')).toBe(big);
    const answers = await redis
      .pipeline()
      .hset('h', { f: '1\r\n$5', g: 'ü' })
      .hgetall('h')
      .eval('return {1, {2, "x"}, false}', 0)
      .get('none')
      .exec();
    expect(answers!.map(([, answer]) => answer)).toEqual([
      2,
      { f: '1\r\n$5', g: 'ü' },
      [1, [2, 'x'], null],
      null,
    ]);
    expect(proxy.requests.map(({ type }) => type)).toEqual(['SET', 'GET', 'HSET', 'HGETALL', 'EVAL', 'GET']);
    expect(proxy.count('GET')).toBe(2);
    expect(proxy.requests.at(-1)!.text.toLowerCase()).toBe('get none');
  });

  it('swallows the reply to one matching request, which the server has carried out, and breaks that connection', async () => {
    const redis = through();
    await redis.ping();
    const swallowed = proxy.swallowReplyOnce((request) => request.startsWith('incr b'));
    const results = await Promise.allSettled([redis.incr('a'), redis.incr('b'), redis.incr('c')]);
    expect(results.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'rejected']);
    expect(await swallowed).toBe('incr b');
    expect(await direct.mget('a', 'b', 'c')).toEqual(['1', '1', '1']);
    expect(await redis.incr('b')).toBe(2); // reconnected, and armed once only
  });

  it('can swallow a reply and leave the connection open', async () => {
    const redis = through();
    await redis.ping();
    const swallowed = proxy.swallowReplyOnce(undefined, { keepOpen: true });
    const lost = redis.incr('a');
    lost.catch(() => undefined);
    expect(await swallowed).toBe('incr a');
    expect(await direct.get('a')).toBe('1');
    expect(proxy.connections).toBe(1);
    proxy.cutAll();
    await expect(lost).rejects.toThrow('max retries');
  });

  it('leaves pushed messages of a subscriber alone', async () => {
    const subscriber = through();
    const messages: string[] = [];
    subscriber.on('message', (_channel, message) => messages.push(message));
    await subscriber.subscribe('one', 'two');
    await direct.publish('two', 'hello');
    await eventually(() => messages.includes('hello'));
  });

  it('stalls one direction: a request goes through, its reply waits', async () => {
    const redis = through();
    await redis.ping();
    proxy.stall('replies');
    const answer = redis.incr('a');
    await eventually(async () => (await direct.get('a')) === '1');
    proxy.resume();
    expect(await answer).toBe(1);

    proxy.stall('requests');
    const second = redis.incr('a');
    await eventually(() => proxy.requests.at(-1)!.text === 'incr a' && proxy.count('INCR') === 2);
    expect(await direct.get('a')).toBe('1');
    proxy.resume('requests');
    expect(await second).toBe(2);
  });

  it('keeps the end of a connection back while it is stalled, so that the server does not see its client go', async () => {
    const redis = through();
    await redis.client('SETNAME', 'halfopen');
    const seen = async () => String(await direct.client('LIST')).includes('name=halfopen');
    proxy.stall();
    redis.disconnect();
    await eventually(() => redis.status === 'end');
    expect(await seen()).toBe(true);
    proxy.resume();
    await eventually(async () => !(await seen()));
  });

  it('delays replies and keeps their order', async () => {
    const redis = through();
    await redis.ping();
    proxy.delayReplies(100);
    const started = performance.now();
    const first = redis.incr('a');
    await first;
    expect(performance.now() - started).toBeGreaterThan(95);
    const slow = redis.incr('a');
    await eventually(async () => (await direct.get('a')) === '2');
    proxy.delayReplies(0);
    expect(await Promise.all([slow, redis.incr('a')])).toEqual([2, 3]);
  });

  it('refuses new connections and cuts those that exist', async () => {
    const redis = through();
    await redis.ping();
    proxy.refuse();
    expect(await redis.ping()).toBe('PONG');
    proxy.cutAll();
    const errors: string[] = [];
    redis.on('error', (error: NodeJS.ErrnoException) => errors.push(error.code ?? error.message));
    await eventually(() => errors.includes('ECONNREFUSED'));
    expect(proxy.connections).toBe(0);
    await proxy.accept();
    await eventually(() => redis.ping());
  });
});

describe('TcpProxy in front of PostgreSQL', () => {
  let proxy: TcpProxy;
  let pool: pg.Pool;
  let direct: pg.Pool;

  beforeEach(async () => {
    proxy = await TcpProxy.start(process.env.DATABASE_URL!);
    pool = new pg.Pool({ connectionString: proxy.url, max: 4 });
    pool.on('error', () => undefined);
    direct = new pg.Pool({ connectionString: process.env.DATABASE_URL });
    await direct.query('DROP TABLE IF EXISTS proxied; CREATE TABLE proxied (id int PRIMARY KEY, note text)');
  });
  afterEach(async () => {
    await Promise.all([pool.end(), direct.end()]);
    await proxy.stop();
  });

  it('passes everything on and counts simple queries, parses and executes', async () => {
    const client = await pool.connect();
    proxy.forget();
    const big = 'ü'.repeat(200_000);
    await client.query('BEGIN; SELECT 1');
    await client.query('INSERT INTO proxied VALUES ($1, $2)', [1, big]);
    expect((await client.query('SELECT note FROM proxied')).rows).toEqual([{ note: big }]);
    for (const id of [1, 2]) {
      await client.query({ name: 'by-id', text: 'SELECT id FROM proxied WHERE id = $1', values: [id] });
    }
    await expect(client.query('SELECT $1::int / 0', [1])).rejects.toThrow('division by zero');
    await client.query('ROLLBACK');
    client.release();
    expect(proxy.requests).toEqual([
      { type: 'Q', text: 'BEGIN; SELECT 1' },
      { type: 'P', text: 'INSERT INTO proxied VALUES ($1, $2)' },
      { type: 'E', text: 'INSERT INTO proxied VALUES ($1, $2)' },
      { type: 'Q', text: 'SELECT note FROM proxied' },
      { type: 'P', text: 'SELECT id FROM proxied WHERE id = $1' },
      { type: 'E', text: 'SELECT id FROM proxied WHERE id = $1' },
      { type: 'E', text: 'SELECT id FROM proxied WHERE id = $1' },
      { type: 'P', text: 'SELECT $1::int / 0' },
      { type: 'E', text: 'SELECT $1::int / 0' },
      { type: 'Q', text: 'ROLLBACK' },
    ]);
    expect([proxy.count(), proxy.count('Q'), proxy.count('E')]).toEqual([10, 3, 4]);
  });

  it('copes with an encryption request in front of the start-up', async () => {
    const client = new pg.Client({ connectionString: proxy.url, ssl: { rejectUnauthorized: false } });
    await expect(client.connect()).rejects.toThrow('does not support SSL');
    await pool.query('SELECT 1');
    expect(proxy.requests).toEqual([{ type: 'Q', text: 'SELECT 1' }]);
  });

  it('swallows the answer to a commit that the server has carried out', async () => {
    const client = await pool.connect();
    client.on('error', () => undefined);
    await client.query('BEGIN');
    await client.query('INSERT INTO proxied VALUES ($1)', [7]);
    const swallowed = proxy.swallowReplyOnce((request) => /^commit/i.test(request));
    await expect(client.query('COMMIT')).rejects.toThrow('Connection terminated');
    expect(await swallowed).toBe('COMMIT');
    client.release(true);
    expect((await direct.query('SELECT id FROM proxied')).rows).toEqual([{ id: 7 }]);
    await pool.query('SELECT 1'); // a new connection works
  });

  it('loses a request and all that follow on its connection, and the server does not hear of it', async () => {
    const client = await pool.connect();
    client.on('error', () => undefined);
    const [{ pid }] = (await client.query('SELECT pg_backend_pid() AS pid')).rows;
    await client.query('BEGIN; INSERT INTO proxied VALUES (9)');
    const lost = proxy.loseRequestsFrom((request) => request === 'COMMIT');
    client.query('COMMIT').catch(() => undefined);
    expect(await lost).toBe('COMMIT');
    client.release(true);
    await pool.query('SELECT 1'); // another connection works
    const state = 'SELECT state, query FROM pg_stat_activity WHERE pid = $1';
    const [backend] = (await direct.query(state, [pid])).rows;
    expect(backend).toEqual({ state: 'idle in transaction', query: expect.stringContaining('INSERT') });
    proxy.cutAll();
    await eventually(async () => (await direct.query(state, [pid])).rows.length === 0);
    expect((await direct.query('SELECT id FROM proxied WHERE id = 9')).rows).toEqual([]);
  });

  it('swallows the whole answer to a query with parameters', async () => {
    const client = await pool.connect();
    client.on('error', () => undefined);
    const swallowed = proxy.swallowReplyOnce((request) => request.startsWith('INSERT'), { keepOpen: true });
    const lost = client.query('INSERT INTO proxied VALUES ($1) RETURNING id', [8]);
    lost.catch(() => undefined);
    expect(await swallowed).toBe('INSERT INTO proxied VALUES ($1) RETURNING id');
    expect((await direct.query('SELECT id FROM proxied')).rows).toEqual([{ id: 8 }]);
    proxy.cutAll();
    await expect(lost).rejects.toThrow('Connection terminated');
    client.release(true);
  });
});

describe('reading a protocol', () => {
  function read(WireOf: typeof RedisWire | typeof PostgresWire) {
    const messages: Message[] = [];
    const requests: Exchange[] = [];
    const wire = new WireOf(
      (message) => messages.push(message),
      (exchange) => requests.push(exchange),
    );
    return { wire, messages, requests };
  }
  /** Every byte a chunk of its own. */
  const bytes = (data: Buffer) => Array.from(data, (_, index) => data.subarray(index, index + 1));

  it('does not depend on how Redis commands and replies are cut into chunks', () => {
    const { wire, messages } = read(RedisWire);
    const commands = '*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n*1\r\n$4\r\nPING\r\nECHO hi\r\n';
    bytes(Buffer.from(commands)).forEach((byte) => wire.fromClient(byte));
    expect(messages).toEqual([
      { type: 'GET', text: 'GET a\r\nb' },
      { type: 'PING', text: 'PING' },
      { type: 'ECHO', text: 'ECHO hi' },
    ]);
    const replies = [
      '*3\r\n:1\r\n$-1\r\n*1\r\n$2\r\n\r\n\r\n',
      '>2\r\n+invalidate\r\n_\r\n',
      '|1\r\n+ttl\r\n:3\r\n%1\r\n+a\r\n#t\r\n',
      '-ERR no\r\n',
    ];
    const pieces = bytes(Buffer.from(replies.join(''))).flatMap((byte) => wire.fromServer(byte));
    expect(pieces.map((piece) => [piece.bytes.toString(), piece.exchange?.text])).toEqual([
      [replies[0], 'GET a\r\nb'],
      [replies[1], undefined],
      [replies[2], 'PING'],
      [replies[3], 'ECHO hi'],
    ]);
  });

  it('does not depend on how PostgreSQL messages are cut into chunks', () => {
    const { wire, messages, requests } = read(PostgresWire);
    const message = (type: string, body: string) => {
      const content = Buffer.from(body);
      const head = Buffer.from(`${type}....`);
      head.writeInt32BE(content.length + 4, type.length);
      return Buffer.concat([head, content]);
    };
    const client = Buffer.concat([
      message('', '\0\x03\0\0user\0me\0\0'),
      message('Q', 'BEGIN\0'),
      message('P', 's1\0SELECT $1\0\0\0'),
      message('B', '\0s1\0\0\0\0\0\0\0'),
      message('E', '\0\0\0\0\0'),
      message('S', ''),
    ]);
    bytes(client).forEach((byte) => wire.fromClient(byte));
    expect(messages.map(({ type, text }) => `${type} ${text}`)).toEqual([
      'Q BEGIN',
      'P SELECT $1',
      'E SELECT $1',
    ]);
    expect(requests.map(({ text }) => text)).toEqual(['BEGIN', 'SELECT $1']);
    const ready = message('Z', 'I');
    const server = Buffer.concat([
      message('R', '\0\0\0\0'),
      ready,
      message('C', 'BEGIN\0'),
      ready,
      message('1', ''),
      ready,
    ]);
    const pieces = bytes(server).flatMap((byte) => wire.fromServer(byte));
    expect(pieces.map(({ exchange, last }) => [exchange?.text, last])).toEqual([
      ['', false],
      ['', true],
      ['BEGIN', false],
      ['BEGIN', true],
      ['SELECT $1', false],
      ['SELECT $1', true],
    ]);
  });
});
