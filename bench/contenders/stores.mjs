// nestjs-fencing on each of its lease stores. `url` is not one address but all of them, as JSON: see `placesOf`.
import 'reflect-metadata';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { TypeOrmModule } from '@nestjs/typeorm';
import pg from 'pg';
import { FencingModule, FencingService } from '../../libs/fencing/dist/esm/index.js';
import { quorumLeases, redisLeases } from '../../libs/fencing/dist/esm/redis/index.js';
import { postgresLeases, typeOrmFence } from '../../libs/fencing/dist/esm/typeorm/index.js';
import { connect, countRequest } from './client.mjs';
import { TTL_MS, WAIT_MS } from './contender.mjs';

const OPTIONS = { ttlMs: TTL_MS, waitMs: WAIT_MS };
const nothing = () => {};

/** @type {any} */
const client = pg.Client.prototype;
const query = client.query;
client.query = function count(/** @type {any[]} */ ...args) {
  countRequest();
  return Reflect.apply(query, this, args);
};

/** @typedef {{ nodes: string[], postgres: string }} Places */

/** @param {string} url @returns {Places} */
const placesOf = (url) => JSON.parse(url);

/**
 * @param {(places: Places) => Promise<{ leases: any, fence?: any, imports?: any[], close?: () => void }>} make
 * @returns {import('./contender.mjs').MakeContender}
 */
const on =
  (make) =>
  async ({ url }) => {
    const { leases, fence, imports = [], close = nothing } = await make(placesOf(url));
    class BenchModule {}
    Module({ imports: [...imports, FencingModule.forRoot({ leases, fence })] })(BenchModule);
    const app = await NestFactory.createApplicationContext(BenchModule, { logger: ['error'] });
    const fencing = app.get(FencingService);
    return {
      cycle: (key) => fencing.run(key, OPTIONS, nothing),
      section: (key, body) => fencing.run(key, OPTIONS, body),
      hold: () => Promise.reject(new Error('the stores only cycle and contend')),
      // Steps of one process keep their order, so this one is granted after the releases.
      settle: async () => void (await fencing.run('settle', OPTIONS, nothing)),
      close: async () => {
        await app.close();
        close();
      },
    };
  };

/** @param {string} url */
const database = (url) =>
  TypeOrmModule.forRoot(/** @type {any} */ ({ type: 'postgres', url, poolSize: 5, retryAttempts: 0 }));

export const stores = {
  'one Redis': on(async ({ nodes: [url = ''] }) => {
    const redis = await connect(url);
    return { leases: redisLeases(redis), close: () => redis.disconnect() };
  }),
  'a quorum of three': on(async ({ nodes }) => {
    const clients = await Promise.all(nodes.map(connect));
    return { leases: quorumLeases(clients), close: () => clients.forEach((one) => one.disconnect()) };
  }),
  PostgreSQL: on(async ({ postgres: url }) => ({ leases: postgresLeases({ url, ensureSchema: true }) })),
  'PostgreSQL, activated in one request': on(async ({ postgres: url }) => ({
    imports: [database(url)],
    leases: postgresLeases({ ensureSchema: true }),
    fence: typeOrmFence({ ensureSchema: true }),
  })),
  // The store does not know that the URL leads to the database of the fence.
  'PostgreSQL, activated in a second request': on(async ({ postgres: url }) => ({
    imports: [database(url)],
    leases: postgresLeases({ url, ensureSchema: true }),
    fence: typeOrmFence({ ensureSchema: true }),
  })),
};
