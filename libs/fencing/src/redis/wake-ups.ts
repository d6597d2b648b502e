import type { WakeHint, Watch } from '../core/lease-store.js';
import type { RedisClient, RedisSubscriber } from './redis-client.js';

/** How many hints are kept for waiters that begin to listen just after they arrived. */
const REMEMBERED = 64;

/**
 * Hears which keys were freed. One connection for the process, opened when somebody first waits; one channel per bucket of
 * keys, so neither grows with the number of keys.
 */
export class WakeUps {
  private subscriber: RedisSubscriber | undefined;
  private readonly channels = new Map<string, { live: Promise<void>; isLive: boolean }>();
  private readonly listeners = new Map<string, Set<(hint: WakeHint) => void>>();
  private recent: { key: string; hint: WakeHint; at: number }[] = [];
  private wasReady = false;

  constructor(private readonly client: RedisClient) {}

  watch(channel: string, key: string, listener: (hint: WakeHint) => void, since: number): Watch {
    let listeners = this.listeners.get(key);
    if (!listeners) this.listeners.set(key, (listeners = new Set()));
    listeners.add(listener);
    const subscription = this.subscribe(channel);
    // The answer "busy" and the hint that followed it come by two connections, in any order.
    for (const { hint } of this.recent.filter((one) => one.key === key && one.at >= since)) listener(hint);
    return {
      live: subscription.isLive ? undefined : subscription.live,
      stop: () => {
        listeners.delete(listener);
        if (listeners.size === 0 && this.listeners.get(key) === listeners) this.listeners.delete(key);
      },
    };
  }

  close(): void {
    this.subscriber?.disconnect();
    this.subscriber = undefined;
    this.listeners.clear();
    this.channels.clear();
  }

  private subscribe(channel: string) {
    let subscription = this.channels.get(channel);
    if (!subscription) {
      const live = this.connection()
        .subscribe(channel)
        .then(
          () => {
            subscription!.isLive = true;
          },
          // Without hints the waiters still look again in time.
          () => void this.channels.delete(channel),
        );
      this.channels.set(channel, (subscription = { live, isLive: false }));
    }
    return subscription;
  }

  private connection(): RedisSubscriber {
    if (this.subscriber) return this.subscriber;
    const subscriber = this.client.duplicate({
      keyPrefix: '',
      lazyConnect: false,
      maxRetriesPerRequest: null,
      enableOfflineQueue: true,
    });
    // Connection errors are ioredis's to mend; without a listener it prints them.
    subscriber.on('error', () => undefined);
    subscriber.on('message', (_channel, message) => this.hear(message));
    subscriber.on('ready', () => {
      // After a reconnection hints may have been missed: everyone looks again.
      if (this.wasReady)
        for (const key of [...this.listeners.keys()]) this.tell(key, { waiterId: undefined, reservedMs: 0 });
      this.wasReady = true;
    });
    return (this.subscriber = subscriber);
  }

  private hear(message: string): void {
    const [, waiter, reservedMs, key] = /^(\S+) (\d+) (.*)$/su.exec(message) ?? [];
    if (waiter === undefined || key === undefined) return;
    const hint = { waiterId: waiter === '-' ? '' : waiter, reservedMs: Number(reservedMs) };
    this.recent = [...this.recent.slice(1 - REMEMBERED), { key, hint, at: performance.now() }];
    this.tell(key, hint);
  }

  private tell(key: string, hint: WakeHint): void {
    for (const listener of [...(this.listeners.get(key) ?? [])]) listener(hint);
  }
}
