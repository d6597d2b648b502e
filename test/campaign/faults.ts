import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { bucketOf } from '../../libs/fencing/src/core/buckets.js';
import { STEPS } from '../../libs/fencing/src/redis/scripts.js';
import type { PostgresServer } from '../support/postgres-server.js';
import type { Direction } from '../support/proxy.js';
import type { RedisServer } from '../support/redis-server.js';
import type { Crew, Member } from './crew.js';
import type { HistoryFile } from './history.js';
import type { Random } from './random.js';
import { KEYS, TTL_MS } from './settings.js';

/** What a fault works on. */
export interface Stage {
  readonly crew: Crew;
  readonly redis: RedisServer;
  readonly postgres: PostgresServer;
  readonly random: Random;
  readonly history: HistoryFile;
}

/** What was hit, for the history; and what is left to do after the fault has ended. */
interface Done {
  readonly target?: string;
  readonly after?: () => Promise<unknown>;
}

export interface Fault {
  readonly kind: string;
  /** Faults of one group are never at work at the same time. */
  readonly group: 'worker' | 'store' | 'redis link' | 'database' | 'database link' | 'operator' | 'none';
  /** The store may lose or change data in it. */
  readonly loses?: boolean;
  /** How often it comes in a round of all faults. Those after which a key has two who think it theirs come more often. */
  readonly times?: number;
  run(stage: Stage): Promise<Done>;
}

/** Waits for a random part of the ttl. */
const hold = ({ random }: Stage, from: number, to: number) => sleep(random.between(from, to) * TTL_MS);

/** Does something to a random worker. */
function toWorker(
  kind: string,
  act: (member: Member, stage: Stage) => Promise<Omit<Done, 'target'> | void>,
): Fault {
  return {
    kind,
    group: 'worker',
    async run(stage) {
      const member = stage.crew.pick(stage.random);
      return { target: member.who, ...(await act(member, stage)) };
    },
  };
}

/** Does something to the link between a random worker and one of the servers; all links in one of four cases. */
function toLink(
  kind: string,
  to: 'redis' | 'database',
  act: (members: Member[], stage: Stage) => Promise<void>,
): Fault {
  return {
    kind: `${to === 'redis' ? 'Redis' : 'PostgreSQL'} link: ${kind}`,
    group: `${to} link`,
    async run(stage) {
      const members = stage.random.chance(0.25) ? stage.crew.members : [stage.crew.pick(stage.random)];
      await act(members, stage);
      return { target: members.map(({ who }) => who).join(' ') };
    },
  };
}

const directions: Record<string, Direction | undefined> = {
  'requests held back (half open)': 'requests',
  'replies held back (half open)': 'replies',
  'silent both ways': undefined,
};

const linkFaults = (to: 'redis' | 'database'): Fault[] => [
  toLink('cut', to, async (members) => members.forEach((member) => member[to].cutAll())),
  toLink('cut and refused for a while', to, async (members, stage) => {
    for (const member of members) {
      member[to].refuse();
      member[to].cutAll();
    }
    await hold(stage, 0.1, 0.5);
    for (const member of members) await member[to].accept();
  }),
  toLink('slow replies', to, async (members, stage) => {
    const ms = stage.random.between(30, 400);
    members.forEach((member) => member[to].delayReplies(ms));
    await hold(stage, 0.5, 2);
    members.forEach((member) => member[to].delayReplies(0));
  }),
  ...Object.entries(directions).map(([kind, direction]) =>
    toLink(kind, to, async (members, stage) => {
      members.forEach((member) => member[to].stall(direction));
      await hold(stage, 0.4, 2);
      // Half of them come back, the others turn out to be dead.
      if (stage.random.chance(0.5)) members.forEach((member) => member[to].cutAll());
      members.forEach((member) => member[to].resume(direction));
    }),
  ),
];

/** Loses exactly one reply at a named point: the request is carried out, and the connection breaks instead of the answer. */
const swallowed = (
  point: string,
  to: 'redis' | 'database',
  matches: (request: string) => boolean,
): Fault => ({
  kind: `one reply lost: ${point}`,
  group: `${to} link`,
  async run({ crew, random }) {
    const member = crew.pick(random);
    // Where it does not come soon, it comes later.
    await Promise.race([member[to].swallowReplyOnce(matches), sleep(4_000)]);
    return { target: member.who };
  },
});

