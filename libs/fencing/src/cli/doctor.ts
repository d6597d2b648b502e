import { parseArgs } from 'node:util';
import { conclude, type Diagnosis, type Examination, exitCodeOf, failedCheck } from '../core/diagnosis.js';

export const DOCTOR_USAGE = `usage: nestjs-fencing doctor [--redis <url>]... [--postgres <url>] [--schema <name>] [--json]

Looks at the servers behind leases and fence, and says what is set up in a way that will hurt, why, and what to do. It only reads.
  --redis      redis://… ; several for the nodes of a quorum; any one node of a cluster
  --postgres   postgres://… of the fenced database
  --schema     where the package's tables are, if not in the search path
  --json       the findings and what was read, as JSON
Triggers of entities with a @GenerationColumn() are known to the application only: FencingService.diagnose().
exit code: 0 nothing to do, 1 warnings, 2 errors (or the call is wrong)`;

const CONNECT_WITHIN_MS = 5_000;

/** Answers the exit code. */
export async function doctor(args: string[], print: (text: string) => Promise<void>): Promise<number> {
  const options = readArguments(args);
  if (!options) {
    console.error(DOCTOR_USAGE);
    return 2;
  }
  if (options.help) {
    await print(DOCTOR_USAGE);
    return 0;
  }
  const { redis = [], postgres, schema } = options;
  const examined: Record<string, Examination> = {};
  for (const [at, url] of redis.entries()) {
    const about = redis.length > 1 ? `redis ${at + 1}` : 'redis';
    examined[about] = await attempt(about, () => examineRedis(url, about));
  }
  if (postgres !== undefined)
    examined.postgres = await attempt('postgres', () => examinePostgres(postgres, schema));
  const diagnosis = conclude(examined);
  await print(options.json ? JSON.stringify(diagnosis, null, 2) : asText(diagnosis));
  return exitCodeOf(diagnosis);
}

function readArguments(args: string[]) {
  try {
    const { values } = parseArgs({
      args,
      options: {
        redis: { type: 'string', multiple: true },
        postgres: { type: 'string' },
        schema: { type: 'string' },
        json: { type: 'boolean' },
        help: { type: 'boolean', short: 'h' },
      },
    });
    return values.help || values.redis || values.postgres !== undefined ? values : undefined;
  } catch (error) {
    console.error(`${(error as Error).message}\n`);
    return undefined;
  }
}

async function attempt(about: string, work: () => Promise<Examination>): Promise<Examination> {
  try {
    return await work();
  } catch (error) {
    return { facts: {}, findings: [failedCheck(about, error)] };
  }
}

async function examineRedis(url: string, about: string): Promise<Examination> {
  const { Cluster, Redis } = await import('ioredis');
  const { RedisLeaseStore } = await import('../redis/redis-lease-store.js');
  const options = { connectTimeout: CONNECT_WITHIN_MS, commandTimeout: CONNECT_WITHIN_MS };
  const client = new Redis(url, { ...options, lazyConnect: true, retryStrategy: () => null });
  let cause: unknown; // the rejection says only that the connection is closed
  client.on('error', (error) => (cause = error));
  let cluster: InstanceType<typeof Cluster> | undefined;
  try {
    await client.connect().catch((error: unknown) => {
      throw cause ?? error;
    });
    // Of a cluster one node is enough: it knows the others.
    if (/^redis_mode:cluster/m.test(await client.info('server'))) {
      const { host, port, username, password, tls } = client.options;
      const redisOptions = { ...options, username, password, tls };
      cluster = new Cluster([{ host, port }], { redisOptions });
      cluster.on('error', () => undefined);
    }
    const { findings, facts, clockAheadMs } = await new RedisLeaseStore(cluster ?? client, {
      prefix: 'fencing',
      ownsClient: false,
    }).diagnose();
    const renamed = Object.entries(facts).map(([name, value]) => [name.replace(/^redis/, about), value]);
    return {
      findings: findings.map((finding) => ({ ...finding, about: finding.about.replace(/^redis/, about) })),
      facts: Object.fromEntries(renamed) as Examination['facts'],
      clockAheadMs,
    };
  } finally {
    client.disconnect();
    cluster?.disconnect();
  }
}

async function examinePostgres(url: string, schema: string | undefined): Promise<Examination> {
  const { default: pg } = await import('pg');
  const { diagnosePostgres } = await import('../typeorm/diagnose-postgres.js');
  const client = new pg.Client({
    connectionString: url,
    connectionTimeoutMillis: CONNECT_WITHIN_MS,
    query_timeout: CONNECT_WITHIN_MS,
  });
  client.on('error', () => undefined); // told by the rejection
  try {
    await client.connect();
    return await diagnosePostgres({
      query: async <Row>(text: string, parameters?: unknown[]) =>
        (await client.query(text, parameters)).rows as Row[],
      processId: (client as unknown as { processID?: number }).processID,
      schema,
    });
  } finally {
    await client.end().catch(() => undefined);
  }
}

function asText({ findings, facts }: Diagnosis): string {
  const lines = findings.flatMap(({ severity, about, problem, consequence, fix }) => [
    `${severity.toUpperCase()} (${about}): ${problem}`,
    `  ${consequence}`,
    `  Fix: ${fix}`,
    '',
  ]);
  if (findings.length === 0) lines.push('Nothing to report.', '');
  return [...lines, ...Object.entries(facts).map(([name, value]) => `${name} = ${String(value)}`)].join('\n');
}
