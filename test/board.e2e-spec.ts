import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import { jest } from '@jest/globals';
import { VersioningType } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { type AcquiredLease, type FencingEvent, memoryLeases } from 'nestjs-fencing';
import { FencingBoardModule, type FencingBoardOptions } from 'nestjs-fencing/board';
import { Redis } from 'ioredis';
import { map, Subject } from 'rxjs';
import {
  type BoardApp,
  type BoardAppOptions,
  StaffGuard,
  StaffModule,
  startBoardApp,
  whoIsIt,
} from './support/board-app.js';
import { freshDatabase } from './support/postgres-server.js';
import { eventually } from './support/gate.js';
import { readEvents } from './support/read-events.js';

jest.setTimeout(60_000);

const STAFF: FencingBoardOptions = { guard: StaffGuard, imports: [StaffModule], who: whoIsIt };
const PAGE = { 'x-fencing-board': '1', 'content-type': 'application/json' };
const ROUTES = [
  ['GET', '/fencing'],
  ['GET', '/fencing/api/view'],
  ['GET', '/fencing/api/events'],
  ['POST', '/fencing/api/revoke'],
] as const;

let apps: BoardApp[] = [];
const start = async (options?: BoardAppOptions) => {
  const app = await startBoardApp(options);
  apps.push(app);
  return app;
};
afterEach(async () => {
  await Promise.all(apps.map((app) => app.close()));
  apps = [];
});

const write = (app: BoardApp, lease: AcquiredLease) =>
  lease.run(() =>
    app.fencing.write({}, async (manager: { query(sql: string): Promise<unknown> }) =>
      manager.query('SELECT 1'),
    ),
  );
const viewOf = async (app: BoardApp, query: Record<string, string> = {}) => {
  const response = await fetch(`${app.url}/fencing/api/view?${new URLSearchParams(query).toString()}`);
  return (await response.json()) as any;
};
const revoke = (app: BoardApp, body: unknown, headers: Record<string, string> = {}) =>
  fetch(`${app.url}/fencing/api/revoke`, {
    method: 'POST',
    headers: { ...PAGE, ...headers },
    body: JSON.stringify(body),
  });
/** With headers that fetch would not send. */
const ask = (
  host: string,
  port: number,
  path: string,
  headers: Record<string, string> = {},
  method = 'GET',
) =>
  new Promise<number>((resolve, reject) => {
    http
      .request({ host, port, path, method, headers, agent: false }, (response) => {
        resolve(response.statusCode!);
        response.destroy();
      })
      .on('error', reject)
      .end(method === 'POST' ? '{}' : undefined);
  });

