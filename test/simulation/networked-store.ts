import { StoreUnavailableError } from '../../libs/fencing/src/core/errors.js';
import {
  type AcquireRequest,
  LeaseStore,
  type ReleaseRequest,
  type RenewRequest,
  type WakeHint,
  type Watch,
} from '../../libs/fencing/src/core/lease-store.js';
import type { Host, Network } from './network.js';
import type { StoreServer } from './store-server.js';
import type { VirtualProcess } from './world.js';

/** The lease store as one process sees it: over the network. */
export class NetworkedStore extends LeaseStore {
  readonly kind = 'simulated';
  /** Hears of each renewal that is sent. */
  onRenewal: (owner: string) => void = () => undefined;
  private readonly subscriptions = new Set<() => void>();

  constructor(
    private readonly process: VirtualProcess,
    private readonly network: Network,
    private readonly host: Host,
    private readonly server: StoreServer,
  ) {
    super();
  }

  async check() {
    return [];
  }

  acquire(request: AcquireRequest) {
    return this.ask(() => this.server.acquire(request));
  }

  renew(requests: readonly RenewRequest[]) {
    requests.forEach(({ owner }) => this.onRenewal(owner));
    return this.ask(() => this.server.renew(requests));
  }

  release(request: ReleaseRequest) {
    return this.ask(() => this.server.release(request));
  }

  withdraw(key: string, waiterId: string) {
    return this.ask(() => this.server.withdraw(key, waiterId));
  }

  inspect(key: string) {
    return this.ask(() => this.server.inspect(key));
  }

  /** Hints come by a subscription, which has to be made first, and each of them may be lost. */
  watch(key: string, listener: (hint: WakeHint) => void): Watch {
    let isStopped = false;
    let unsubscribe: (() => void) | undefined;
    const stop = (): void => {
      unsubscribe?.();
      this.subscriptions.delete(stop);
    };
    const hear = (hint: WakeHint): void => {
      if (this.host.isCutOff(this.process) || this.host.world.random.chance(this.network.weather.lostReply))
        return;
      this.host.world.after(this.network.delay(), () => isStopped || listener(hint), this.process);
    };
    const live = this.ask(async () => {
      if (isStopped || unsubscribe || this.process.isDead) return;
      const watch = this.server.watch(key, hear);
      unsubscribe = () => watch.stop();
      this.subscriptions.add(stop);
    });
    live.catch(() => undefined);
    return {
      live,
      stop: () => {
        isStopped = true;
        // A dead connection's subscriptions end with it; the message that ends this one cannot be lost for ever.
        this.host.world.after(this.network.delay(), stop);
      },
    };
  }

  async close(): Promise<void> {
    this.subscriptions.forEach((stop) => stop());
  }

  private ask<T>(execute: () => Promise<T>): Promise<T> {
    return this.network.ask(
      this.process,
      this.host,
      execute,
      () => new StoreUnavailableError('lease store', 'the connection broke.'),
    );
  }
}
