import type { Hearing, HintSource, Subscription } from './hint-source.js';
import type { RedisClient, RedisSubscriber } from './redis-client.js';

/** One connection for all channels, opened when somebody first waits. ioredis connects and subscribes it anew when it breaks. */
export class SharedConnection implements HintSource {
  private subscriber: RedisSubscriber | undefined;
  private readonly channels = new Map<string, { live: Promise<void>; isLive: boolean }>();
  private wasReady = false;

  constructor(
    private readonly client: RedisClient,
    private readonly hearing: Hearing,
  ) {}

  subscribe(channel: string): Subscription {
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

  /** There is one server: where it is silent, no other has hints. */
  doubt(): void {}

  close(): void {
    this.subscriber?.disconnect();
    this.subscriber = undefined;
    this.channels.clear();
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
    subscriber.on('message', (_channel: string, message: string) => this.hearing.hear(message));
    subscriber.on('ready', () => {
      // After a reconnection hints may have been missed: everyone looks again.
      if (this.wasReady) this.hearing.missed();
      this.wasReady = true;
    });
    return (this.subscriber = subscriber);
  }
}
