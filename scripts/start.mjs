// npm start: builds the reference app, finds or starts its servers, and runs it.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import {
  answers,
  dataFolders,
  findOrStartPostgres,
  findOrStartRedis,
  projectRoot,
  REDIS_HELP,
} from './services.mjs';
import { dyingWithParent } from './services/server-process.mjs';

/**
 * Tells a second `npm start` where the servers of the first are: two instances with a Redis each would share no lease.
 * @typedef {{ pid: number, databaseUrl?: string, redisUrl?: string }} Note
 */
const noteFile = path.join(dataFolders.project, 'running.json');

/** @returns {Promise<Note | undefined>} the servers of an `npm start` that is still running */
async function runningServers() {
  try {
    const note = /** @type {Note} */ (JSON.parse(readFileSync(noteFile, 'utf8')));
    process.kill(note.pid, 0); // throws when that process is gone
    const urls = [note.databaseUrl, note.redisUrl].filter((url) => url !== undefined);
    return (await Promise.all(urls.map(answers))).every(Boolean) ? note : undefined;
  } catch {
    return undefined;
  }
}

/** @type {{ stop(): Promise<void> }[]} */
const started = [];

/** @returns {Promise<{ DATABASE_URL: string, REDIS_URL: string | undefined }>} */
async function servers() {
  const shared = await runningServers();
  if (shared) {
    console.error(
      `Sharing the servers of the running \`npm start\` (process ${shared.pid}): they end with it.`,
    );
    if (shared.databaseUrl) process.env.DATABASE_URL ??= shared.databaseUrl;
    if (shared.redisUrl) process.env.REDIS_URL ??= shared.redisUrl;
  }
  const postgres = await findOrStartPostgres({ persistent: true });
  started.push(postgres);
  const redis = await findOrStartRedis();
  if (redis) started.push(redis);
  console.error(`PostgreSQL: ${withoutPassword(postgres.url)} (${postgres.source})`);
  console.error(
    redis
      ? `Redis: ${withoutPassword(redis.url)} (${redis.source})`
      : `${REDIS_HELP} (until then the app keeps its leases in PostgreSQL)`,
  );
  if (!shared) {
    /** @type {Note} */
    const note = {
      pid: process.pid,
      databaseUrl: postgres.source === 'DATABASE_URL' ? undefined : postgres.url,
      redisUrl: redis && redis.source !== 'REDIS_URL' ? redis.url : undefined,
    };
    mkdirSync(dataFolders.project, { recursive: true });
    writeFileSync(noteFile, JSON.stringify(note), { mode: 0o600 });
    started.push({ stop: async () => rmSync(noteFile, { force: true }) });
  }
  return { DATABASE_URL: postgres.url, REDIS_URL: redis?.url };
}

/** @param {string} url */
const withoutPassword = (url) => url.replace(/:[^:@/]*@/, ':***@');

/** The process that signals go to. @type {import('node:child_process').ChildProcess | undefined} */
let current;
/** @type {NodeJS.Signals | undefined} */
let ending;

/** @param {NodeJS.Signals} signal */
function end(signal) {
  ending = signal;
  current?.kill(signal);
}
process.on('SIGINT', end).on('SIGTERM', end).on('SIGHUP', end);

// npm passes a signal to the shell between us, and many a shell dies of it without passing it on.
if (process.env.npm_lifecycle_event === 'start') {
  const shell = process.ppid;
  const watch = setInterval(() => {
    if (process.ppid === shell) return;
    clearInterval(watch);
    end('SIGTERM');
  }, 200).unref();
}

/**
 * Runs node to its end and resolves to its exit code. The child has a process group of its own: it gets a Ctrl-C once,
 * from us.
 * @param {string[]} args @param {NodeJS.ProcessEnv} env
 * @returns {Promise<number>}
 */
async function run(args, env) {
  current = spawn(...dyingWithParent('SIGTERM', process.execPath, args), {
    cwd: projectRoot,
    env,
    detached: true,
    stdio: ['ignore', 'inherit', 'inherit'],
  });
  const [code, signal] = await once(current, 'exit');
  return code ?? codeOf(signal);
}

/** @param {NodeJS.Signals} signal */
const codeOf = (signal) => 128 + os.constants.signals[signal];

let code = 1;
try {
  const build = run(['node_modules/@nestjs/cli/bin/nest.js', 'build', 'reference-app'], process.env);
  const [built, urls] = await Promise.all([build, servers()]);
  if (ending) code = codeOf(ending);
  else if (built !== 0) code = built;
  else code = await run(['--enable-source-maps', 'dist/app/src/main.js'], { ...process.env, ...urls });
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
} finally {
  await Promise.all(started.map((server) => server.stop()));
}
process.exit(code);
