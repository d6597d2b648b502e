// A whole HTTP request: a leased route with a fenced write against a bare one with the same SQL.
import 'reflect-metadata';
import http from 'node:http';
import { Controller, HttpCode, Param, Post } from '@nestjs/common';
import { DataSource } from 'typeorm';
import { FencedWrite, Leased } from '../../libs/fencing/dist/esm/index.js';
import { makeFencedApp, UPDATE } from '../contenders/fenced-app.mjs';
import { interleaved } from '../harness/rounds.mjs';
import { row } from '../harness/rows.mjs';
import { median, short } from '../harness/stats.mjs';
import { slowProxy } from '../harness/slow-proxy.mjs';

/** How long each reply of a server is held back, to count those that a request waits for. */
const DELAY_MS = 50;

/**
 * Decorators by hand: this is plain JavaScript.
 * @param {any} Class
 * @param {string} method
 * @param {any[]} decorators the outermost first
 */
function decorate(Class, method, ...decorators) {
  const descriptor = decorators
    .reverse()
    .reduce(
      (current, decorator) => decorator(Class.prototype, method, current) ?? current,
      Object.getOwnPropertyDescriptor(Class.prototype, method),
    );
  Object.defineProperty(Class.prototype, method, descriptor);
}

/** @param {any} Class @param {any[]} types of the constructor's parameters */
const injects = (Class, ...types) => Reflect.defineMetadata('design:paramtypes', types, Class);

class Rows {
  /** @param {DataSource} dataSource */
  constructor(dataSource) {
    this.dataSource = dataSource;
  }

  /** @param {number} id */
  async increment(id) {
    await this.dataSource.query(UPDATE, [id]);
  }
}
injects(Rows, DataSource);
decorate(Rows, 'increment', FencedWrite());

class BareRows {
  /** @param {DataSource} plain */
  constructor(plain) {
    this.plain = plain;
  }

  /** @param {number} id */
  async increment(id) {
    await this.plain.transaction((manager) => manager.query(UPDATE, [id]));
  }
}

/** @param {any} Service */
function controllerOf(Service) {
  return class {
    /** @param {{ increment(id: number): Promise<void> }} rows */
    constructor(rows) {
      this.rows = rows;
    }

    /** @param {string} id */
    async increment(id) {
      await this.rows.increment(Number(id));
      return { id };
    }

    static {
      injects(this, Service);
      Reflect.defineMetadata('design:paramtypes', [String], this.prototype, 'increment');
      Param('id')(this.prototype, 'increment', 0);
    }
  };
}

const FencedController = controllerOf(Rows);
decorate(FencedController, 'increment', Post(':id'), HttpCode(200), Leased('row:{params.id}'));
Controller('fenced')(FencedController);
const BareController = controllerOf(BareRows);
decorate(BareController, 'increment', Post(':id'), HttpCode(200));
Controller('bare')(BareController);

/** @type {import('../harness/scenario.mjs').Measure} */
export async function measure({ quick, redis, postgres, log }) {
  const proxies = {
    redis: await slowProxy((await redis()).url),
    postgres: await slowProxy((await postgres(false)).url),
  };
  const app = await makeFencedApp({
    redisUrl: proxies.redis.url,
    databaseUrl: proxies.postgres.url,
    controllers: [FencedController, BareController],
    providers: (plain) => [Rows, { provide: BareRows, useFactory: () => new BareRows(plain) }],
  });
  await app.app.listen(0, '127.0.0.1');
  const { port } = app.app.getHttpServer().address();
  const agent = new http.Agent({ keepAlive: true });

  /** @param {string} path @returns {Promise<number>} how long it took, ms */
  const post = (path) =>
    new Promise((resolve, reject) => {
      const start = performance.now();
      const request = http.request({ port, path, method: 'POST', agent }, (response) => {
        response.resume().once('end', () => {
          if (response.statusCode === 200) resolve(performance.now() - start);
          else reject(new Error(`POST ${path} answered ${response.statusCode}`));
        });
      });
      request.once('error', reject).end();
    });

  const routes = ['fenced', 'bare'];
  for (const route of routes) for (let i = 0; i < 200; i++) await post(`/${route}/1`);

  /** How many replies of a server a request to `route` waits for. @param {string} route @param {keyof typeof proxies} server */
  const waitsFor = async (route, server) => {
    /** @type {number[]} */
    const without = [];
    /** @type {number[]} */
    const withDelay = [];
    for (let i = 0; i < 7; i++) {
      proxies[server].delayMs = 0;
      without.push(await post(`/${route}/2`));
      proxies[server].delayMs = DELAY_MS;
      withDelay.push(await post(`/${route}/2`));
      // The release is not waited for, but its reply must be in before the next request.
      await new Promise((resolve) => setTimeout(resolve, 2 * DELAY_MS));
    }
    proxies[server].delayMs = 0;
    return Math.max(0, Math.round((median(withDelay) - median(without)) / DELAY_MS));
  };
  /** @type {Record<string, Record<string, number>>} */
  const waits = {};
  for (const route of routes) {
    waits[route] = { redis: await waitsFor(route, 'redis'), postgres: await waitsFor(route, 'postgres') };
    log(
      `POST /${route}: waits for ${waits[route].redis} replies of Redis and ${waits[route].postgres} of PostgreSQL`,
    );
  }

  const samples = await interleaved(routes, quick ? 7 : 15, async (route) => {
    let done = 0;
    const start = performance.now();
    const end = start + 300;
    await Promise.all(
      Array.from({ length: 10 }, async (_, i) => {
        for (; performance.now() < end; done++) await post(`/${route}/${i + 1}`);
      }),
    );
    return (done / (performance.now() - start)) * 1000;
  });
  const [fenced = [], bare = []] = routes.map((route) => samples.get(route) ?? []);
  log(`10 clients: ${short(median(fenced))} fenced against ${short(median(bare))} bare requests a second`);
  await app.close();
  agent.destroy();
  Object.values(proxies).forEach((proxy) => proxy.stop());

  /** @param {'redis' | 'postgres'} server @param {string} name */
  const roundTrips = (server, name) => {
    const more = (waits.fenced?.[server] ?? NaN) - (waits.bare?.[server] ?? NaN);
    return {
      ...row({
        id: `http-${server}`,
        title: `leased + fenced HTTP request against the bare one: ${name} round trips before the answer`,
        unit: 'round trips',
        ours: [waits.fenced?.[server] ?? NaN],
        referenceName: 'bare request',
      }),
      reference: waits.bare?.[server] ?? null,
      target: '+ 1',
      ok: more === 1,
    };
  };
  return [
    roundTrips('redis', 'Redis'),
    roundTrips('postgres', 'PostgreSQL'),
    row({
      id: 'http-throughput',
      title: 'leased + fenced HTTP request, 10 clients, fsync off',
      unit: '1/s',
      ours: fenced,
      reference: bare,
      referenceName: 'bare request',
    }),
  ];
}