/** A generation far ahead of the store's clock was issued and activated before the store lost it. */
async function raiseCounters({ redis, random }: Stage): Promise<void> {
  if (random.chance(0.5)) return;
  const add = Math.round(random.between(1, 90) * 1e6);
  const script = `for _, key in ipairs(redis.call('KEYS', '*:generation')) do
    redis.call('SET', key, string.format('%.0f', redis.call('GET', key) + ARGV[1])) end`;
  await redis.command('EVAL', script, 0, add);
  await sleep(random.between(100, 400));
}

const leaseOf = (key: string) => `fencing:{${bucketOf(key)}}:lease:${key}`;

/** Hints that nobody sent for a reason: whoever waits looks at once, so a key that was lost is taken while its owner works. */
async function wakeEverybody({ redis }: Stage): Promise<void> {
  for (const key of KEYS) await redis.command('PUBLISH', `fencing:{${bucketOf(key)}}:wake`, `- 0 ${key}`);
}

const storeFaults: Fault[] = [
  {
    kind: 'Redis frozen',
    group: 'store',
    async run(stage) {
      stage.redis.pause();
      await hold(stage, 0.3, 2);
      stage.redis.resume();
      return {};
    },
  },
  {
    kind: 'Redis killed, back empty',
    group: 'store',
    loses: true,
    async run(stage) {
      await raiseCounters(stage);
      await stage.redis.kill();
      await hold(stage, 0, 0.6);
      await stage.redis.restart({ empty: true });
      return {};
    },
  },
  {
    kind: 'Redis flushed',
    times: 2,
    group: 'store',
    loses: true,
    async run(stage) {
      await raiseCounters(stage);
      for (let times = 3; times > 0; times--) {
        await stage.redis.command('FLUSHALL');
        await wakeEverybody(stage);
        await hold(stage, 0.05, 0.3);
      }
      return {};
    },
  },
  {
    kind: 'Redis rolled back to an old copy',
    group: 'store',
    loses: true,
    async run(stage) {
      const dump = await stage.redis.saveDump();
      await hold(stage, 0.3, 1.5);
      await raiseCounters(stage);
      await stage.redis.restart({ dump });
      return {};
    },
  },
  {
    kind: 'Redis forgot its scripts',
    group: 'store',
    async run(stage) {
      await stage.redis.command('SCRIPT', 'FLUSH');
      return {};
    },
  },
  {
    kind: 'leases deleted in Redis',
    times: 3,
    group: 'store',
    loses: true,
    async run(stage) {
      for (let times = 8; times > 0; times--) {
        await stage.redis.command('DEL', ...KEYS.map(leaseOf));
        await wakeEverybody(stage);
        await hold(stage, 0.05, 0.25);
      }
      return {};
    },
  },
];

/** One statement on a connection of its own, past the proxies. */
export async function asAdmin<Row>(url: string, sql: string, parameters?: unknown[]): Promise<Row[]> {
  const client = new pg.Client({
    connectionString: url,
    connectionTimeoutMillis: 5_000,
    query_timeout: 5_000,
  });
  client.on('error', () => undefined);
  try {
    await client.connect();
    return (await client.query(sql, parameters)).rows as Row[];
  } finally {
    await client.end().catch(() => undefined);
  }
}

const restarted = (mode: 'fast' | 'immediate'): Fault => ({
  kind: `PostgreSQL restarted (${mode})`,
  group: 'database',
  async run(stage) {
    await stage.postgres.shutDown(mode);
    await hold(stage, 0, 0.6);
    await stage.postgres.restart(mode);
    return {};
  },
});

const databaseFaults: Fault[] = [
  {
    kind: 'database sessions terminated',
    group: 'database',
    async run({ postgres, random }) {
      const share = random.pick([0.3, 1]);
      await asAdmin(
        postgres.url,
        `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'campaign%' AND random() < $1`,
        [share],
      );
      return {};
    },
  },
  {
    kind: 'a database session frozen',
    group: 'database',
    async run(stage) {
      const [session] = await asAdmin<{ pid: number }>(
        stage.postgres.url,
        `SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'campaign%' ORDER BY xact_start NULLS LAST LIMIT 1`,
      );
      if (!session) return {};
      process.kill(session.pid, 'SIGSTOP');
      await hold(stage, 0.5, 2);
      process.kill(session.pid, 'SIGCONT');
      return {};
    },
  },
  restarted('fast'),
  restarted('immediate'),
];

