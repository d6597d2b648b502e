import { BUCKETS, bucketOf } from '../core/buckets.js';
import { systemClock } from '../core/clock.js';
import { asFindings, type Examination, failedCheck } from '../core/diagnosis.js';
import { FencingError } from '../core/errors.js';
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
import type { RedisBackend } from './redis-backend.js';
import { isCluster, type RedisClient, type RedisClusterClient } from './redis-client.js';
import { disconnected, reopen, silenceOf } from './redis-connection.js';
import { RedisCluster } from './cluster/redis-cluster.js';
import { RedisFailures } from './redis-failures.js';
import { ReplicaAcks, type ReplicasOptions } from './replica-acks.js';
import { SingleRedis } from './single-redis.js';
import type { Outcome, PendingRelease, Step, StepSender } from './step-sender.js';
import { WakeUps } from './wake-ups.js';

export interface RedisLeaseStoreOptions {
  /** Begins the name of every Redis key of the package. */
  readonly prefix: string;
  /** Whether the store opened the client itself, and so closes it. */
  readonly ownsClient: boolean;
  /** Which replicas must have a grant before it is given. */
  readonly replicas?: Required<ReplicasOptions>;
}

/** How long a Redis that does not answer may hold up the end of the application, ms. */
const QUIT_MS = 500;

/** Leases in Redis (standalone, behind Sentinel, or a Cluster), by scripts: one request for each step. */
export class RedisLeaseStore extends LeaseStore {
  readonly kind = 'redis';
  private readonly wakeUps: WakeUps;
  private readonly backend: RedisBackend;
  private readonly acks: ReplicaAcks | undefined;
  private readonly isCluster: boolean;
  private readonly buckets: readonly Bucket[];
  /** Who may be in line for which key, as far as the answers told: `<waiter> <key>`. */
  private readonly inLine = new Set<string>();
  private readonly failures: RedisFailures;
  private isClosed = false;

  constructor(
    private readonly client: RedisClient | RedisClusterClient,
    private readonly options: RedisLeaseStoreOptions,
  ) {
    super();
    const keyPrefix = client.options?.keyPrefix ?? '';
    const nameOf = (bucket: number) => `${options.prefix}:{${bucket}}`;
    const channelOf = (bucket: number) => `${keyPrefix}${nameOf(bucket)}:wake`;
    this.isCluster = isCluster(client);
    this.failures = new RedisFailures(client, options.ownsClient);
    const backend = isCluster(client)
      ? new RedisCluster(client, systemClock, channelOf)
      : new SingleRedis(client);
    this.backend = backend;
    this.wakeUps = new WakeUps((hearing) => backend.hints(hearing));
    this.acks = options.replicas && new ReplicaAcks(client, options.replicas);
    this.buckets = Array.from({ length: BUCKETS }, (_, bucket) => {
      const name = nameOf(bucket);
      return {
        sender: backend.senderOf(bucket),
        leases: `${name}:lease:`,
        waiters: `${name}:waiters:`,
        generation: `${name}:generation`,
        channel: channelOf(bucket),
      };
    });
  }

  async check(): Promise<StoreFinding[]> {
    // The module that it was written into is started anew, as tests do. Whether that worked, each request says.
    if (this.isClosed) reopen(this.client);
    this.isClosed = false;
    return [...(await this.ask(() => this.backend.check())), ...((await this.acks?.check()) ?? [])];
  }

  /** What the server says of itself, and the check. */
  async diagnose(): Promise<Examination> {
    const checked = await this.check().then(
      (found) => asFindings('redis', found),
      (error: unknown) => [failedCheck('redis', error)],
    );
    const server = await this.backend.diagnose();
    return { ...server, findings: [...checked, ...server.findings] };
  }

  override silentBecause(): string | undefined {
    return silenceOf(this.client);
  }

  /** On a cluster a bucket is a slot, which fails alone. */
  override partOf(key: string): number {
    return this.isCluster ? bucketOf(key) : 0;
  }

