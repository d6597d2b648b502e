import type {
  AcquireAnswer,
  AcquireRequest,
  ReleaseAnswer,
  ReleaseRequest,
  RenewRequest,
} from '../../libs/fencing/src/core/lease-store.js';
import { MemoryLeaseStore } from '../../libs/fencing/src/testing/memory-lease-store.js';
import type { Checker } from './checker.js';
import type { Plant } from './plants.js';
import type { World } from './world.js';

interface Entry {
  owner: string;
  generation: number;
  expiresAt: number;
  reservedFor?: string;
}

/** The insides of the memory store, which a crash and a restored backup change. */
interface Insides {
  readonly entries: Map<string, Entry>;
  readonly lastIssued: Map<number, number>;
  readonly waiters: Map<string, { id: string; until: number }[]>;
  readonly listeners: Map<string, unknown>;
}

/** 2026 in µs: where the store's wall clock begins. */
const WALL_US = 1_790_000_000_000_000;

/** The lease store as a server: the memory store, what can happen to it, and a check of each step it takes. */
export class StoreServer extends MemoryLeaseStore {
  /** Hears of each grant. */
  onGrant: (key: string) => void = () => undefined;
  /** When it last forgot or changed something by itself. */
  disturbedAt = -Infinity;
  private backup: Insides | undefined;

  constructor(
    private readonly world: World,
    private readonly checker: Checker,
    private readonly plant: Plant | undefined,
    private readonly wall: { offsetUs: number; standsStill: boolean } = { offsetUs: 0, standsStill: false },
  ) {
    super({
      clock: { now: () => world.now, setTimer: (ms, fire) => world.after(ms, fire) },
      wallClockUs: () => WALL_US + wall.offsetUs + (wall.standsStill ? 0 : Math.floor(world.now * 1_000)),
    });
  }

  // ------------------------------------------------------------------------------------------------ the steps, checked

  override async acquire(request: AcquireRequest): Promise<AcquireAnswer> {
    const { key, owner, floor, ttlMs } = request;
    const before = this.holder(key);
    if (this.plant === 'acquiring again is not idempotent' && before?.owner === owner && floor > 0)
      this.insides.entries.set(key, { ...before, generation: 0 });
    const answer = await super.acquire(request);
    this.checker.record('store', answer.granted ? 'grants' : 'is busy', {
      key,
      owner,
      floor,
      ttlMs,
      ...answer,
    });
    if (answer.granted && before?.owner === owner && before.generation > floor) {
      this.checker.demand(
        answer.generation === before.generation,
        'I6',
        () => `acquiring ${key} again moved the grant from ${before.generation} to ${answer.generation}`,
      );
    }
    if (answer.granted) {
      this.checker.count('grants');
      this.onGrant(key);
    }
    return answer;
  }

  override async renew(requests: readonly RenewRequest[]): Promise<boolean[]> {
    const before = requests.map(({ key }) => this.holder(key));
    if (this.plant === 'a renewal takes the key again') {
      requests.forEach(({ key, owner, ttlMs }, i) => {
        if (!before[i])
          this.insides.entries.set(key, { owner, generation: 1, expiresAt: this.world.now + ttlMs });
      });
    }
    const answers = await super.renew(requests);
    requests.forEach(({ key, owner }, i) => {
      this.checker.record('store', answers[i] ? 'renews' : 'does not renew', { key, owner });
      if (before[i]?.owner !== owner) this.demandUnchanged(key, before[i], 'a renewal');
    });
    return answers;
  }

  override async release(request: ReleaseRequest): Promise<ReleaseAnswer> {
    const { key, owner, successor } = request;
    const before = this.holder(key);
    let asked = request;
    if (this.plant === 'a release by key' && before) asked = { ...request, owner: before.owner };
    const waiting = this.insides.waiters.get(key);
    if (this.plant === 'a hand-over that passes others over' && successor) this.insides.waiters.delete(key);
    const answer = await super.release(asked);
    if (this.plant === 'a hand-over that passes others over' && waiting)
      this.insides.waiters.set(key, waiting);
    this.checker.record('store', answer.held ? 'frees' : 'does not free', {
      key,
      owner,
      nextOwner: successor?.owner,
      ...answer.successor,
    });
    if (before?.owner !== owner) this.demandUnchanged(key, before, 'a release');
    return answer;
  }

  override async withdraw(key: string, waiterId: string): Promise<void> {
    const before = this.holder(key);
    await super.withdraw(key, waiterId);
    this.checker.record('store', 'forgets a waiter', { key, waiter: waiterId });
    this.demandUnchanged(key, before, 'a withdrawal');
  }

  // --------------------------------------------------------------------------------------------- what happens to it

  /** Restarts empty. */
  loseEverything(): void {
    const { entries, lastIssued, waiters } = this.insides;
    [entries, lastIssued, waiters].forEach((map) => map.clear());
    this.disturbed('loses everything');
  }

  loseCounters(): void {
    this.insides.lastIssued.clear();
    this.disturbed('loses its counters');
  }

  evict(key: string): void {
    this.insides.entries.delete(key);
    this.disturbed('evicts a lease');
  }

  moveWallClock(ms: number): void {
    this.wall.offsetUs += Math.round(ms * 1_000);
    this.disturbed(`moves its wall clock by ${ms} ms`);
  }

  /** Writes a backup (or: the replica catches up). */
  save(): void {
    const { entries, lastIssued, waiters } = this.insides;
    this.backup = structuredClone({ entries, lastIssued, waiters, listeners: new Map() });
  }

  /** Comes back with what the backup has. */
  restore(): void {
    if (!this.backup) return;
    const { entries, lastIssued, waiters } = structuredClone(this.backup);
    const restore = <K, V>(to: Map<K, V>, from: Map<K, V>): void => {
      to.clear();
      from.forEach((value, key) => to.set(key, value));
    };
    restore(this.insides.entries, entries);
    restore(this.insides.lastIssued, lastIssued);
    restore(this.insides.waiters, waiters);
    this.disturbed('is restored from a backup');
  }

  /** Who holds the key now; a key that is kept for a waiter has an owner of its own. */
  holder(key: string): Entry | undefined {
    const entry = this.insides.entries.get(key);
    return entry && entry.expiresAt > this.world.now ? { ...entry } : undefined;
  }

  get heldKeys(): string[] {
    return [...this.insides.entries.keys()].filter((key) => this.holder(key));
  }

  get listening(): number {
    return this.insides.listeners.size;
  }

  private demandUnchanged(key: string, before: Entry | undefined, what: string): void {
    const after = this.holder(key);
    const isKept = before?.reservedFor !== undefined;
    this.checker.demand(
      isKept ||
        (before?.owner === after?.owner &&
          before?.generation === after?.generation &&
          before?.expiresAt === after?.expiresAt),
      'I5',
      () => `${what} by another owner changed the lease of ${key} (generation ${before?.generation})`,
    );
  }

  private disturbed(what: string): void {
    this.disturbedAt = this.world.now;
    this.checker.count(`store ${what.replace(/ by .*/, '')}`);
    this.checker.record('store', what);
  }

  private get insides(): Insides {
    return this as unknown as Insides;
  }
}
