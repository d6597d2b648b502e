import { BUCKETS, bucketOf } from '../core/buckets.js';
import { systemClock } from '../core/clock.js';
import { asFindings, type Examination, failedCheck } from '../core/diagnosis.js';
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
import { within } from '../core/timing.js';
import { diagnoseRedis } from './diagnose-redis.js';
import type { RedisClient } from './redis-client.js';
import { ReplicaAcks, type ReplicasOptions } from './replica-acks.js';
import { StepSender } from './step-sender.js';
import { WakeUps } from './wake-ups.js';

export interface RedisLeaseStoreOptions {
  /** Begins the name of every Redis key of the package. */
  readonly prefix: string;
  /** Whether the store opened the client itself, and so closes it. */
  readonly ownsClient: boolean;
  /** Which replicas must have a grant before it is given. */
  readonly replicas?: Required<ReplicasOptions>;
}

/**
 * Failures that pass by themselves: a fail-over, a restart, a slot on the move. Redis 6 says inside a script where it failed
 * (`@user_script: 12: -READONLY …`).
 */
const PASSING =
  /(?:^|: -?)(READONLY|LOADING|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|MOVED|ASK|NOREPLICAS|BUSY|UNBLOCKED|NOSCRIPT)\b/;
const DEMOTED = /(?:^|: -?)READONLY\b/;
/** How long a Redis that does not answer may hold up the end of the application, ms. */
const QUIT_MS = 500;
/** At most one reconnection in this time, ms. */
const RECONNECT_EVERY_MS = 1_000;

/** Leases in one Redis (standalone or behind Sentinel), by scripts: one request for each step. */
export class RedisLeaseStore extends LeaseStore {
  readonly kind = 'redis';
  private readonly wakeUps: WakeUps;
  private readonly sender: StepSender;
  private readonly acks: ReplicaAcks | undefined;
  private readonly buckets: readonly Bucket[];
  /** Who may be in line for which key, as far as the answers told: `<waiter> <key>`. */
  private readonly inLine = new Set<string>();
  private reconnectedAt = -Infinity;

  constructor(
    private readonly client: RedisClient,
    private readonly options: RedisLeaseStoreOptions,
  ) {
    super();
    this.wakeUps = new WakeUps(client);
    this.sender = new StepSender(client);
    this.acks = options.replicas && new ReplicaAcks(client, options.replicas);
    this.buckets = Array.from({ length: BUCKETS }, (_, bucket) => {
      const name = `${options.prefix}:{${bucket}}`;
      return {
        leases: `${name}:lease:`,
        waiters: `${name}:waiters:`,
        generation: `${name}:generation`,
        channel: `${client.options?.keyPrefix ?? ''}${name}:wake`,
      };
    });
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
    await this.ask(() => this.client.call('SCRIPT', 'LOAD', this.sender.script)).catch(
      (error: StoreUnavailableError) => {
        if (!/NOPERM|unknown command/i.test(error.message)) throw error;
        throw new FencingConfigError(
          'Redis does not allow this user to run scripts (SCRIPT, EVALSHA, EVAL); leases need them.',
          error,
        );
      },
    );
    return [...(await this.checkEviction()), ...((await this.acks?.check()) ?? [])];
  }

  /** What the server says of itself, and the check. */
  async diagnose(): Promise<Examination> {
    const checked = await this.check().then(
      (found) => asFindings('redis', found),
      (error: unknown) => [failedCheck('redis', error)],
    );
    const server = await diagnoseRedis(this.client);
    return { ...server, findings: [...checked, ...server.findings] };
  }

  acquire(request: AcquireRequest): Promise<AcquireAnswer> {
    const answer = this.acquireNow(request);
    return this.acks ? this.replicated(request, answer, this.acks) : answer;
  }

  private acquireNow({ key, owner, ttlMs, floor, waiter }: AcquireRequest): Promise<AcquireAnswer> {
    const place = waiter && `${waiter.id} ${key}`;
    const inLine = place !== undefined && this.inLine.has(place) ? 1 : 0;
    const args = [owner, ttlMs, floor, waiter?.id ?? '', whole(waiter?.forMs), inLine];
    return this.step('acquire', key, args, (outcome, value) => {
      if (outcome === 1) {
        if (inLine) this.inLine.delete(place!);
        return { granted: true, generation: Number(value) };
      }
      if (place !== undefined) this.inLine.add(place);
      // A key without expiry was not made by this package; it cannot be waited for, only looked at again.
      return { granted: false, remainingMs: Number(value) < 0 ? ttlMs : Number(value) };
    });
  }

  async renew(requests: readonly RenewRequest[]): Promise<boolean[]> {
    // Leases of one ttl are one step.
    const byTtl = new Map<number, number[]>();
    requests.forEach(({ ttlMs }, at) => {
      const group = byTtl.get(ttlMs);
      if (group) group.push(at);
      else byTtl.set(ttlMs, [at]);
    });
    const groups = [...byTtl];
    const answers = await this.ask(() =>
      this.sender.sendAll(
        groups.map(([ttlMs, group]) => ({
          name: 'renew',
          keys: group.map((at) => this.leaseName(requests[at]!.key)),
          args: [group.length, ttlMs, ...group.map((at) => requests[at]!.owner)],
        })),
      ),
    );
    const renewed = new Array<boolean>(requests.length).fill(false);
    groups.forEach(([, group], i) => {
      const held = answers[i] as number[];
      group.forEach((at, n) => (renewed[at] = held[n] === 1));
    });
    return renewed;
  }

