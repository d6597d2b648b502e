// A newcomer: an empty Nest application, the command and the first example of the README (app.ts), and nothing else.
import 'reflect-metadata';
import assert from 'node:assert/strict';
import { NestFactory } from '@nestjs/core';
import { FencingService, StaleGenerationError } from 'nestjs-fencing';
import { DataSource } from 'typeorm';
import { AppModule, Report, ReportsService } from './app.js';

const app = await NestFactory.create(AppModule, { logger: ['error'] });
await app.init();
const reports = app.get(ReportsService);
await reports.rebuild('alice');
const rows = () => app.get(DataSource).getRepository(Report).find();
assert.deepEqual(
  (await rows()).map(({ customerId, total }) => ({ customerId, total })),
  [{ customerId: 'alice', total: 5 }],
);
reports.readLedger = async () => {
  await app.get(FencingService).revoke('report:alice');
  return 666;
};
await assert.rejects(reports.rebuild('alice'), (error) => error instanceof StaleGenerationError);
assert.equal((await rows())[0]?.total, 5);
await app.close();
console.log('proved: the README works as it stands');
