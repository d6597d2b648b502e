import { createHash } from 'node:crypto';
import { bucketOf } from '../core/buckets.js';
import { FencingConfigError, GenerationsExhaustedError, StoreUnavailableError } from '../core/errors.js';
import {
  type AcquireAnswer,
  type AcquireRequest,
  type LeaseSnapshot,
  LeaseStore,
  type ReleaseAnswer,
  type ReleaseRequest,
  type RenewRequest,
  type StoreFinding,
  type WakeHint,
  type Watch,
} from '../core/lease-store.js';
import type { RedisClient } from './redis-client.js';
import { ACQUIRE, INSPECT, RELEASE, RENEW, WITHDRAW } from './scripts.js';
import { WakeUps } from './wake-ups.js';

export interface RedisLeaseStoreOptions {
  /** Begins the name of every Redis key of the package. */
  readonly prefix: string;
  /** Whether the store opened the client itself, and so closes it. */
  readonly ownsClient: boolean;
}

/** How long a freed key is kept for the process that was woken, ms. */
const RESERVED_MS = 100;
/** Failures that pass by themselves: a fail-over, a restart, a slot on the move. */
const PASSING =
  /^(READONLY|LOADING|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|MOVED|ASK|NOREPLICAS|BUSY|UNBLOCKED|NOSCRIPT)\b/;
/** At most one reconnection in this time, ms. */
const RECONNECT_EVERY_MS = 1_000;

/** Leases in one Redis (standalone or behind Sentinel), by scripts: one request for each step. */
export class RedisLeaseStore extends LeaseStore {
  readonly kind = 'redis';
  private readonly wakeUps: WakeUps;
  private reconnectedAt = -Infinity;

  constructor(
    private readonly client: RedisClient,
    private readonly options: RedisLeaseStoreOptions,
  ) {
    super();
    this.wakeUps = new WakeUps(client);
  }

  async check(): Promise<StoreFinding[]> {
    const version = /redis_version:(\d+)\.(\d+)/.exec(
      String(await this.ask(() => this.client.call('INFO', 'server'))),
    );
    if (version && Number(version[1]) * 100 + Number(version[2]) < 602) {
      throw new FencingConfigError(
        `Redis ${version[1]}.${version[2]} is too old for leases: version 6.2 or newer is needed (LPOS in scripts).`,
      );
    }
    for (const script of SCRIPTS) {
      await this.ask(() => this.client.call('SCRIPT', 'LOAD', script.lua)).catch(
        (error: StoreUnavailableError) => {
          if (/NOPERM|unknown command/i.test(String(error.message))) {
            throw new FencingConfigError(
              'Redis does not allow this user to run scripts (SCRIPT, EVALSHA, EVAL); leases need them.',
              error,
            );
          }
          throw error;
        },
      );
    }
    return this.checkEviction();
  }

  async acquire({ key, owner, ttlMs, floor, waiter }: AcquireRequest): Promise<AcquireAnswer> {
    const { lease, generation, waiters } = this.names(key);
    const answer = (await this.run(
      key,
      acquireScript,
      [lease, generation, waiters],
      [owner, ttlMs, floor, waiter?.id ?? '', whole(waiter?.forMs)],
    )) as [number, string | number];
    if (answer[0] === 1) return { granted: true, generation: Number(answer[1]) };
    // A key without expiry was not made by this package; it cannot be waited for, only looked at again.
    return { granted: false, remainingMs: Number(answer[1]) < 0 ? ttlMs : Number(answer[1]) };
  }

  async renew(requests: readonly RenewRequest[]): Promise<boolean[]> {
    const leases = requests.map(({ key }) => this.names(key).lease);
    const answer = await this.run(
      undefined,
      renewScript,
      leases,
      requests.flatMap(({ owner, ttlMs }) => [owner, ttlMs]),
    );
    return (answer as number[]).map((one) => one === 1);
  }

  async release({ key, owner, holdMs, successor }: ReleaseRequest): Promise<ReleaseAnswer> {
    const { lease, generation, waiters, channel } = this.names(key);
    const next = successor
      ? [successor.owner, successor.ttlMs, successor.waiterId, whole(successor.forMs)]
      : ['', 0, '', 1];
    const [outcome, value] = (await this.run(
      key,
      releaseScript,
      [lease, generation, waiters],
      [owner, holdMs === undefined ? 0 : whole(holdMs), channel, key, RESERVED_MS, ...next],
    )) as [number, (string | number)?];
    if (outcome === 2) return { held: true, successor: { generation: Number(value) } };
    if (outcome === 3) return { held: true, successor: { waitMs: Number(value) } };
    return { held: outcome === 1 };
  }