  release(request: ReleaseRequest): Promise<ReleaseAnswer> {
    const answer = this.releaseNow(request);
    return this.acks && request.successor ? this.replicatedHandOver(request, answer, this.acks) : answer;
  }

  private releaseNow({ key, owner, holdMs, successor }: ReleaseRequest): Promise<ReleaseAnswer> {
    if (!successor || holdMs !== undefined) {
      const args = [owner, holdMs === undefined ? 0 : whole(holdMs)];
      return this.step('release', key, args, (outcome) => ({ held: outcome === 1 }));
    }
    const { ttlMs, waiterId, forMs, mayOvertake } = successor;
    const args = [owner, successor.owner, ttlMs, waiterId, whole(forMs), mayOvertake ? 1 : 0];
    return this.step('handOver', key, args, (outcome, value) => {
      if (outcome === 2) return { held: true, successor: { generation: Number(value) } };
      if (outcome !== 3) return { held: outcome === 1 };
      this.inLine.add(`${waiterId} ${key}`);
      return { held: true, successor: { waitMs: Number(value) } };
    });
  }

  withdraw(key: string, waiterId: string): Promise<void> {
    this.inLine.delete(`${waiterId} ${key}`);
    return this.step('withdraw', key, [waiterId], () => undefined);
  }

  async inspect(key: string): Promise<LeaseSnapshot | undefined> {
    const lease = this.leaseName(key);
    const [held, remainingMs] = await this.ask(
      () => Promise.all([this.client.get(lease), this.client.pttl(lease)]),
      key,
    );
    const [, owner, generation] = /^(\S+) (\d+)(?: w)?$/.exec(held ?? '') ?? [];
    if (owner === undefined || remainingMs < 0) return undefined;
    return { owner, generation: Number(generation), remainingMs };
  }

  watch(key: string, listener: (hint: WakeHint) => void, since: number): Watch {
    return this.wakeUps.watch(this.bucket(key).channel, key, listener, since);
  }

  async close(): Promise<void> {
    this.wakeUps.close();
    if (!this.options.ownsClient) return;
    if (this.client.status === 'ready') {
      const silent = () => new Error('no answer to QUIT');
      await within(systemClock, QUIT_MS, this.client.quit(), silent).catch(() => undefined);
    }
    this.client.disconnect();
  }

  /** A grant that too few replicas have is given back. One of what the owner held already (above a floor) is the owner's to give. */
  private async replicated(
    { key, owner, floor }: AcquireRequest,
    answer: Promise<AcquireAnswer>,
    acks: ReplicaAcks,
  ): Promise<AcquireAnswer> {
    const { granted } = await answer;
    if (!granted) return answer;
    try {
      await acks.confirm();
    } catch (error) {
      if (floor === 0) await this.releaseNow({ key, owner }).catch(() => undefined);
      throw error;
    }
    return answer;
  }

  /** A successor that too few replicas know of gets nothing, and asks for itself. */
  private async replicatedHandOver(
    { key, successor }: ReleaseRequest,
    answer: Promise<ReleaseAnswer>,
    acks: ReplicaAcks,
  ): Promise<ReleaseAnswer> {
    const next = (await answer).successor;
    if (!next || !('generation' in next)) return answer;
    try {
      await acks.confirm();
    } catch {
      await this.releaseNow({ key, owner: successor!.owner }).catch(() => undefined);
      return { held: true };
    }
    return answer;
  }

  private bucket(key: string): Bucket {
    return this.buckets[bucketOf(key)]!;
  }

  private leaseName(key: string): string {
    return this.bucket(key).leases + key;
  }

  private step<T>(
    name: 'acquire' | 'release' | 'handOver' | 'withdraw',
    key: string,
    args: readonly (string | number)[],
    read: (outcome: number, value: unknown) => T,
  ): Promise<T> {
    const { leases, generation, waiters } = this.bucket(key);
    return new Promise((resolve, reject) => {
      this.sender.send(
        { name, keys: [leases + key, generation, waiters + key], args },
        {
          answered: (outcome, value) => {
            if (outcome === FAILED) reject(this.stepFailure(value, key));
            else resolve(read(outcome, value));
          },
          failed: (error) => reject(this.unavailable(error, key)),
        },
      );
    });
  }

  private stepFailure(why: unknown, key: string): Error {
    if (why === 'exhausted') return new GenerationsExhaustedError(key);
    return this.unavailable(Object.assign(new Error(String(why)), { name: 'ReplyError' }), key);
  }

  private async ask<T>(send: () => Promise<T>, key?: string): Promise<T> {
    try {
      return await send();
    } catch (error) {
      throw this.unavailable(error, key);
    }
  }

  private unavailable(error: unknown, key: string | undefined): StoreUnavailableError {
    const message = String((error as Error | undefined)?.message ?? error);
    const answered = (error as Error | undefined)?.name === 'ReplyError';
    if (DEMOTED.test(message)) this.leaveDemotedNode();
    return new StoreUnavailableError(
      'lease store',
      `Redis ${answered ? 'answered' : 'did not answer'}: ${message.split('\n')[0]}`,
      { key, cause: error, retryable: !answered || PASSING.test(message) },
    );
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

/** The names that keys of one bucket share. */
interface Bucket {
  /** Begins the names of its leases. */
  readonly leases: string;
  /** Begins the names of the lists of waiters. */
  readonly waiters: string;
  readonly generation: string;
  readonly channel: string;
}

/** What a step answers first where it could not be done; the reason follows. */
const FAILED = -1;

/** Redis takes whole milliseconds, at least 1 for an expiry. */
function whole(ms = 1): number {
  return Math.max(1, Math.ceil(ms));
}
