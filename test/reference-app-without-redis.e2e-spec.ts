import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import type { INestApplication } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import request from 'supertest';
import type { App } from 'supertest/types.js';
import { DataSource } from 'typeorm';
import { freshDatabase } from './support/postgres-server.js';

/** As `npm start` runs it where there is no Redis. */
describe('the reference app without a Redis', () => {
  const { DATABASE_URL, REDIS_URL } = process.env;
  let database: Awaited<ReturnType<typeof freshDatabase>>;
  const instances: INestApplication<App>[] = [];

  beforeAll(async () => {
    database = await freshDatabase();
    process.env.DATABASE_URL = database.url;
    process.env.REBUILD_PAGE_MS = '20';
    delete process.env.REDIS_URL;
    const { AppModule } = await import('../src/app.module.js');
    for (let i = 0; i < 2; i++) {
      const module = await Test.createTestingModule({ imports: [AppModule] }).compile();
      const app = module.createNestApplication<INestApplication<App>>({ logger: false });
      await app.init();
      instances.push(app);
    }
  });
  afterAll(async () => {
    for (const app of instances) await app.close();
    Object.assign(process.env, { DATABASE_URL, REDIS_URL });
    await database.drop();
  });

  it('lets rebuilds of two instances take turns, each under a higher generation', async () => {
    const answers = await Promise.all(
      Array.from({ length: 6 }, (_, i) =>
        request(instances[i % 2]!.getHttpServer()).post('/reports/bob/rebuild'),
      ),
    );
    expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 200));
    const generations = answers.map(({ body }) => Number((body as { generation: string }).generation));
    expect(new Set(generations).size).toBe(6);
    const { body } = await request(instances[0]!.getHttpServer()).get('/reports/bob');
    expect(Number((body as { generation: string }).generation)).toBe(Math.max(...generations));
  });

  it('keeps its leases in the tables of its migrations', async () => {
    const source = instances[0]!.get(DataSource);
    const [row] = await source.query<{ n: string }[]>('SELECT count(*) AS n FROM fencing_lease_counter');
    expect(Number(row!.n)).toBeGreaterThan(0);
  });
});
