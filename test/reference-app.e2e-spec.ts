import { jest } from '@jest/globals';
import { type INestApplication, type LoggerService } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import request from 'supertest';
import type { App } from 'supertest/types.js';
import { DataSource } from 'typeorm';
import { freshDatabase } from './support/postgres-server.js';
import { eventually } from './support/gate.js';

jest.setTimeout(60_000);

describe('the reference app', () => {
  let database: Awaited<ReturnType<typeof freshDatabase>>;
  let shared: string | undefined;
  let app: INestApplication<App>;
  let summary: { summarize(hour: Date): Promise<number | undefined> };

  const start = async (logger: LoggerService | false = false): Promise<INestApplication<App>> => {
    const { AppModule } = await import('../src/app.module.js');
    const module = await Test.createTestingModule({ imports: [AppModule] })
      .setLogger(logger || { log() {}, warn() {}, error() {} })
      .compile();
    const started = module.createNestApplication<INestApplication<App>>({ logger });
    await started.init();
    return started;
  };

  beforeAll(async () => {
    database = await freshDatabase();
    shared = process.env.DATABASE_URL;
    process.env.DATABASE_URL = database.url;
    process.env.REBUILD_PAGE_MS = '20';
    app = await start();
    const { SummaryJob } = await import('../src/reports/summary.job.js');
    summary = app.get(SummaryJob);
  });
  afterAll(async () => {
    await app.close();
    process.env.DATABASE_URL = shared;
    await database.drop();
  });

  it('boots without a warning', async () => {
    const lines: string[] = [];
    const loud = (message: unknown, ...more: unknown[]) => void lines.push([message, ...more].join(' '));
    let quiet = 0;
    const another = await start({ log: () => void quiet++, warn: loud, error: loud, fatal: loud });
    await another.close();
    expect(lines).toEqual([]);
    expect(quiet).toBeGreaterThan(0);
  });

  it('rebuilds a report and publishes it under a generation', async () => {
    await request(app.getHttpServer()).get('/reports/alice').expect(404);
    const rebuilt = await request(app.getHttpServer()).post('/reports/alice/rebuild').expect(200);
    expect(rebuilt.body).toMatchObject({ customerId: 'alice', entries: 250, totalCents: '3137500' });
    const found = await request(app.getHttpServer()).get('/reports/alice').expect(200);
    expect(found.body).toEqual({ ...rebuilt.body, generation: String(rebuilt.body.generation) });
  });

  it('lets rebuilds of one customer take turns, each under a higher generation', async () => {
    const answers = await Promise.all(
      Array.from({ length: 5 }, () => request(app.getHttpServer()).post('/reports/bob/rebuild')),
    );
    expect(answers.map(({ status }) => status)).toEqual([200, 200, 200, 200, 200]);
    const generations = answers.map(({ body }) => Number(body.generation)).sort((a, b) => a - b);
    expect(new Set(generations).size).toBe(5);
    const { body } = await request(app.getHttpServer()).get('/reports/bob');
    expect(Number(body.generation)).toBe(generations.at(-1));
  });

  it('moves money between two accounts once for each order', async () => {
    const order = { id: 'order-1', from: 'alice', to: 'bob', amountCents: 2_500 };
    const answers = await Promise.all(
      Array.from({ length: 4 }, () => request(app.getHttpServer()).post('/accounts/transfer').send(order)),
    );
    for (const { status, body } of answers) {
      expect(status).toBe(200);
      expect(body).toEqual({ id: 'order-1', balances: { alice: '7500', bob: '12500' } });
    }
    await request(app.getHttpServer())
      .post('/accounts/transfer')
      .send({ ...order, amountCents: 1 })
      .expect(422);
    await request(app.getHttpServer())
      .post('/accounts/transfer')
      .send({ ...order, id: 'order-2', amountCents: 1e9 })
      .expect(422);
    await request(app.getHttpServer())
      .post('/accounts/transfer')
      .send({ ...order, from: '' })
      .expect(400);
  });

  it('transfers in both directions at once do not block each other for ever', async () => {
    const transfer = (from: string, to: string, n: number) =>
      request(app.getHttpServer())
        .post('/accounts/transfer')
        .send({ id: `${from}-${n}`, from, to, amountCents: 100 });
    const answers = await Promise.all(
      [1, 2, 3].flatMap((n) => [transfer('alice', 'bob', n), transfer('bob', 'alice', n)]),
    );
    expect(answers.map(({ status }) => status)).toEqual(Array(6).fill(200));
    const [{ sum }] = await app
      .get(DataSource)
      .query<[{ sum: string }]>('SELECT sum(balance_cents) FROM account');
    expect(sum).toBe('20000');
  });

  it('summarizes each hour once, however many instances tick', async () => {
    const other = await start();
    const { SummaryJob } = await import('../src/reports/summary.job.js');
    const hour = new Date('2026-01-01T10:00:00Z');
    try {
      const job = other.get(SummaryJob);
      const first = await Promise.all([summary.summarize(hour), job.summarize(hour)]);
      expect(first.filter((result) => result === 2).length).toBeGreaterThanOrEqual(1);
      // Late, with the key free again: the stored result, and no second row.
      await eventually(async () => (await job.summarize(hour)) === 2);
      const rows = await app.get(DataSource).query<unknown[]>('SELECT * FROM hourly_summary');
      expect(rows).toHaveLength(1);
    } finally {
      await other.close();
    }
  });
});
