import { FencedWrites } from '../../libs/fencing/src/core/fenced-writes.js';
import { LeaseKeeper } from '../../libs/fencing/src/core/lease-keeper.js';
import type { HeldLease } from '../../libs/fencing/src/core/lease.js';
import { silentLogger } from '../../libs/fencing/src/core/logger.js';
import type { Checker } from './checker.js';
import type { Database } from './database.js';
import { MemoryFence } from './memory-fence.js';
import type { Host, Network } from './network.js';
import { NetworkedStore } from './networked-store.js';
import type { StoreServer } from './store-server.js';
import { VirtualProcess, type World } from './world.js';

export interface Surroundings {
  readonly world: World;
  readonly checker: Checker;
  readonly network: Network;
  readonly storeHost: Host;
  readonly store: StoreServer;
  readonly database: Database;
  readonly storeTimeoutMs: number;
}

/** One instance of an application: a process with the real keeper and the real fenced writes. */
export class Application {
  readonly process: VirtualProcess;
  readonly keeper: LeaseKeeper;
  readonly writes: FencedWrites;
  readonly fence: MemoryFence;
  isStopping = false;
  private readonly client: NetworkedStore;

  constructor(
    readonly name: string,
    private readonly around: Surroundings,
    /** Its clock is so slow that it never notices that it is late: only the fence can stop it. */
    readonly isSleepwalking = false,
  ) {
    const { world, network, store, storeHost, database, storeTimeoutMs, checker } = around;
    // Else clocks differ by less than the margin of a lease, which is 1 %.
    const rate = isSleepwalking ? world.random.between(0.02, 0.3) : world.random.between(0.995, 1.005);
    this.process = new VirtualProcess(world, name, rate);
    this.client = new NetworkedStore(this.process, network, storeHost, store);
    this.fence = new MemoryFence(this.process, database, network);
    this.keeper = new LeaseKeeper({
      store: this.client,
      fence: this.fence,
      clock: this.process,
      logger: silentLogger,
      storeTimeoutMs,
    });
    this.writes = new FencedWrites(this.keeper, this.fence);
    this.client.onRenewal = (owner) =>
      checker.demand(
        this.keeper.heldLeases.some((lease) => lease.owner === owner),
        'I8',
        () => `${name} sends a renewal for a lease that has ended`,
      );
  }

  get storeTimeoutMs(): number {
    return this.around.storeTimeoutMs;
  }

  get isUp(): boolean {
    return !this.process.isDead && !this.isStopping;
  }

  /** A lease that believes in itself must be held at the store, unless the store has forgotten something. */
  demandValid(lease: HeldLease): void {
    const { world, store, checker } = this.around;
    if (this.isSleepwalking || this.process.isDead || lease.validUntil <= this.process.now()) return;
    if (store.disturbedAt >= lease.grantedAt / this.process.rate) return;
    checker.demand(
      store.holder(lease.key)?.owner === lease.owner,
      'validity',
      () => `${this.name} believes in its lease of ${lease.key}, and the store does not (at ${world.now})`,
    );
  }

  /** SIGKILL. The database learns of it when the connections are closed, if they are. */
  crash(closes = 0.7): void {
    const { world, database, checker, network } = this.around;
    this.process.isDead = true;
    checker.count('crashes');
    checker.record(this.name, 'crashes');
    void this.client.close();
    for (const session of database.sessions) {
      if (session.client === this.process && world.random.chance(closes))
        database.host.arrive(network.delay(), () => session.hangUp());
    }
  }
}
