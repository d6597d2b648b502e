import 'reflect-metadata';
import { setTimeout as sleep } from 'node:timers/promises';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { TypeOrmModule } from '@nestjs/typeorm';
import { Redis, type RedisOptions } from 'ioredis';
import { FencingModule } from 'nestjs-fencing';
import { redisLeases } from 'nestjs-fencing/redis';
import { typeOrmFence } from 'nestjs-fencing/typeorm';
import { tell, told } from '../support/worker-side.js';
import { Cell, Entry, LogEntry } from './entities.js';
import { HistoryFile, now } from './history.js';
import { Random } from './random.js';
import { recordedFence, recordedStore } from './recorded.js';
import {
  CALM_MS,
  KEYS,
  type OpenOperation,
  SLOT_MS,
  STORE_TIMEOUT_MS,
  TTL_MS,
  WAIT_MS,
  type WorkerSettings,
} from './settings.js';
import { type CallNote, codeOf, type Pace, Workload } from './workload.js';

// One process of the campaign: a Nest application that works until it is told to end, or is ended.

const settings = JSON.parse(process.argv[2]!) as WorkerSettings;
const history = new HistoryFile(settings.history, settings.who);
const random = new Random(settings.seed);
const LOOPS = 4;

process.on('unhandledRejection', (error) => {
  history.note({ e: 'crash', error: `unhandled: ${(error as Error | undefined)?.stack}` });
});
process.on('uncaughtException', (error) => {
  history.note({ e: 'crash', error: `uncaught: ${error.stack}` });
  process.exit(70);
});

/** Workers use the client in the ways that applications do. */
const CLIENTS: RedisOptions[] = [
  {},
  { autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 1 },
  { commandTimeout: 2_000 },
  { enableOfflineQueue: false, maxRetriesPerRequest: null },
];
const redis = new Redis(settings.redisUrl, {
  ...CLIENTS[settings.index % CLIENTS.length],
  retryStrategy: (attempt) => Math.min(50 * attempt, 500),
});
redis.on('error', () => undefined);
if (redis.options.enableOfflineQueue === false) await new Promise((resolve) => redis.once('ready', resolve));

@Module({
  imports: [
    TypeOrmModule.forRoot({
      type: 'postgres',
      url: settings.databaseUrl,
      applicationName: `campaign ${settings.index}`,
      entities: [Cell, Entry, LogEntry],
      poolSize: 8,
      retryAttempts: 100,
      retryDelay: 200,
      connectTimeoutMS: 2_000,
      poolErrorHandler: () => undefined,
      // A connection that went silent must not keep its place in the pool for ever.
      extra: { query_timeout: 6_000 },
    }),
    TypeOrmModule.forFeature([Cell, Entry, LogEntry]),
    FencingModule.forRoot({
      leases: recordedStore(redisLeases(redis), history, random),
      fence: recordedFence(typeOrmFence(), history, random, settings.isControl),
      defaults: { ttlMs: TTL_MS, waitMs: WAIT_MS },
      storeTimeoutMs: STORE_TIMEOUT_MS,
      drainMs: 1_000,
    }),
  ],
  providers: [Workload, { provide: HistoryFile, useValue: history }],
})
class CampaignModule {}

const app = await NestFactory.createApplicationContext(CampaignModule, {
  logger: false,
  abortOnError: false,
});
const workload = app.get(Workload);
let stopping = false;
let calls = 0;

type Kind = 'modify' | 'append' | 'transfer' | 'operate' | 'forget' | 'last';

/** Runs one leased call and notes it from its beginning to its end. */
async function call(
  kind: Kind,
  keys: string[],
  pace: Pace,
  run: (note: CallNote) => Promise<unknown>,
  waitMs = WAIT_MS,
): Promise<boolean> {
  const note: CallNote = { call: `${settings.who}-${++calls}`, pace, seen: new Map() };
  history.note({ e: 'call', call: note.call, kind, keys, waitMs });
  let outcome = 'ok';
  try {
    await run(note);
  } catch (error) {
    outcome = codeOf(error);
  }
  history.note({ e: 'end', call: note.call, outcome, late: kind === 'forget' });
  return outcome === 'ok';
}

