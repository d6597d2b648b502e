import { chmodSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { bucketOf } from '../../libs/fencing/src/core/buckets.js';
import { PostgresServer } from '../support/postgres-server.js';
import { RedisServer } from '../support/redis-server.js';
import { check, type Evidence, openOperations, type Verdict } from './checker.js';
import { Crew } from './crew.js';
import { type Figures, figuresOf } from './figures.js';
import { HistoryFile, now, readHistory } from './history.js';
import { Nemesis } from './nemesis.js';
import { Random } from './random.js';
import { CALM_MS, KEYS, START_BALANCE, TTL_MS, WORKERS } from './settings.js';
import { createTables, readTables, type Without } from './tables.js';

export interface CampaignOptions {
  readonly minutes: number;
  readonly seed: number;
  readonly without?: Without;
  /** Where the histories stay; else they are removed where all is well. */
  readonly keep?: string;
  readonly print: (line: string) => void;
}

export interface CampaignResult {
  readonly verdict: Verdict;
  readonly figures: Figures;
  readonly folder: string;
}

/** How often a control looks whether it was caught already, ms. */
const CONTROL_CHECK_MS = 8_000;
const PROBE_MS = 200;

/** One campaign on servers and workers of its own, from the first start to the verdict. */
export async function runCampaign(options: CampaignOptions): Promise<CampaignResult> {
  const { minutes, seed, without, print } = options;
  const folder = options.keep ?? mkdtempSync(path.join(os.tmpdir(), 'fencing-campaign-'));
  const temporary = mkdtempSync(path.join(os.tmpdir(), 'fencing-servers-'));
  chmodSync(temporary, 0o755);
  process.env.SERVICES_TMP = temporary;
  // A campaign that is broken off leaves nothing.
  const removed = [temporary, ...(options.keep === undefined ? [folder] : [])];
  const removeAll = () =>
    removed.forEach((one) => rmSync(one, { recursive: true, force: true, maxRetries: 3 }));
  process.once('exit', removeAll);
  mkdirSync(folder, { recursive: true });

  const closing: (() => unknown)[] = [];
  try {
    const history = new HistoryFile(path.join(folder, 'nemesis.jsonl'), 'nemesis');
    closing.push(() => history.close());
    const redis = await RedisServer.start();
    closing.push(() => redis.stop());
    // A commit is in the server's hands once it is confirmed: a crash of the server alone does not lose it.
    const postgres = await PostgresServer.start({ max_connections: 150, synchronous_commit: 'on' });
    closing.push(() => postgres.stop());
    await createTables(postgres.url, KEYS, START_BALANCE, without);
    const crew = await Crew.start({
      size: WORKERS,
      folder,
      seed,
      isControl: without !== undefined,
      redisUrl: redis.url,
      databaseUrl: postgres.url,
      history,
    });
    closing.push(() => crew.close());
    closing.push(probe(redis.url, history));

    const stage = { crew, redis, postgres, random: new Random(seed), history };
    const started = now();
    const end = started + minutes * 60_000;
    const evidence = async (complete: boolean): Promise<Evidence> => {
      // The history first: what it says is done must be in the tables that are read after it.
      const events = readHistory(historiesIn(folder));
      return {
        events,
        tables: await readTables(postgres.url),
        complete,
        keys: KEYS,
        ttlMs: TTL_MS,
        balance: START_BALANCE,
      };
    };
    let nextLook = now() + CONTROL_CHECK_MS;
    let nextLine = now() + 30_000;
    let caught: Verdict | undefined;
    const lookIn = async () => {
      if (without && now() > nextLook) {
        nextLook = now() + CONTROL_CHECK_MS;
        const verdict = check(await evidence(false));
        if (verdict.failed > 0) caught = verdict;
      }
      if (now() > nextLine) {
        nextLine += 30_000;
        print(`  ${Math.round((now() - started) / 1000)} s ...`);
      }
    };
    let looking: Promise<void> = Promise.resolve();
    const lookEvery = setInterval(() => {
      looking = looking.then(lookIn).catch(() => undefined);
    }, 500);
    closing.push(() => clearInterval(lookEvery));
    await new Nemesis(stage).run(() => now() < end && !caught);
    clearInterval(lookEvery);
    await looking;
    if (caught) {
      const last = await evidence(false);
      return { verdict: caught, figures: figuresOf(last, now() - started), folder };
    }

    await calm(crew, history, folder);
    const ran = now() - started;
    const last = await evidence(true);
    writeFileSync(path.join(folder, 'tables.json'), JSON.stringify(last.tables));
    return { verdict: check(last), figures: figuresOf(last, ran), folder };
  } finally {
    for (const close of closing.reverse()) await Promise.resolve(close()).catch(() => undefined);
    rmSync(temporary, { recursive: true, force: true, maxRetries: 3 });
    process.off('exit', removeAll);
  }
}

/** The end: no more faults; everybody writes every key, and operations whose fate is open are sent again. */
async function calm(crew: Crew, history: HistoryFile, folder: string): Promise<void> {
  await crew.allReady();
  history.note({ e: 'calm' });
  const open = openOperations(readHistory(historiesIn(folder)));
  crew.members.forEach(({ process: worker }, index) =>
    worker.send(
      'calm',
      open.filter((_, i) => i % crew.members.length === index),
    ),
  );
  const all = crew.members.map(({ process: worker }) =>
    worker.waitFor('finished', { timeoutMs: 2 * CALM_MS }),
  );
  // One that does not finish is the checker's to judge.
  await Promise.allSettled(all);
  await Promise.allSettled(crew.members.map((member) => member.shutDown()));
}

/** Looks at every lease again and again, past the proxies, and notes what it sees. */
function probe(url: string, history: HistoryFile): () => Promise<void> {
  const redis = new Redis(url, { commandTimeout: 1_000, retryStrategy: () => 100, maxRetriesPerRequest: 0 });
  redis.on('error', () => undefined);
  let stopped = false;
  const look = async () => {
    while (!stopped) {
      for (const key of KEYS) {
        const lease = `fencing:{${bucketOf(key)}}:lease:${key}`;
        const held = await Promise.all([redis.get(lease), redis.pttl(lease)]).catch(() => undefined);
        const [, owner, generation] = /^(\S+) (\d+)(?: w)?$/.exec(held?.[0] ?? '') ?? [];
        if (owner)
          history.note({ e: 'probe', key, owner, generation: Number(generation), remainingMs: held![1] });
      }
      await sleep(PROBE_MS);
    }
  };
  const done = look();
  return async () => {
    stopped = true;
    redis.disconnect();
    await done;
  };
}

function historiesIn(folder: string): string[] {
  return readdirSync(folder)
    .filter((name) => name.endsWith('.jsonl'))
    .map((name) => path.join(folder, name));
}