  acquire(request: AcquireRequest): Promise<AcquireAnswer> {
    const answer = this.acquireNow(request);
    // One of what the owner held already (above a floor) is the owner's to give back.
    return this.acks?.ofGrant(answer, () => request.floor === 0 && this.releaseNow(request)) ?? answer;
  }

  private acquireNow(request: AcquireRequest): Promise<AcquireAnswer> {
    const { key, owner, ttlMs, floor, waiter } = request;
    const inLine = waiter && this.inLine.size > 0 && this.inLine.has(`${waiter.id} ${key}`) ? 1 : 0;
    if (waiter && floor === 0 && !inLine) {
      const bucket = this.bucket(key);
      const leaving = bucket.sender.takeBack(key);
      if (leaving) return this.takeOver(bucket, leaving, request, waiter);
    }
    const args = [owner, ttlMs, floor, waiter?.id ?? '', whole(waiter?.forMs), inLine];
    return this.step('acquire', key, args, (outcome, value) => {
      if (outcome === 1) {
        if (inLine) this.inLine.delete(`${waiter!.id} ${key}`);
        return { granted: true, generation: Number(value) };
      }
      if (waiter) this.inLine.add(`${waiter.id} ${key}`);
      // A key without expiry was not made by this package; it cannot be waited for, only looked at again.
      return { granted: false, remainingMs: Number(value) < 0 ? ttlMs : Number(value) };
    });
  }

  /** A release that has not left yet, and an acquire of the same key: one step does both, as it hands a key over. */
  private takeOver(
    bucket: Bucket,
    leaving: PendingRelease,
    request: AcquireRequest,
    waiter: Waiter,
  ): Promise<AcquireAnswer> {
    const { key, owner, ttlMs } = request;
    const args = [leaving.owner, owner, ttlMs, waiter.id, whole(waiter.forMs), 0];
    return new Promise((resolve, reject) => {
      bucket.sender.send(key, stepOf('handOver', bucket, key, args), {
        answered: (outcome, value) => {
          leaving.outcome.answered(outcome === 0 || outcome === FAILED ? outcome : 1, value);
          if (outcome === 2) return resolve({ granted: true, generation: Number(value) });
          // Nothing was granted: it asks for itself.
          if (outcome !== 3) return resolve(this.acquireNow(request));
          this.inLine.add(`${waiter.id} ${key}`);
          resolve({ granted: false, remainingMs: Number(value) });
        },
        failed: (error) => {
          leaving.outcome.failed(error);
          reject(this.failures.of(error, key));
        },
      });
    });
  }

  async renew(requests: readonly RenewRequest[]): Promise<boolean[]> {
    // Leases of one ttl are one step, and what one sender sends is one request.
    const bySender = new Map<StepSender, Map<number, number[]>>();
    requests.forEach(({ key, ttlMs }, at) => {
      const { sender } = this.bucket(key);
      let byTtl = bySender.get(sender);
      if (!byTtl) bySender.set(sender, (byTtl = new Map<number, number[]>()));
      const group = byTtl.get(ttlMs);
      if (group) group.push(at);
      else byTtl.set(ttlMs, [at]);
    });
    const renewed = new Array<boolean>(requests.length).fill(false);
    const send = async (sender: StepSender, byTtl: ReadonlyMap<number, number[]>): Promise<void> => {
      const groups = [...byTtl];
      const answers = await sender.sendAll(
        groups.map(([ttlMs, group]): Step => ({
          name: 'renew',
          keys: group.map((at) => this.leaseName(requests[at]!.key)),
          args: [group.length, ttlMs, ...group.map((at) => requests[at]!.owner)],
        })),
      );
      groups.forEach(([, group], i) => {
        const held = answers[i] as unknown[];
        group.forEach((at, n) => (renewed[at] = Number(held[n]) === 1));
      });
    };
    await this.ask(() => Promise.all([...bySender].map(([sender, byTtl]) => send(sender, byTtl))));
    return renewed;
  }