const workerFaults: Fault[] = [
  toWorker('worker paused (SIGSTOP)', async (member, stage) => {
    member.process.pause();
    await hold(stage, 0.3, 2.5);
    member.process.resume();
  }),
  toWorker('worker killed (SIGKILL)', async (member, { crew }) => {
    await member.kill();
    return { after: () => crew.allReady() };
  }),
  toWorker('worker shut down while working', async (member, { crew }) => {
    await member.shutDown();
    return { after: () => crew.allReady() };
  }),
  toWorker('event loop blocked', async (member, { random }) => {
    const ms = random.between(0.3, 2) * TTL_MS;
    member.process.send('block', ms);
    await sleep(ms);
  }),
  toWorker('wall clock jumps by an hour', async (member, stage) => {
    const hour = 3_600_000;
    member.process.send('clock', hour);
    await hold(stage, 0.2, 0.7);
    member.process.send('clock', -hour);
    await hold(stage, 0.2, 0.7);
    member.process.send('clock', 0);
  }),
];

/** What `FencingService.revoke` does: the fence goes to a grant that nobody has, and the key is free. */
async function revoke({ redis, postgres, history }: Stage, key: string): Promise<void> {
  const owner = `revoked-${randomUUID()}`;
  const fence = 'SELECT generation::float8 AS generation FROM fencing_fence WHERE key = $1';
  const [before] = await asAdmin<{ generation: number }>(postgres.url, fence, [key]);
  const generation = (before?.generation ?? 0) + 1;
  history.note({ e: 'activating', key, owner, generation });
  const activate = 'SELECT fencing_activate($1, $2, $3, 2000, true)::float8 AS ahead';
  const [answer] = await asAdmin<{ ahead: number | null }>(postgres.url, activate, [key, generation, owner]);
  if (answer!.ahead === null) await redis.command('DEL', leaseOf(key));
}

/** Things that people and programs do to a key from outside. */
const operatorFaults: Fault[] = [
  {
    kind: 'keys revoked',
    times: 2,
    group: 'operator',
    loses: true,
    async run(stage) {
      const keys = stage.random.shuffle(KEYS).slice(0, 4);
      for (const key of keys) {
        await revoke(stage, key);
        await hold(stage, 0.02, 0.1);
      }
      return { target: keys.join(' ') };
    },
  },
  {
    kind: 'a stranger renews and releases',
    group: 'operator',
    async run({ redis, random, history }) {
      const strangers = [randomUUID(), '', 'undefined', '0'];
      for (const key of KEYS) {
        const owner = random.pick(strangers);
        const renewed = await redis.command('EVAL', STEPS, 1, leaseOf(key), 'renew', 1, 60_000, owner);
        history.note({
          e: 'intruder',
          what: 'renew',
          key,
          owner,
          obeyed: (renewed as [number, number[]])[1][0] !== 0,
        });
        const bucket = `fencing:{${bucketOf(key)}}`;
        const names = [leaseOf(key), `${bucket}:generation`, `${bucket}:waiters:${key}`];
        const released = await redis.command('EVAL', STEPS, 3, ...names, 'release', owner, 0);
        history.note({
          e: 'intruder',
          what: 'release',
          key,
          owner,
          obeyed: (released as number[])[0] !== 0,
        });
      }
      return {};
    },
  },
];

/** Whether a request takes a step of one of these names. */
const hasStep =
  (...names: string[]) =>
  (request: string) =>
    /^EVAL(SHA)?\b/i.test(request) && request.split(' ').some((word) => names.includes(word));

const swallowFaults: Fault[] = [
  swallowed('acquire', 'redis', hasStep('acquire')),
  swallowed('renew', 'redis', hasStep('renew')),
  swallowed('release', 'redis', hasStep('release', 'handOver')),
  swallowed('activate', 'database', (request) => request.includes('fencing_activate')),
  swallowed('commit', 'database', (request) => request === 'COMMIT'),
];

/** Nothing at all happens: what recovery looks like without a fault. */
const nothing: Fault = {
  kind: '(no fault)',
  group: 'none',
  run: async (stage) => (await hold(stage, 0.2, 0.5), {}),
};

/** A round of all faults. */
export const FAULTS: readonly Fault[] = [
  ...workerFaults,
  ...storeFaults,
  ...databaseFaults,
  ...linkFaults('redis'),
  ...linkFaults('database'),
  ...swallowFaults,
  ...operatorFaults,
  nothing,
].flatMap((fault) => Array<Fault>(fault.times ?? 1).fill(fault));