  async withdraw(key: string, waiterId: string): Promise<void> {
    const { lease, waiters, channel } = this.names(key);
    await this.run(key, withdrawScript, [lease, waiters], [waiterId, channel, key, RESERVED_MS]);
  }

  async inspect(key: string): Promise<LeaseSnapshot | undefined> {
    const { lease } = this.names(key);
    const held = (await this.run(key, inspectScript, [lease], [])) as [string, number] | null;
    if (!held) return undefined;
    const [, owner, generation] = /^(\S+) (\d+)$/.exec(held[0]) ?? [];
    if (owner === undefined) return undefined;
    return { owner, generation: Number(generation), remainingMs: Math.max(0, held[1]) };
  }

  watch(key: string, listener: (hint: WakeHint) => void, since: number): Watch {
    return this.wakeUps.watch(this.names(key).channel, key, listener, since);
  }

  async close(): Promise<void> {
    this.wakeUps.close();
    if (!this.options.ownsClient) return;
    if (this.client.status === 'ready') await this.client.quit().catch(() => undefined);
    this.client.disconnect();
  }

  private names(key: string) {
    const bucket = `${this.options.prefix}:{${bucketOf(key)}}`;
    return {
      lease: `${bucket}:lease:${key}`,
      waiters: `${bucket}:waiters:${key}`,
      generation: `${bucket}:generation`,
      channel: `${bucket}:wake`,
    };
  }

  /** EVALSHA, and EVAL on a server that does not know the script (restarted, failed over, flushed). */
  private run(
    key: string | undefined,
    script: Script,
    keys: string[],
    args: (string | number)[],
  ): Promise<unknown> {
    return this.ask(
      () =>
        this.client.evalsha(script.sha, keys.length, ...keys, ...args).catch((error: unknown) => {
          if (messageOf(error).startsWith('NOSCRIPT'))
            return this.client.eval(script.lua, keys.length, ...keys, ...args);
          throw error;
        }),
      key,
    );
  }

  private async ask<T>(send: () => Promise<T>, key?: string): Promise<T> {
    try {
      return await send();
    } catch (error) {
      const message = messageOf(error);
      if (message.includes('FENCING_EXHAUSTED') && key !== undefined)
        throw new GenerationsExhaustedError(key);
      const answered = (error as Error | undefined)?.name === 'ReplyError';
      if (message.startsWith('READONLY')) this.leaveDemotedNode();
      throw new StoreUnavailableError(
        'lease store',
        `Redis ${answered ? 'answered' : 'did not answer'}: ${message.split('\n')[0]}`,
        {
          key,
          cause: error,
          retryable: !answered || PASSING.test(message),
        },
      );
    }
  }

  /** A demoted master keeps its connections. A Sentinel client finds the new one only when it connects anew. */
  private leaveDemotedNode(): void {
    const now = performance.now();
    if (
      (!this.options.ownsClient && !this.client.options?.sentinels) ||
      now - this.reconnectedAt < RECONNECT_EVERY_MS
    )
      return;
    this.reconnectedAt = now;
    this.client.disconnect(true);
  }

  private async checkEviction(): Promise<StoreFinding[]> {
    // Managed servers often forbid CONFIG; then there is nothing to find.
    const answer = await this.client.call('CONFIG', 'GET', 'maxmemory-policy').catch(() => undefined);
    const policy = Array.isArray(answer)
      ? String(answer[1])
      : Object.values((answer as object | undefined) ?? {}).map(String)[0];
    if (policy === undefined || policy === 'noeviction') return [];
    return [
      {
        problem: `Redis evicts keys when its memory is full (maxmemory-policy ${policy}).`,
        consequence:
          'A lease may vanish while its method runs: the method is then aborted as lost, and its later writes are refused.',
        fix: 'Set maxmemory-policy to noeviction, or give leases a Redis of their own.',
      },
    ];
  }
}

interface Script {
  readonly lua: string;
  readonly sha: string;
}

function script(lua: string): Script {
  return { lua, sha: createHash('sha1').update(lua).digest('hex') };
}

const acquireScript = script(ACQUIRE);
const renewScript = script(RENEW);
const releaseScript = script(RELEASE);
const withdrawScript = script(WITHDRAW);
const inspectScript = script(INSPECT);
const SCRIPTS = [acquireScript, renewScript, releaseScript, withdrawScript, inspectScript];

function messageOf(error: unknown): string {
  return String((error as Error | undefined)?.message ?? error);
}

/** Redis takes whole milliseconds, at least 1 for an expiry. */
function whole(ms = 1): number {
  return Math.max(1, Math.ceil(ms));
}