describe.each(['express', 'fastify'] as const)('the board on %s', (adapter) => {
  it('lets nobody see or do anything whom the guard does not let in', async () => {
    const app = await start({ adapter, board: STAFF });
    for (const [method, path] of ROUTES) {
      const anonymous = await fetch(app.url + path, {
        method,
        headers: PAGE,
        body: method === 'POST' ? '{}' : undefined,
      });
      expect({ path, status: anonymous.status }).toEqual({ path, status: 403 });
      expect(await anonymous.text()).not.toContain('<html');
      expect({
        path,
        status: await ask('127.0.0.1', app.port, path, { ...PAGE, 'x-password': 'secret' }, method),
      }).toEqual({
        path,
        status: method === 'POST' ? 400 : 200,
      });
    }
  });

  it('answers its own machine only, without a guard: not what was passed on, nor what means another host', async () => {
    const app = await start({ adapter, listenOn: '0.0.0.0' });
    const elsewhere = Object.values(os.networkInterfaces())
      .flat()
      .find((address) => address?.family === 'IPv4' && !address.internal)?.address;
    for (const [method, path] of ROUTES) {
      const status = (headers: Record<string, string>, host = '127.0.0.1') =>
        ask(host, app.port, path, { ...PAGE, ...headers }, method);
      expect(await status({})).toBe(method === 'POST' ? 400 : 200);
      expect(await status({ host: `localhost:${app.port}` })).toBe(method === 'POST' ? 400 : 200);
      expect(await status({ host: 'rebound.example' })).toBe(403);
      for (const name of ['x-forwarded-for', 'forwarded', 'via', 'x-real-ip', 'x-forwarded-host'])
        expect({ name, status: await status({ [name]: '127.0.0.1' }) }).toEqual({ name, status: 403 });
      if (elsewhere) expect(await status({ host: `localhost:${app.port}` }, elsewhere)).toBe(403);
    }
  });

  it('sends one page, that asks nothing of anybody else and runs nothing but its own script', async () => {
    const app = await start({ adapter });
    const response = await fetch(`${app.url}/fencing`);
    const html = await response.text();
    expect(response.headers.get('content-type')).toBe('text/html; charset=utf-8');
    const policy = Object.fromEntries(
      response.headers
        .get('content-security-policy')!
        .split('; ')
        .map((part) => [part.split(' ')[0], part.split(' ').slice(1).join(' ')]),
    );
    const hashOf = (tag: string) =>
      `'sha256-${createHash('sha256')
        .update(new RegExp(`<${tag}>([^]*?)</${tag}>`).exec(html)![1]!)
        .digest('base64')}'`;
    expect(policy).toEqual({
      'default-src': "'none'",
      'script-src': hashOf('script'),
      'style-src': hashOf('style'),
      'connect-src': "'self'",
      'img-src': 'data:',
      'base-uri': "'none'",
      'form-action': "'none'",
      'frame-ancestors': "'none'",
      'require-trusted-types-for': "'script'",
      'trusted-types': "'none'",
    });
    expect(html.match(/https?:\/\/[^'"]+/g)).toEqual(['http://www.w3.org/2000/svg']);
    expect(html).not.toMatch(/ on\w+=|innerHTML|insertAdjacentHTML|document\.write|\beval\b/);
    expect(html).not.toMatch(/<[^>]* style=/);
    expect(Buffer.byteLength(html)).toBeLessThan(60_000);
    expect(Object.fromEntries(response.headers)).toMatchObject({
      'cache-control': 'no-store',
      'x-content-type-options': 'nosniff',
      'x-frame-options': 'DENY',
      'referrer-policy': 'no-referrer',
    });
  });

  it('tells no page of another origin anything, and does nothing for one', async () => {
    const app = await start({ adapter, board: STAFF });
    const lease = await app.fencing.acquire('csrf');
    const as = (headers: Record<string, string>) => ({ ...PAGE, 'x-password': 'secret', ...headers });
    const foreign: Record<string, string>[] = [
      { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'cors' },
      { 'sec-fetch-site': 'same-site', 'sec-fetch-mode': 'cors' },
      { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'no-cors' },
      { origin: 'https://evil.example' },
      { origin: 'null' },
    ];
    const body = JSON.stringify({ key: 'csrf', reason: 'because' });
    for (const headers of foreign) {
      for (const path of ['/fencing/api/view', '/fencing/api/events'])
        expect({ headers, status: await ask('127.0.0.1', app.port, path, as(headers)) }).toEqual({
          headers,
          status: 403,
        });
      const response = await fetch(`${app.url}/fencing/api/revoke`, {
        method: 'POST',
        headers: as(headers),
        body,
      });
      expect({ headers, status: response.status }).toEqual({ headers, status: 403 });
    }
    // A form of another page can post, and cannot set a header.
    const form = { 'content-type': 'application/json', 'x-password': 'secret' };
    expect(
      (await fetch(`${app.url}/fencing/api/revoke`, { method: 'POST', headers: form, body })).status,
    ).toBe(403);
    // A link from elsewhere may lead to the page.
    const link = { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'navigate', 'x-password': 'secret' };
    expect(await ask('127.0.0.1', app.port, '/fencing', link)).toBe(200);
    expect((await app.fencing.inspect('csrf')).lease?.owner).toBe(lease.owner);
    lease.release();
  });

  it('revokes a key with a reason: the holder is refused, and the audit names who and why', async () => {
    const app = await start({ adapter, board: STAFF });
    const lease = await app.fencing.acquire('revoked');
    await write(app, lease);
    const same = { origin: app.url, 'sec-fetch-site': 'same-origin', 'x-password': 'secret' };
    for (const wrong of [{}, { key: 'revoked' }, { key: 'revoked', reason: ' ' }, { key: 7, reason: 'x' }])
      expect((await revoke(app, wrong, same)).status).toBe(400);
    const response = await revoke(app, { key: 'revoked', reason: 'stuck' }, same);
    expect({ status: response.status, body: await response.json() }).toEqual({
      status: 200,
      body: { supersededGeneration: lease.generation, generation: expect.any(Number) },
    });
    await expect(write(app, lease)).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    const [row] = await app.dataSource.query<unknown[]>(
      `SELECT * FROM fencing_audit WHERE key = 'revoked' AND kind = 'revoked'`,
    );
    expect(JSON.stringify(row)).toContain('ada');
    expect(JSON.stringify(row)).toContain('stuck');
    lease.release();
  });

  it('shows a live lease with what is left of it, and who waits', async () => {
    const app = await start({ adapter });
    const lease = await app.fencing.acquire('shown', { ttlMs: 20_000 });
    const waiting = app.fencing.acquire('shown', { waitMs: 30_000 });
    await eventually(async () => (await viewOf(app)).leases[0]?.waiting === 1);
    const { leases, totals } = await viewOf(app);
    expect(leases).toEqual([
      {
        key: 'shown',
        owner: lease.owner,
        generation: lease.generation,
        heldMs: expect.any(Number),
        remainingMs: expect.any(Number),
        ttlMs: 20_000,
        doubtful: false,
        waiting: 1,
        accepted: 0,
        refused: 0,
      },
    ]);
    expect(leases[0].remainingMs).toBeGreaterThan(0);
    expect(leases[0].remainingMs).toBeLessThanOrEqual(20_000);
    expect(totals).toMatchObject({ live: 1, granted: 1 });
    lease.release();
    const next = await waiting;
    await eventually(async () => (await viewOf(app)).leases[0]?.owner === next.owner);
    expect((await viewOf(app)).leases[0].waiting).toBe(0);
    next.release();
    await eventually(async () => (await viewOf(app)).totals.live === 0);
  });

  it('is the same in an application with a prefix, versions, pipes and an interceptor that wraps every result', async () => {
    const app = await start({
      adapter,
      memory: true,
      customize: (app) => {
        app.setGlobalPrefix('v');
        app.enableVersioning({ type: VersioningType.URI });
        app.useGlobalPipes({ transform: (value: unknown) => value });
        app.useGlobalInterceptors({ intercept: (_, next) => next.handle().pipe(map((data) => ({ data }))) });
      },
    });
    const page = await fetch(`${app.url}/v/fencing`);
    expect([page.status, (await page.text()).slice(0, 15)]).toEqual([200, '<!doctype html>']);
    expect(await (await fetch(`${app.url}/v/fencing/api/view`)).json()).toMatchObject({ found: 0 });
    const stream = await readEvents(`${app.url}/v/fencing/api/events`);
    expect(await stream.next()).toMatchObject({ found: 0 });
    stream.close();
    const lease = await app.fencing.acquire('wrapped');
    const body = JSON.stringify({ key: 'wrapped', reason: 'x' });
    const answer = await fetch(`${app.url}/v/fencing/api/revoke`, { method: 'POST', headers: PAGE, body });
    // Without a fence there is nothing that could keep the reason.
    expect([answer.status, await answer.json()]).toEqual([
      400,
      { code: 'INVALID_CONFIG', problem: expect.stringContaining('no fence is configured') },
    ]);
    lease.release();
  });

  it('ends its streams when the application stops, which would wait for them otherwise', async () => {
    const app = await startBoardApp({ adapter });
    const stream = await readEvents(`${app.url}/fencing/api/events`);
    await stream.next();
    await app.close();
    await stream.ended;
  });
});

describe('the board', () => {
  it('is mounted as docs/board.md shows', async () => {
    const read = (file: string) => readFileSync(new URL(file, import.meta.url), 'utf8');
    const [, shown] = /\/\/ #region .*\n([^]*?)\n\/\/ #endregion/.exec(read('readme/board.ts'))!;
    expect(read('../docs/board.md')).toContain('```ts\n' + shown + '\n```');
    const shared = process.env.DATABASE_URL;
    const database = await freshDatabase();
    process.env.DATABASE_URL = database.url;
    const { AppModule } = await import('./readme/board.js');
    const app = await NestFactory.create(AppModule, { logger: false });
    try {
      await app.listen(0, '127.0.0.1');
      const status = async (headers?: Record<string, string>) =>
        (await fetch(`${await app.getUrl()}/admin/fencing`, { headers })).status;
      expect([await status(), await status({ 'x-password': 'secret' })]).toEqual([403, 200]);
    } finally {
      await app.close();
      process.env.DATABASE_URL = shared;
      await database.drop();
    }
  });

  it('does not start without a guard in production, nor with a guard that is missing by accident', () => {
    const before = process.env.NODE_ENV;
    process.env.NODE_ENV = 'production';
    try {
      expect(() => FencingBoardModule.forRoot()).toThrow(
        "FencingBoardModule.forRoot: without a guard the board does not start where NODE_ENV is 'production'. Give it one: FencingBoardModule.forRoot({ guard: AdminGuard }).",
      );
      expect(() => FencingBoardModule.forRoot({ guard: StaffGuard })).not.toThrow();
    } finally {
      process.env.NODE_ENV = before;
    }
    expect(() => FencingBoardModule.forRoot({ guard: undefined })).toThrow('guard is undefined');
    expect(() => FencingBoardModule.forRoot({ guard: [] })).toThrow('guard is an empty array');
    expect(() => FencingBoardModule.forRoot({ guard: {} as never })).toThrow(
      'must have a method canActivate',
    );
    expect(() => FencingBoardModule.forRoot({ path: 'a b' })).toThrow(
      "path must be a path such as '/fencing'",
    );
    expect(() => FencingBoardModule.forRoot({ paths: '/x' } as never)).toThrow('there is no option "paths"');
    expect(() => FencingBoardModule.forRoot({ events: [] as never })).toThrow('events must be an Observable');
    expect(() => FencingBoardModule.forRoot({ imports: null as never })).toThrow('imports must be an array');
  });

  it('shows a refused write beside the grant of another process that caused it', async () => {
    const ofOthers = new Subject<FencingEvent>();
    const app = await start({ board: { events: ofOthers } });
    const other = await start();
    other.events.subscribe((event) => ofOthers.next(event));
    const key = 'taken-over';
    const lease = await app.fencing.acquire(key, { ttlMs: 30_000 });
    // The lease store loses it, as after a flush; the holder does not know.
    const { lease: held } = await app.fencing.inspect(key);
    const client = new Redis(process.env.REDIS_URL!);
    await client.del(...(await client.keys(`*:lease:${key}`)));
    client.disconnect();
    const newer = await other.fencing.acquire(key);
    await write(other, newer);
    await expect(write(app, lease)).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    const { refusals, key: detail } = await viewOf(app, { key });
    expect(refusals[0]).toMatchObject({
      key,
      owner: held!.owner,
      generation: lease.generation,
      code: 'STALE_GENERATION',
      current: newer.generation,
      cause: { generation: newer.generation, owner: newer.owner, at: expect.any(Number) },
    });
    expect(
      detail.tracks.map(({ owner, end, marks }: any) => [owner, end, marks.map(({ kind }: any) => kind)]),
    ).toEqual([
      [lease.owner, 'stale', ['stale']],
      [newer.owner, undefined, ['accepted']],
    ]);
    newer.release();
    lease.release();
  });

  it('goes on without the events of others where they are none, or their source fails', async () => {
    const ofOthers = new Subject<never>();
    const app = await start({ board: { events: ofOthers } });
    const at = new Date().toISOString();
    for (const event of [undefined, {}, { name: 'lease.lost', at: 'no' }, { name: 'lease.acquired', at }])
      ofOthers.next(event as never);
    ofOthers.error(new Error('The bus is gone.'));
    // RxJS throws what nobody takes in a timer.
    await new Promise((resolve) => setTimeout(resolve));
    await app.fencing.run('own', {}, () => undefined);
    expect((await viewOf(app, { search: 'own' })).totals.granted).toBe(1);
  });

  it('names the revocation that a refused write gave way to', async () => {
    const app = await start();
    const lease = await app.fencing.acquire('why');
    await revoke(app, { key: 'why', reason: 'stuck since noon' });
    await expect(write(app, lease)).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    expect((await viewOf(app)).refusals[0].cause.revoked).toMatchObject({
      by: 'the fencing board',
      reason: 'stuck since noon',
    });
    lease.release();
  });

  it('asks the stores about a key that is looked up, whoever holds it', async () => {
    const app = await start();
    const other = await start();
    const lease = await other.fencing.acquire('elsewhere');
    await viewOf(app, { key: 'elsewhere' });
    await eventually(async () => (await viewOf(app, { key: 'elsewhere' })).key.asked !== undefined);
    const { key, leases } = await viewOf(app, { key: 'elsewhere' });
    expect(leases).toEqual([]);
    expect(key.asked.report).toMatchObject({
      lease: { owner: lease.owner, generation: lease.generation },
      fence: { owner: lease.owner, generation: lease.generation },
    });
    lease.release();
  });

  it.each([
    ['are silent', () => new Promise<never>(() => undefined)],
    ['fail in words of their own', () => Promise.reject(new Error('redis://:password@internal is gone'))],
  ])('says so where the stores %s, and no more than that', async (_how, inspect) => {
    const leases = memoryLeases();
    const app = await start({ memory: true, fencing: { leases } });
    Object.assign(leases, { inspect });
    const asked = async () => (await viewOf(app, { key: 'asked' })).key.asked;
    await eventually(async () => (await asked()) !== undefined);
    expect(await asked()).toEqual({
      at: expect.any(Number),
      problem: 'The lease store or the database did not answer.',
    });
  });

  it('gives a hostile key back as data: JSON that no browser takes for a page', async () => {
    const app = await start();
    const key = '</script><script>alert(1)</script>\u2028"\'<img src=x onerror=alert(2)>';
    const lease = await app.fencing.acquire(key);
    const response = await fetch(
      `${app.url}/fencing/api/view?${new URLSearchParams({ search: key, key }).toString()}`,
    );
    expect(response.headers.get('content-type')).toBe('application/json; charset=utf-8');
    expect(response.headers.get('x-content-type-options')).toBe('nosniff');
    const view = (await response.json()) as any;
    expect(view.leases.map((row: any) => row.key)).toEqual([key]);
    expect(view.key.key).toBe(key);
    expect(
      await (await fetch(`${app.url}/fencing?${new URLSearchParams({ key }).toString()}`)).text(),
    ).not.toContain('alert(1)');
    lease.release();
  });

  it('finds leases by a part of their key, in pages', async () => {
    const app = await start({ memory: true });
    const leases: AcquiredLease[] = [];
    for (let n = 0; n < 60; n++) leases.push(await app.fencing.acquire(`${n % 2 ? 'odd' : 'Even'}:${n}`));
    const first = await viewOf(app);
    expect([first.found, first.pages, first.leases.length, first.leases[0].key]).toEqual([
      60,
      3,
      25,
      'Even:0',
    ]);
    const last = await viewOf(app, { page: '2' });
    expect(last.leases.map(({ key }: any) => key)).toEqual(leases.slice(50).map(({ key }) => key));
    const even = await viewOf(app, { search: 'even', page: '1' });
    expect([even.found, even.pages, even.leases.length]).toEqual([30, 2, 5]);
    for (const page of ['-1', '1e9', 'x', '0.5']) expect((await viewOf(app, { page })).found).toBe(60);
    for (const lease of leases) lease.release();
  });

  it('sends a view at once, and then no more than about four a second, however much happens', async () => {
    const app = await start({ memory: true });
    const stream = await readEvents(`${app.url}/fencing/api/events`);
    expect(((await stream.next()) as any).totals).toMatchObject({ live: 0, granted: 0 });
    const began = performance.now();
    let grants = 0;
    while (performance.now() - began < 1_500) {
      (await app.fencing.acquire(`busy:${grants++ % 50}`, { waitMs: 1_000 })).release();
      if (grants % 20 === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    let views = 0;
    for (let granted = 0; granted < grants; views++) granted = ((await stream.next()) as any).totals.granted;
    expect(grants).toBeGreaterThan(views * 10);
    expect(views).toBeLessThanOrEqual((performance.now() - began) / 250 + 1);
    stream.close();
  });

  it('lets no more than 32 watch at once, and has room again when one leaves', async () => {
    const app = await start({ memory: true });
    const url = `${app.url}/fencing/api/events`;
    const streams = [];
    for (let n = 0; n < 32; n++) streams.push(await readEvents(url));
    expect((await fetch(url)).status).toBe(503);
    streams.pop()!.close();
    await eventually(async () => {
      const status = await ask('127.0.0.1', app.port, '/fencing/api/events');
      return status === 200;
    });
    for (const stream of streams) stream.close();
  });
});