  release(request: ReleaseRequest): Promise<ReleaseAnswer> {
    const answer = this.releaseNow(request);
    const { key, successor } = request;
    if (!this.acks || !successor) return answer;
    return this.acks.ofHandOver(answer, () => this.releaseNow({ key, owner: successor.owner }));
  }

  private releaseNow({ key, owner, holdMs, successor }: ReleaseRequest): Promise<ReleaseAnswer> {
    if (holdMs !== undefined) return this.step('release', key, [owner, whole(holdMs)], released);
    if (!successor) {
      return new Promise((resolve, reject) => {
        const bucket = this.bucket(key);
        const step = () => stepOf('release', bucket, key, [owner, 0]);
        const outcome = this.outcomeOf(key, released, resolve, reject);
        bucket.sender.sendRelease(key, { owner, step, outcome });
      });
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
    const [held, remainingMs] = await this.ask(() => this.backend.read(this.leaseName(key)), key);
    const [, owner, generation] = /^(\S+) (\d+)(?: w)?$/.exec(held ?? '') ?? [];
    if (owner === undefined || remainingMs < 0) return undefined;
    return { owner, generation: Number(generation), remainingMs: Number(remainingMs) };
  }

  watch(key: string, listener: (hint: WakeHint) => void, since: number): Watch {
    return this.wakeUps.watch(this.bucket(key).channel, key, listener, since);
  }

  async close(): Promise<void> {
    this.wakeUps.close();
    if (!this.options.ownsClient) return;
    this.isClosed = true;
    if (this.client.status === 'ready') {
      const silent = () => new Error('no answer to QUIT');
      await within(systemClock, QUIT_MS, this.client.quit(), silent).catch(() => undefined);
    }
    await disconnected(this.client, QUIT_MS);
  }

  private bucket(key: string): Bucket {
    return this.buckets[bucketOf(key)]!;
  }

  private leaseName(key: string): string {
    return this.bucket(key).leases + key;
  }

  /** Sends a step, and answers what `read` makes of its outcome. */
  private step<T>(
    name: StepOfKey,
    key: string,
    args: readonly (string | number)[],
    read: (outcome: number, value: unknown) => T,
  ): Promise<T> {
    const bucket = this.bucket(key);
    return new Promise((resolve, reject) => {
      bucket.sender.send(key, stepOf(name, bucket, key, args), this.outcomeOf(key, read, resolve, reject));
    });
  }

  private outcomeOf<T>(
    key: string,
    read: (outcome: number, value: unknown) => T,
    resolve: (value: T) => void,
    reject: (error: Error) => void,
  ): Outcome {
    return {
      answered: (outcome, value) => {
        if (outcome === FAILED) reject(this.failures.ofStep(value, key));
        else resolve(read(outcome, value));
      },
      failed: (error) => reject(this.failures.of(error, key)),
    };
  }

  private async ask<T>(send: () => Promise<T>, key?: string): Promise<T> {
    try {
      return await send();
    } catch (error) {
      throw error instanceof FencingError ? error : this.failures.of(error, key);
    }
  }
}

type Waiter = NonNullable<AcquireRequest['waiter']>;
type StepOfKey = Exclude<Step['name'], 'renew'>;

/** What keys of one bucket share. */
interface Bucket {
  readonly sender: StepSender;
  /** Begins the names of its leases. */
  readonly leases: string;
  /** Begins the names of the lists of waiters. */
  readonly waiters: string;
  readonly generation: string;
  readonly channel: string;
}

/** What a step answers first where it could not be done; the reason follows. */
const FAILED = -1;

function stepOf(name: StepOfKey, bucket: Bucket, key: string, args: readonly (string | number)[]): Step {
  return { name, keys: [bucket.leases + key, bucket.generation, bucket.waiters + key], args };
}

function released(outcome: number): ReleaseAnswer {
  return { held: outcome === 1 };
}

/** Redis takes whole milliseconds, at least 1 for an expiry. */
function whole(ms = 1): number {
  return Math.max(1, Math.ceil(ms));
}
