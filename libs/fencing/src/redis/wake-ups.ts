import type { WakeHint, Watch } from '../core/lease-store.js';
import type { Hearing, HintSource } from './hint-source.js';

/** How many hints are kept for waiters that begin to listen just after they arrived. */
const REMEMBERED = 64;

/** Who listens for one key, and where its hints come from. */
interface Listeners {
  readonly channel: string;
  readonly all: Set<(hint: WakeHint) => void>;
}

/** Hears which keys were freed. One channel per bucket of keys, so nothing grows with the number of keys. */
export class WakeUps implements Hearing {
  private readonly source: HintSource;
  private readonly listeners = new Map<string, Listeners>();
  private recent: { key: string; hint: WakeHint; at: number }[] = [];

  constructor(sourceFor: (hearing: Hearing) => HintSource) {
    this.source = sourceFor(this);
  }

  watch(channel: string, key: string, listener: (hint: WakeHint) => void, since: number): Watch {
    let listeners = this.listeners.get(key);
    if (!listeners) this.listeners.set(key, (listeners = { channel, all: new Set() }));
    listeners.all.add(listener);
    const subscription = this.source.subscribe(channel);
    // The answer "busy" and the hint that followed it come by two connections, in any order.
    for (const { hint } of this.recent.filter((one) => one.key === key && one.at >= since)) listener(hint);
    return {
      live: subscription.isLive ? undefined : subscription.live,
      stop: () => {
        listeners.all.delete(listener);
        if (listeners.all.size === 0 && this.listeners.get(key) === listeners) this.listeners.delete(key);
      },
    };
  }

  /** The server of a channel is silent. */
  doubt(channel: string): void {
    this.source.doubt(channel);
  }

  close(): void {
    this.listeners.clear();
    this.source.close();
  }

  hear(message: string): void {
    const [, waiter, reservedMs, key] = /^(\S+) (\d+) (.*)$/su.exec(message) ?? [];
    if (waiter === undefined || key === undefined) return;
    const hint = { waiterId: waiter === '-' ? '' : waiter, reservedMs: Number(reservedMs) };
    this.recent = [...this.recent.slice(1 - REMEMBERED), { key, hint, at: performance.now() }];
    this.tell(key, hint);
  }

  missed(channel?: string): void {
    for (const [key, listeners] of [...this.listeners])
      if (channel === undefined || listeners.channel === channel)
        this.tell(key, { waiterId: undefined, reservedMs: 0 });
  }

  isWanted(channel: string): boolean {
    for (const listeners of this.listeners.values()) if (listeners.channel === channel) return true;
    return false;
  }

  private tell(key: string, hint: WakeHint): void {
    for (const listener of [...(this.listeners.get(key)?.all ?? [])]) listener(hint);
  }
}
