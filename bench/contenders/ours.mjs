// nestjs-fencing as an application uses it: the built package, in a Nest application, through FencingService.
import 'reflect-metadata';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { FencingModule, FencingService } from '../../libs/fencing/dist/esm/index.js';
import { redisLeases } from '../../libs/fencing/dist/esm/redis/index.js';
import { connect } from './client.mjs';
import { TTL_MS, WAIT_MS } from './contender.mjs';

const OPTIONS = { ttlMs: TTL_MS, waitMs: WAIT_MS };
const nothing = () => {};

/** @type {import('./contender.mjs').MakeContender} */
async function makeOurs({ url }) {
  const redis = await connect(url);
  class BenchModule {}
  Module({ imports: [FencingModule.forRoot({ leases: redisLeases(redis) })] })(BenchModule);
  // Some scenarios silence Redis; the warnings about it are no news.
  const app = await NestFactory.createApplicationContext(BenchModule, { logger: ['error'] });
  const fencing = app.get(FencingService);
  return {
    cycle: (key) => fencing.run(key, OPTIONS, nothing),
    section: (key, body) => fencing.run(key, OPTIONS, body),
    hold: async (key, ttlMs, onLost) => {
      const lease = await fencing.acquire(key, { ttlMs, waitMs: WAIT_MS });
      lease.signal.addEventListener('abort', onLost);
      return { release: async () => lease.release(), lease };
    },
    // Releases are not waited for; a request behind them on the same connection is answered after them.
    settle: async () => void (await redis.ping()),
    close: async () => {
      await app.close();
      redis.disconnect();
    },
  };
}

export const ours = { 'nestjs-fencing': makeOurs };
