import { type CancelTimer, systemClock } from '../../core/clock.js';
import type { WakeHint, Watch } from '../../core/lease-store.js';
import { backoff, jitter, within } from '../../core/timing.js';
import type { PgListener } from './postgres-connections.js';

/** How many hints are kept for waiters that begin to listen just after they arrived. */
const REMEMBERED = 64;
/** How long the check waits for its own notification, and the end for the server's goodbye, ms. */
const HEARD_WITHIN_MS = 1_000;
/** What the check sends to itself. */
const PROBE = 'probe';

/** Who waits for hints on which key, and the latest hints, for waiters that begin to listen just after they arrived. */
class Listeners {
  private readonly byKey = new Map<string, Set<(hint: WakeHint) => void>>();
  private recent: { key: string; hint: WakeHint; at: number }[] = [];

  get isEmpty(): boolean {
    return this.byKey.size === 0;
  }

  add(key: string, listener: (hint: WakeHint) => void, since: number): () => void {
    let listeners = this.byKey.get(key);
    if (!listeners) this.byKey.set(key, (listeners = new Set()));
    listeners.add(listener);
    // The answer "busy" and the hint that followed it come by two connections, in any order.
    for (const { hint } of this.recent.filter((one) => one.key === key && one.at >= since)) listener(hint);
    return () => {
      listeners.delete(listener);
      if (listeners.size === 0 && this.byKey.get(key) === listeners) this.byKey.delete(key);
    };
  }

  hear(key: string, hint: WakeHint): void {
    this.recent = [...this.recent.slice(1 - REMEMBERED), { key, hint, at: performance.now() }];
    this.tell(key, hint);
  }

  /** Everyone looks again. */
  tellAll(): void {
    for (const key of [...this.byKey.keys()]) this.tell(key, { waiterId: undefined, reservedMs: 0 });
  }

  clear(): void {
    this.byKey.clear();
  }

  private tell(key: string, hint: WakeHint): void {
    for (const listener of [...(this.byKey.get(key) ?? [])]) listener(hint);
  }
}

/** Hears by LISTEN which keys were freed: one connection and one channel for the process, opened when somebody first waits. */
export class ListeningWakeUps {
  private readonly listeners = new Listeners();
  private client: Promise<PgListener> | undefined;
  private current: PgListener | undefined;
  private isLive = false;
  private closed = false;
  private attempt = 0;
  private cancelRetry: CancelTimer | undefined;
  private onProbe: (() => void) | undefined;

  constructor(
    private readonly channel: string,
    private readonly connect: () => Promise<PgListener>,
  ) {}

  watch(key: string, listener: (hint: WakeHint) => void, since: number): Watch {
    const stop = this.listeners.add(key, listener, since);
    if (this.isLive) return { live: undefined, stop };
    // Without hints the waiters still look again in time.
    const live = this.open().then(
      () => undefined,
      () => undefined,
    );
    return { live, stop };
  }

  /** Whether a notification that `notify` sends arrives. */
  async hears(notify: (payload: string) => Promise<unknown>): Promise<boolean> {
    await this.open();
    const heard = new Promise<true>((resolve) => (this.onProbe = () => resolve(true)));
    await notify(PROBE);
    return within(systemClock, HEARD_WITHIN_MS, heard, () => new Error('silent')).catch(() => false);
  }

  async close(): Promise<void> {
    this.closed = true;
    this.cancelRetry?.();
    this.listeners.clear();
    const client = await this.client?.catch(() => undefined);
    await within(
      systemClock,
      HEARD_WITHIN_MS,
      client?.end() ?? Promise.resolve(),
      () => new Error('silent'),
    ).catch(() => undefined);
  }

  private open(): Promise<PgListener> {
    return (this.client ??= this.listen());
  }

  private async listen(): Promise<PgListener> {
    let client: PgListener | undefined;
    try {
      client = await this.connect();
      const mine = client;
      client.on('error', () => this.lost(mine));
      client.on('end', () => this.lost(mine));
      client.on('notification', ({ payload = '' }) => this.hear(payload));
      await client.connect();
      await client.query(`LISTEN ${this.channel}`);
      this.current = client;
      this.isLive = true;
      // While nobody listened hints may have been missed.
      if (this.attempt > 0) this.listeners.tellAll();
      this.attempt = 0;
      return client;
    } catch (error) {
      client?.end().catch(() => undefined);
      this.again();
      throw error;
    }
  }

  private lost(client: PgListener): void {
    if (this.current !== client) return;
    this.current = undefined;
    client.end().catch(() => undefined);
    this.again();
  }

  /** Connects anew after a pause, as long as somebody waits; else when somebody waits again. */
  private again(): void {
    this.isLive = false;
    this.client = undefined;
    if (this.closed) return;
    const pauseMs = backoff(this.attempt++);
    this.cancelRetry?.();
    this.cancelRetry = systemClock.setTimer(pauseMs, () => {
      if (!this.closed && !this.listeners.isEmpty) this.open().catch(() => undefined);
    });
  }

  private hear(payload: string): void {
    if (payload === PROBE) return this.onProbe?.();
    const [, waiter, reservedMs, key] = /^(\S+) (\d+) (.*)$/su.exec(payload) ?? [];
    if (waiter === undefined || key === undefined) return;
    this.listeners.hear(key, { waiterId: waiter === '-' ? '' : waiter, reservedMs: Number(reservedMs) });
  }
}

/** Hears nothing, and lets everyone who waits look again every so often: for connections that cannot LISTEN. */
export class PollingWakeUps {
  private readonly listeners = new Listeners();
  private cancel: CancelTimer | undefined;

  constructor(private readonly pollMs: number) {}

  watch(key: string, listener: (hint: WakeHint) => void, since: number): Watch {
    const stop = this.listeners.add(key, listener, since);
    this.arm();
    return {
      live: undefined,
      stop: () => {
        stop();
        if (this.listeners.isEmpty) this.disarm();
      },
    };
  }

  async hears(): Promise<boolean> {
    return true;
  }

  async close(): Promise<void> {
    this.listeners.clear();
    this.disarm();
  }

  /** One timer, so that all who wait share the request of each look. */
  private arm(): void {
    this.cancel ??= systemClock.setTimer(jitter(this.pollMs), () => {
      this.cancel = undefined;
      if (this.listeners.isEmpty) return;
      this.arm();
      this.listeners.tellAll();
    });
  }

  private disarm(): void {
    this.cancel?.();
    this.cancel = undefined;
  }
}
