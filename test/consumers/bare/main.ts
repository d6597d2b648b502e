// Without ioredis, pg, typeorm and OpenTelemetry: the root, the testing tools and the module work, and the types need no driver either.
import 'reflect-metadata';
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { Injectable, Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { FencedWrite, FencingModule, Leased, memoryLeases, StaleGenerationError } from 'nestjs-fencing';
import { FencingFaults, FencingTestingModule } from 'nestjs-fencing/testing';

assert.ok('redisLeases' in (await import('nestjs-fencing/redis')));
assert.ok('FencingBoardModule' in (await import('nestjs-fencing/board')));

const require = createRequire(import.meta.url);
for (const driver of ['ioredis', 'pg', 'typeorm', '@opentelemetry/api'])
  assert.throws(() => require.resolve(driver), driver);

@Injectable()
class Reports {
  written = 0;

  @Leased((id: string) => `report:${id}`)
  async rebuild(id: string, meanwhile: () => Promise<unknown> = async () => undefined): Promise<string> {
    await meanwhile();
    return this.publish(id);
  }

  @FencedWrite()
  async publish(id: string): Promise<string> {
    this.written++;
    return id;
  }
}

@Injectable()
class Jobs {
  @Leased('job')
  async run(): Promise<string> {
    return 'ran';
  }
}

@Module({ imports: [FencingModule.forRoot({ leases: memoryLeases() })], providers: [Jobs] })
class AppModule {}

@Module({ imports: [FencingTestingModule.forRoot()], providers: [Reports] })
class TestedModule {}

const app = await NestFactory.createApplicationContext(AppModule, { logger: ['error', 'warn'] });
assert.equal(await app.get(Jobs).run(), 'ran');
await app.close();

const tested = await NestFactory.createApplicationContext(TestedModule, { logger: ['error', 'warn'] });
const [reports, faults] = [tested.get(Reports), tested.get(FencingFaults)];
assert.equal(await reports.rebuild('1'), '1');
await assert.rejects(
  () => reports.rebuild('1', () => faults.steal('report:1')),
  (error) => error instanceof StaleGenerationError,
);
assert.equal(reports.written, 1);
await tested.close();
console.log('proved: works without ioredis, pg and typeorm');
