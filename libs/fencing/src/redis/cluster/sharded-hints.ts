import type { Clock } from '../../core/clock.js';
import { backoff, sleep, within } from '../../core/timing.js';
import { type Address, mapped, masterOf, slotOf } from './cluster-slots.js';
import type { Hearing, HintSource, Subscription } from '../hint-source.js';
import type { RedisClusterClient, RedisClusterNode, RedisSubscriber } from '../redis-client.js';

/** A node that does not answer within this is passed by, ms. */
const ANSWER_WITHIN_MS = 1_000;

/**
 * Hints of a cluster, by sharded pub/sub: a channel is heard at the master of its slot, and its messages go to nobody else. One
 * connection for each master that somebody waits at.
 *
 * Where a channel cannot be heard any more (its slot moved, its master was demoted, died or is silent), it is looked for anew, and
 * whoever waits there looks again. ioredis has sharded subscribers of its own; they need an option that the application's client was
 * made without, and stay with a master that is silent.
 */
export class ShardedHints implements HintSource {
  private readonly nodes = new Map<string, Listening>();
  private readonly channels = new Map<string, { live: Promise<void>; isLive: boolean }>();
  private readonly closing = new AbortController();

  constructor(
    private readonly client: RedisClusterClient,
    private readonly hearing: Hearing,
    private readonly clock: Clock,
  ) {}

  subscribe(channel: string): Subscription {
    return this.channels.get(channel) ?? this.look(channel);
  }

  doubt(channel: string): void {
    for (const node of this.nodes.values()) if (node.channels.has(channel)) node.end();
  }

  close(): void {
    this.closing.abort();
    this.channels.clear();
    for (const node of this.nodes.values()) node.end();
  }

  private look(channel: string): Subscription {
    const subscription = { isLive: false, live: Promise.resolve() };
    this.channels.set(channel, subscription);
    subscription.live = this.listen(channel).then((isLive) => {
      subscription.isLive = isLive;
      // Without hints the waiters still look again in time.
      if (!isLive && this.channels.get(channel) === subscription) this.channels.delete(channel);
    });
    return subscription;
  }

  /** Tries until it is heard, or nobody waits for it. */
  private async listen(channel: string): Promise<boolean> {
    for (let tries = 0; !this.closing.signal.aborted; tries++) {
      if (tries > 0) {
        await sleep(this.clock, backoff(tries - 1), this.closing.signal);
        if (!this.hearing.isWanted(channel)) return false;
      }
      try {
        await (await this.nodeOf(channel)).listen(channel);
        return true;
      } catch (error) {
        if (error instanceof NotHeard) return false;
        // The cluster is changing: whoever serves the slot is known soon.
      }
    }
    return false;
  }

  /** What is connected to the master that serves a channel. */
  private async nodeOf(channel: string): Promise<Listening> {
    const masters = this.client.nodes('master');
    // Any node knows; not always the same one, which may be silent, or cut off.
    const asked = masters[Math.floor(Math.random() * masters.length)];
    if (!asked) throw new Error('the cluster is not connected');
    if (!hearsShards(asked)) throw new NotHeard();
    const silent = () => new Error('no answer');
    const master = await within(this.clock, ANSWER_WITHIN_MS, masterOf(asked, slotOf(channel)), silent);
    if (!master || this.closing.signal.aborted) throw new Error('nobody serves the slot');
    const address = mapped(master, this.client.options?.natMap);
    const name = `${address.host}:${address.port}`;
    let node = this.nodes.get(name);
    if (!node) {
      node = new Listening(
        () => connection(asked, address),
        master,
        this.clock,
        this.hearing,
        () => this.lost(name),
      );
      this.nodes.set(name, node);
    }
    return node;
  }

  private lost(name: string): void {
    const channels = this.nodes.get(name)?.channels ?? [];
    this.nodes.delete(name);
    if (this.closing.signal.aborted) return;
    for (const channel of channels) {
      this.channels.delete(channel);
      if (!this.hearing.isWanted(channel)) continue;
      void this.look(channel).live.then(() => {
        if (this.channels.get(channel)?.isLive) this.hearing.missed(channel);
      });
    }
  }
}

/** Old versions of ioredis do not know sharded pub/sub. */
export function hearsShards(node: RedisClusterNode): boolean {
  return typeof node.ssubscribe === 'function';
}

class NotHeard extends Error {}

function connection(node: RedisClusterNode, address: Address): RedisSubscriber {
  return node.duplicate({
    ...address,
    keyPrefix: '',
    readOnly: false,
    lazyConnect: false,
    enableReadyCheck: false,
    enableOfflineQueue: true,
    maxRetriesPerRequest: null,
    connectTimeout: ANSWER_WITHIN_MS,
    // When it breaks, the slots may be elsewhere.
    retryStrategy: null,
    autoResubscribe: false,
  });
}

/** A connection to one master, with the channels that are heard there. It ends once, and for all of them. */
class Listening {
  readonly channels = new Set<string>();
  private readonly ended: Promise<never>;
  private fail!: (error: Error) => void;
  private hasEnded = false;
  private readonly subscriber: RedisSubscriber;

  constructor(
    private readonly connect: () => RedisSubscriber,
    /** As the cluster names it. */
    private readonly master: Address,
    private readonly clock: Clock,
    hearing: Hearing,
    private readonly onEnd: () => void,
  ) {
    const subscriber = (this.subscriber = connect());
    this.ended = new Promise((_, reject) => (this.fail = reject));
    this.ended.catch(() => undefined);
    const end = () => this.end();
    subscriber.on('smessage', (_channel: string, message: string) => hearing.hear(message));
    subscriber.on('end', end);
    // A slot left: ioredis 6 says so; ioredis 5 calls the notice of the server an error, or leaves the command without an answer.
    subscriber.on('moved', end);
    subscriber.on('error', end);
  }

  async listen(channel: string): Promise<void> {
    const { subscriber, clock, ended } = this;
    const heard = Promise.race([subscriber.ssubscribe!(channel).then(() => this.serves(channel)), ended]);
    const serves = await within(clock, ANSWER_WITHIN_MS, heard, () => {
      this.end();
      return new Error('no answer');
    });
    if (!serves) this.end();
    if (this.hasEnded) throw new Error('the connection ended, or leads to a replica');
    this.channels.add(channel);
  }

  /**
   * A demoted master takes subscriptions, and hears nothing of what its successor publishes; and whoever named it may not have known
   * yet. So it is asked itself, after it took one: a master that is demoted later drops it, and says so. On a connection of its own,
   * since one that listens cannot ask.
   */
  private async serves(channel: string): Promise<boolean> {
    const asking = this.connect();
    asking.on('error', () => undefined); // told by the rejection
    try {
      const named = await masterOf(asking, slotOf(channel));
      return named?.host === this.master.host && named.port === this.master.port;
    } finally {
      asking.disconnect();
    }
  }

  end(): void {
    if (this.hasEnded) return;
    this.hasEnded = true;
    this.fail(new Error('the connection ended'));
    this.subscriber.disconnect();
    this.onEnd();
  }
}
