import 'reflect-metadata';
import { NestFactory } from '@nestjs/core';
import { HttpAppModule, proveHttp } from './http.js';
import { run } from './prove.js';

run(async () => proveHttp(await NestFactory.create(HttpAppModule, { logger: ['error', 'warn'] })));
