import assert from 'node:assert/strict';
import { type DynamicModule, Module, type Type } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { FencingConfigError, FencingModule, memoryLeases } from 'nestjs-fencing';
import { typeOrmFence } from 'nestjs-fencing/typeorm';
import { database } from './setup.js';

/** Proves that a strict boot refuses a class of handlers whose fenced write takes no lease. */
export async function proveRefused(
  handlers: Type,
  message: string,
  imports: DynamicModule[] = [],
): Promise<void> {
  const fencing = FencingModule.forRoot({
    leases: memoryLeases(),
    fence: typeOrmFence({ ensureSchema: true }),
    strict: true,
  });

  @Module({ imports: [...database, fencing, ...imports], providers: [handlers] })
  class CarelessModule {}

  const refused: unknown = await NestFactory.createApplicationContext(CarelessModule, {
    abortOnError: false,
    logger: false,
  }).then(
    () => assert.fail(`${handlers.name} was not refused`),
    (error: unknown) => error,
  );
  if (!(refused instanceof FencingConfigError)) throw refused;
  assert.ok(refused.message.includes(`@FencedWrite on ${message}, and takes no lease`), refused.message);
  console.log(`refused: ${handlers.name}`);
}