/** Mostly short; now and then long enough for a fault to fall into it, or for several renewals. */
function nextPace(): Pace {
  const brief = { before: random.between(0, 20), inside: 0, insideSql: false, after: random.between(0, 5) };
  const part = random.next();
  const insideSql = random.chance(0.3);
  if (part < 0.6) return brief;
  if (part < 0.76) return { ...brief, inside: random.between(5, 80), insideSql };
  if (part < 0.84) return { ...brief, before: random.between(0.1, 0.4) * TTL_MS };
  if (part < 0.98) return { ...brief, inside: random.between(0.05, 0.4) * TTL_MS, insideSql };
  if (part < 0.99) return { ...brief, before: random.between(0.8, 1.4) * TTL_MS };
  return { ...brief, inside: random.between(0.8, 1.3) * TTL_MS, insideSql };
}

const fast: Pace = { before: 0, inside: 0, insideSql: false, after: 0 };

/** The same operation for all workers in a slot of time, now and then with another payload under its id. */
function operationOf(key: string): OpenOperation {
  const slot = Math.floor(now() / SLOT_MS);
  const amount = 1 + (slot % 7) + (random.chance(0.04) ? 1_000 : 0);
  return { id: `${key}/${slot}`, key, amount };
}

/** Sends it until its fate is known, a few times at most. */
async function operate({ id, key, amount }: OpenOperation, tries: number, pace = nextPace()): Promise<void> {
  for (let attempt = 0; attempt < tries && !(stopping && attempt > 0 && tries < 10); attempt++) {
    if (await call('operate', [key], pace, (note) => workload.operate(note, id, key, amount))) return;
  }
}

async function workOn(): Promise<void> {
  while (!stopping) {
    const [key, other] = random.shuffle(KEYS) as [string, string];
    const pace = nextPace();
    const part = random.next();
    if (part < 0.35) {
      const times = random.chance(0.3) ? 2 : 1;
      await call('modify', [key], pace, (note) => workload.modify(note, key, times));
    } else if (part < 0.55) {
      await call('append', [key], pace, (note) => workload.append(note, key));
    } else if (part < 0.75) {
      const amount = Math.ceil(random.between(0, 50));
      await call('transfer', [key, other], pace, (note) => workload.transfer(note, key, other, amount));
    } else if (part < 0.97) {
      await operate(operationOf(key), 3, pace);
    } else {
      let open: () => void = () => undefined;
      const ended = new Promise<void>((resolve) => (open = resolve));
      let late: Promise<unknown> | undefined;
      await call('forget', [key], pace, async (note) => ({ late } = await workload.forget(note, key, ended)));
      open();
      await late;
    }
    await sleep(random.between(0, 50));
  }
}

/** No more faults: everybody gets everything, and every open operation is settled. */
async function settle(operations: OpenOperation[]): Promise<void> {
  stopping = true;
  await Promise.race([Promise.all(loops), sleep(CALM_MS / 3)]);
  for (const key of KEYS) {
    const waitMs = CALM_MS / 3;
    for (let i = 0; i < 3; i++) {
      if (await call('last', [key], fast, (note) => workload.last(note, key, waitMs), waitMs)) break;
    }
  }
  for (const operation of operations) await operate(operation, 10, fast);
}

/** Ends as an application does: no new leases, running ones are drained. */
async function shutDown(): Promise<never> {
  stopping = true;
  const impatience = setTimeout(() => process.exit(71), 20_000);
  await app.close();
  clearTimeout(impatience);
  redis.disconnect();
  process.exit(0);
}

/** Does `act` each time the campaign says so. */
async function on<T>(name: string, act: (payload: T) => void): Promise<never> {
  for (;;) act(await told<T>(name));
}

history.note({ e: 'ready' });
await tell('ready');
const loops = Array.from({ length: LOOPS }, workOn);
void on<number>('block', (ms) => {
  for (const end = now() + ms; now() < end;);
});
void on<number>('clock', (ms) => {
  (globalThis as unknown as Record<symbol, { ms: number }>)[Symbol.for('campaign/clock')]!.ms = ms;
});
void told('shut down').then(shutDown);
await settle(await told<OpenOperation[]>('calm'));
await tell('finished');
