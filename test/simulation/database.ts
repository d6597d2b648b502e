import type { Grant } from '../../libs/fencing/src/core/lease-store.js';
import type { Checker } from './checker.js';
import { Host } from './network.js';
import type { Plant } from './plants.js';
import { BLOCKED, type PendingWrite, Session, type Statement } from './session.js';
import type { VirtualProcess, World } from './world.js';

/** The guard found another fence than the grant. */
export class StaleGrant extends Error {
  constructor(
    readonly grant: Grant,
    readonly current: number | undefined,
  ) {
    super('stale generation');
  }
}

/**
 * As much of PostgreSQL as the fence stands on: fence rows with share locks, one atomic statement for the activation, receipts
 * under a unique index, transactions with an idle limit, crashes. Rows of the application take no locks: the worst case.
 */
export class Database {
  readonly host: Host;
  readonly fence = new Map<string, { generation: number; owner: string }>();
  private onDisk = new Map<string, { generation: number; owner: string }>();
  readonly receipts = new Map<string, { result: string | undefined; by: Session | undefined }>();
  readonly sessions = new Set<Session>();
  private readonly blocked = new Set<() => void>();
  onActivation: () => void = () => undefined;
  /** `activationDurability: 'relaxed'` */
  isRelaxed = false;

  constructor(
    readonly world: World,
    readonly checker: Checker,
    readonly plant: Plant | undefined,
  ) {
    this.host = new Host(world);
  }

  connect(client: VirtualProcess): Session {
    const session = new Session(this, client);
    this.sessions.add(session);
    return session;
  }

  /** Power fails: all sessions end; activations that were not on disk are gone. */
  crash(): void {
    for (const session of [...this.sessions]) session.terminate('the database crashed');
    if (this.isRelaxed) {
      this.fence.clear();
      this.onDisk.forEach((row, key) => this.fence.set(key, row));
    }
    this.checker.count('database crashes');
    this.checker.record('db', 'crashes and is back');
  }

  // --------------------------------------------------------------------------------------------------------- statements

  activate({ key, generation, owner }: Grant): Statement<number | undefined> {
    return (session) => {
      // ON CONFLICT locks the row before it looks at it, so a rejected activation waits as well.
      if (this.plant !== 'an activation that does not wait' && this.isShared(key, session)) return BLOCKED;
      if (this.plant === 'an activation that does nothing before the first write') {
        this.checker.activated(key, owner);
        return undefined;
      }
      const ahead = this.raise(key, generation, owner);
      const facts = { key, generation, owner };
      if (ahead === undefined) {
        this.checker.activated(key, owner);
        this.onActivation();
      }
      this.checker.record('db', ahead === undefined ? 'activates' : `is ahead (${ahead})`, facts);
      return ahead;
    };
  }

  begin(grants: readonly Grant[], idleMs: number): Statement<void> {
    return (session) => {
      session.begin({ grants, writes: [], claims: [], results: new Map(), idleMs });
      for (const grant of grants) {
        const { key, generation, owner } = grant;
        if (this.plant === 'an activation that does nothing before the first write') {
          if (this.isShared(key, session)) return BLOCKED;
          this.raise(key, generation, owner);
        }
        const row = this.fence.get(key);
        const holds =
          this.plant === 'a guard that compares nothing' ||
          (this.plant === 'a guard that is content with a lower fence' &&
            row &&
            row.generation <= generation) ||
          (row?.generation === generation && row.owner === owner);
        this.checker.record('db', holds ? 'guards' : 'refuses', {
          key,
          generation,
          owner,
          fence: row?.generation,
        });
        if (!holds) throw new StaleGrant(grant, row?.generation);
        if (this.plant !== 'a guard that does not lock') session.locks.add(key);
      }
    };
  }

  /** The version of a row; a transaction sees its own writes. */
  read(key: string): Statement<number> {
    return (session) => {
      const own = session.transaction?.writes.filter((write) => write.key === key).length ?? 0;
      return this.checker.versionOf(key) + own;
    };
  }

  write(write: PendingWrite): Statement<void> {
    return (session) => void session.open().writes.push(write);
  }

  touch(idleMs: number): Statement<void> {
    return (session) => void (session.open().idleMs = idleMs);
  }

  /** Inserts a receipt. Answers the stored result where there is one already. */
  claim(id: string): Statement<{ readonly result: string } | undefined> {
    return (session) => {
      const transaction = session.open();
      const receipt = this.receipts.get(id);
      if (receipt && !receipt.by) return { result: receipt.result! };
      if (this.plant === 'a receipt that is looked up before it is written') {
        transaction.claims.push(id);
        return undefined;
      }
      if (receipt && receipt.by !== session) return BLOCKED;
      this.receipts.set(id, { result: undefined, by: session });
      transaction.claims.push(id);
      return undefined;
    };
  }

  /**
   * What became of a claim whose COMMIT had no answer: waits until its transaction has ended. Answers the stored result, or
   * undefined where the id is free.
   */
  settle(id: string): Statement<{ readonly result: string } | undefined> {
    return () => {
      const receipt = this.receipts.get(id);
      if (receipt?.by) {
        if (this.plant === 'a lost commit that is looked for without waiting') return undefined;
        return BLOCKED;
      }
      return receipt && { result: receipt.result! };
    };
  }

  recordResult(id: string, result: string): Statement<void> {
    return (session) => void session.open().results.set(id, result);
  }

  commit(): Statement<void> {
    return (session) => {
      const { writes, grants, claims, results } = session.open();
      for (const { key, attempt, base } of writes) {
        const { owner, generation } = grants.find((grant) => grant.key === key)!;
        this.checker.record('db', 'commits', { key, attempt, generation, owner, base });
        this.checker.committed({ key, attempt, base, owner, generation });
      }
      for (const id of claims) {
        const result = results.get(id)!;
        this.receipts.set(id, { result, by: undefined });
        this.checker.effect(id, result);
      }
      this.onDisk = new Map(this.fence);
      session.end();
    };
  }

  // --------------------------------------------------------------------------------------------------------------- parts

  /** Answers the fence's generation where it is ahead. */
  private raise(key: string, generation: number, owner: string): number | undefined {
    const row = this.fence.get(key);
    const isNewer =
      !row ||
      row.generation < generation ||
      (this.plant === 'an activation that ignores the owner' && row.generation === generation) ||
      this.plant === 'an activation that overwrites a newer one';
    if (isNewer) {
      this.fence.set(key, { generation, owner });
      if (!this.isRelaxed) this.onDisk.set(key, { generation, owner });
    } else if (row.generation !== generation || row.owner !== owner) {
      return row.generation;
    }
    return undefined;
  }

  private isShared(key: string, except: Session): boolean {
    for (const session of this.sessions) if (session !== except && session.locks.has(key)) return true;
    return false;
  }

  /** Calls `retry` when a transaction has ended. Answers how to stop. */
  whenUnlocked(retry: () => void): () => void {
    this.blocked.add(retry);
    return () => this.blocked.delete(retry);
  }

  unlocked(): void {
    for (const retry of [...this.blocked]) retry();
  }
}
