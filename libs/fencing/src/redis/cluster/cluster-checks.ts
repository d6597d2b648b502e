import type { Clock } from '../../core/clock.js';
import type { Examination, Finding } from '../../core/diagnosis.js';
import { FencingConfigError } from '../../core/errors.js';
import type { StoreFinding } from '../../core/lease-store.js';
import { within } from '../../core/timing.js';
import { checkServer, readSetting } from '../check-server.js';
import { CLUSTER_SCRIPT } from './cluster-step-sender.js';
import { diagnoseRedis } from '../diagnose-redis.js';
import type { RedisClusterClient, RedisClusterNode } from '../redis-client.js';
import { hearsShards } from './sharded-hints.js';

/** A node that does not answer within this is down, ms. The nodes are asked at once, so that a boot waits no longer for many. */
const ANSWER_WITHIN_MS = 1_000;
/** To learn of masters that came since the last request, ms. */
const REFRESH_WITHIN_MS = 500;

const NEEDS = {
  version: [7, 0],
  because: 'sharded pub/sub',
  isCluster: true,
  script: CLUSTER_SCRIPT.text,
} as const;

/**
 * Checks each master; one that is down is a finding.
 * @throws FencingConfigError where one cannot keep leases, or what the client rejects with where none answers
 */
export async function checkCluster(client: RedisClusterClient, clock: Clock): Promise<StoreFinding[]> {
  const nodes = await mastersOf(client, clock);
  const checks = await Promise.allSettled(nodes.map((node) => inTime(clock, checkNode(node))));
  const findings: StoreFinding[] = [];
  checks.forEach((checked, at) => {
    const name = nameOf(nodes[at]!);
    if (checked.status === 'fulfilled') {
      const { found } = checked.value;
      findings.push(...found.map((one) => ({ ...one, problem: `${name}: ${one.problem}` })));
      return;
    }
    const error: unknown = checked.reason;
    if (error instanceof FencingConfigError) throw new FencingConfigError(`${name}: ${error.message}`, error);
    findings.push(silentNode(name, error));
  });
  const answered = checks.flatMap((checked) => (checked.status === 'fulfilled' ? [checked.value] : []));
  if (answered.length === 0) throw failureOf(checks[0]);
  if (answered.some(({ isDown }) => isDown)) findings.push(clusterDown());
  if (!nodes.every(hearsShards)) findings.push(deafClient());
  return findings;
}

async function checkNode(node: RedisClusterNode) {
  const found = await checkServer(node, NEEDS);
  const info = String(await node.call('CLUSTER', 'INFO').catch(() => ''));
  return { found, isDown: /^cluster_state:fail/m.test(info) };
}

function failureOf(checked: PromiseSettledResult<unknown> | undefined): Error {
  return checked?.status === 'rejected' ? (checked.reason as Error) : new Error('no node is known');
}

/** What each master says of itself, and what holds for all. */
export async function diagnoseCluster(client: RedisClusterClient, clock: Clock): Promise<Examination> {
  const nodes = await mastersOf(client, clock).catch((): RedisClusterNode[] => []);
  const examined = await Promise.all(
    nodes.map((node) =>
      // Where one is silent, the check has said so.
      inTime(clock, diagnoseRedis(node, `redis ${addressOf(node)}`)).catch(() => undefined),
    ),
  );
  const facts: Record<string, string | number | boolean> = { 'redis.masters': nodes.length };
  const findings: Finding[] = [];
  let clockAheadMs: number | undefined;
  examined.forEach((one, at) => {
    if (!one) return;
    Object.assign(facts, one.facts);
    findings.push(...one.findings, ...withoutReplica(one, `redis ${addressOf(nodes[at]!)}`));
    const aheadMs = one.clockAheadMs ?? 0;
    if (Math.abs(aheadMs) >= Math.abs(clockAheadMs ?? 0)) clockAheadMs = one.clockAheadMs;
  });
  const asked = nodes[examined.findIndex((one) => one !== undefined)];
  if (asked) {
    const setting = (name: string) => inTime(clock, readSetting(asked, name)).catch(() => undefined);
    const [fullCoverage, timeoutMs] = [
      await setting('cluster-require-full-coverage'),
      await setting('cluster-node-timeout'),
    ];
    if (timeoutMs !== undefined) facts['redis.clusterNodeTimeoutMs'] = Number(timeoutMs);
    if (fullCoverage !== undefined) facts['redis.requireFullCoverage'] = fullCoverage;
    if (fullCoverage === 'yes') findings.push(allOrNothing());
  }
  return { facts, findings, clockAheadMs };
}

/** The masters, once the client has connected. A client without a connection waits for one, as it does with any command. */
async function mastersOf(client: RedisClusterClient, clock: Clock): Promise<RedisClusterNode[]> {
  if (client.status !== 'ready') await client.call('PING');
  // It learns of fail-overs from its requests, and there may have been none for long.
  const refreshed = new Promise<void>((resolve) => client.refreshSlotsCache(() => resolve()));
  await inTime(clock, refreshed, REFRESH_WITHIN_MS).catch(() => undefined);
  return client.nodes('master');
}

function inTime<T>(clock: Clock, work: Promise<T>, ms = ANSWER_WITHIN_MS): Promise<T> {
  return within(clock, ms, work, () => new Error(`no answer within ${ms} ms`));
}

function addressOf({ options }: RedisClusterNode): string {
  return `${options.host}:${options.port}`;
}

function nameOf(node: RedisClusterNode): string {
  return `Node ${addressOf(node)}`;
}

function clusterDown(): StoreFinding {
  return {
    severity: 'error',
    problem: 'The cluster is down (cluster_state:fail).',
    consequence: 'Leases of slots that nobody serves, or all of them, are refused as unavailable.',
    fix: 'See CLUSTER INFO and CLUSTER NODES; bring the missing masters back, or promote a replica.',
  };
}

function silentNode(name: string, error: unknown): StoreFinding {
  const why = String((error as Error | undefined)?.message ?? error).replace(/\.$/, '');
  return {
    problem: `${name} of the cluster does not answer (${why}).`,
    consequence:
      'Leases of its slots are unavailable until a replica takes over; running ones are lost where that takes longer than their ttl.',
    fix: 'Bring it back, and give every master a replica.',
  };
}

function deafClient(): StoreFinding {
  return {
    problem: 'This version of ioredis cannot listen to a cluster (it has no ssubscribe).',
    consequence:
      'Callers that wait for a key of another process look again every two seconds instead of being woken.',
    fix: 'Update ioredis.',
  };
}

function allOrNothing(): Finding {
  return {
    about: 'redis',
    severity: 'note',
    problem: 'cluster-require-full-coverage is yes.',
    consequence:
      'While the slots of one dead master are not served, no other master grants or renews leases either.',
    fix: 'Set cluster-require-full-coverage to no on every node.',
  };
}

function withoutReplica({ facts }: Examination, about: string): Finding[] {
  if (facts[`${about}.replicas`] !== '0') return [];
  return [
    {
      about,
      severity: 'note',
      problem: 'This master has no replica.',
      consequence: 'When it dies, leases of its slots are unavailable until it is back.',
      fix: 'Give every master a replica.',
    },
  ];
}
