import { NestFactory } from '@nestjs/core';
import { AppModule } from '../src/app.module.js';
import { OutboxDispatcher } from '../src/payments/outbox-dispatcher.js';
import { tell } from './support/worker-side.js';

// A worker for outbox.e2e-spec.ts: the reference app, which dispatches its outbox once and is killed meanwhile.
const app = await NestFactory.createApplicationContext(AppModule, { logger: false });
await tell('dispatching');
const answered = await app.get(OutboxDispatcher).dispatch();
await tell('dispatched', answered);
await app.close();
