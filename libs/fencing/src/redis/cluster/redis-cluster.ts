import { BUCKETS } from '../../core/buckets.js';
import type { Clock } from '../../core/clock.js';
import type { Examination } from '../../core/diagnosis.js';
import { FencingConfigError } from '../../core/errors.js';
import type { StoreFinding } from '../../core/lease-store.js';
import { Timeouts } from '../../core/timeouts.js';
import { checkCluster, diagnoseCluster } from './cluster-checks.js';
import { hashTag } from './cluster-slots.js';
import { ClusterStepSender, Silence } from './cluster-step-sender.js';
import type { Hearing, HintSource } from '../hint-source.js';
import type { RedisBackend } from '../redis-backend.js';
import type { RedisClusterClient } from '../redis-client.js';
import { READ } from '../scripts.js';
import { ShardedHints } from './sharded-hints.js';

/** A request that has had no answer for this long makes the client look who serves its slot now, ms. */
const SILENT_MS = 1_000;

/**
 * A Redis Cluster. A bucket of keys is a slot, so each has a sender of its own: nothing but its own master can fail its requests.
 *
 * ioredis follows MOVED and ASK, and tries again after TRYAGAIN, CLUSTERDOWN and closed connections. What it does not see is a master
 * that says nothing (frozen, cut off): it would wait there for ever while a replica has taken over.
 */
export class RedisCluster implements RedisBackend {
  private readonly senders: readonly ClusterStepSender[];
  private source: HintSource | undefined;
  private refreshedAt = -Infinity;

  /**
   * @param channelOf the channel of a bucket
   * @throws FencingConfigError where keys of one lease would not share a slot
   */
  constructor(
    private readonly client: RedisClusterClient,
    private readonly clock: Clock,
    channelOf: (bucket: number) => string,
  ) {
    checkKeyPrefix(client.options?.keyPrefix, channelOf(0));
    const timeouts = new Timeouts(clock, SILENT_MS, () => new Silence());
    this.senders = Array.from({ length: BUCKETS }, (_, bucket) => {
      const onSilence = () => this.doubt(channelOf(bucket));
      return new ClusterStepSender(client, clock, timeouts, onSilence);
    });
  }

  senderOf(bucket: number): ClusterStepSender {
    return this.senders[bucket]!;
  }

  hints(hearing: Hearing): HintSource {
    return (this.source = new ShardedHints(this.client, hearing, this.clock));
  }

  async read(name: string): Promise<[string | null, number]> {
    return (await this.client.eval(READ, 1, name)) as [string | null, number];
  }

  check(): Promise<StoreFinding[]> {
    return checkCluster(this.client, this.clock);
  }

  diagnose(): Promise<Examination> {
    return diagnoseCluster(this.client, this.clock);
  }

  private doubt(channel: string): void {
    this.source?.doubt(channel);
    const now = this.clock.now();
    if (now - this.refreshedAt < SILENT_MS) return;
    this.refreshedAt = now;
    if (this.client.status === 'ready') this.client.refreshSlotsCache(() => undefined);
  }
}

function checkKeyPrefix(keyPrefix: string | undefined, channel: string): void {
  if (hashTag(channel) !== undefined) return;
  throw new FencingConfigError(
    `redisLeases: the client's keyPrefix ${JSON.stringify(keyPrefix)} has empty braces, so the keys of one lease would not share a slot ` +
      'of the cluster. Leave them out of the prefix.',
  );
}
