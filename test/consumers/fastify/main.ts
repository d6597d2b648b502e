import 'reflect-metadata';
import { NestFactory } from '@nestjs/core';
import { FastifyAdapter, type NestFastifyApplication } from '@nestjs/platform-fastify';
import { HttpAppModule, proveHttp } from './http.js';
import { run } from './prove.js';

run(async () =>
  proveHttp(
    await NestFactory.create<NestFastifyApplication>(HttpAppModule, new FastifyAdapter(), {
      logger: ['error', 'warn'],
    }),
  ),
);
