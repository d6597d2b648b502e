import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import type {
  AcquireAnswer,
  AcquireRequest,
  LeaseSnapshot,
  LeaseStore,
  ReleaseAnswer,
  ReleaseRequest,
} from '../core/lease-store.js';
import type { Fence } from '../core/fence.js';
import { type ContractTools, eventually, TEST_TIMEOUT_MS } from './contract-tools.js';
import { CheckedActivations } from './lease-store-activating.js';

/** The authority that a contract proves: what all stores that are opened on it share. */
export interface LeaseAuthority {
  /** Opens a store on it, as each process of an application does. Called once or several times in a test; each is closed. */
  open(): LeaseStore | Promise<LeaseStore>;
  /** Makes it forget all that it knows, as a restart without its data does. */
  lose(): void | Promise<void>;
  /** The fence in the same database, where stores raise it in the request of a grant (`LeaseStore.joinFence`). Stays open. */
  fence?(): Fence | Promise<Fence>;
  /** Frees it, after its stores were closed. */
  close?(): Promise<void>;
}

/** What is kept for a waiter that was woken is kept for at least this long, ms. */
const KEPT_MS = 50;
const MOST_TRIES = 25;

/** One test: an authority, and steps on one key of it. */
export class LeaseStoreCase {
  key = `key ${randomUUID()}`;
  private readonly opened: LeaseStore[] = [];

  readonly store!: LeaseStore;

  private constructor(
    private readonly authority: LeaseAuthority,
    /** What the store activates in, where it does. */
    readonly fence: Fence | undefined,
  ) {}

  static async begin(authority: LeaseAuthority): Promise<LeaseStoreCase> {
    const one = new LeaseStoreCase(authority, await authority.fence?.());
    return Object.assign(one, { store: await one.another() });
  }

  /** The store of another process. */
  async another(): Promise<LeaseStore> {
    const opened = await this.authority.open();
    const store = this.fence ? new CheckedActivations(opened, this.fence) : opened;
    this.opened.push(store);
    await store.check();
    return store;
  }

  async lose(): Promise<void> {
    await this.authority.lose();
  }

  async end(): Promise<void> {
    for (const store of this.opened) await store.close();
    await this.authority.close?.();
  }

  acquire(owner: string, more: Partial<AcquireRequest> = {}, store = this.store): Promise<AcquireAnswer> {
    return store.acquire({ key: this.key, owner, ttlMs: 20_000, floor: 0, ...more });
  }

  /** The generation of a grant that must be given. */
  async granted(owner: string, more: Partial<AcquireRequest> = {}, store = this.store): Promise<number> {
    const answer = await this.acquire(owner, more, store);
    assert.ok(answer.granted, `${owner} must be granted the key`);
    return answer.generation;
  }

  /** How long a key must be busy for this owner, ms. */
  async busy(owner: string, more: Partial<AcquireRequest> = {}, store = this.store): Promise<number> {
    const answer = await this.acquire(owner, more, store);
    assert.ok(!answer.granted, `the key must be busy for ${owner}`);
    return answer.remainingMs;
  }

  async renew(owner: string, ttlMs = 20_000): Promise<boolean> {
    const answers = await this.store.renew([{ key: this.key, owner, ttlMs }]);
    assert.equal(answers.length, 1, 'one answer for one request');
    return answers[0]!;
  }

  release(owner: string, more: Partial<ReleaseRequest> = {}, store = this.store): Promise<ReleaseAnswer> {
    return store.release({ key: this.key, owner, ...more });
  }

  /** Who holds the key: a lease that must be there, with a remaining time that makes sense. */
  async held(by: string, generation?: number): Promise<LeaseSnapshot> {
    const seen = await this.store.inspect(this.key);
    assert.ok(seen, `the key must be held by ${by}`);
    assert.equal(seen.owner, by);
    if (generation !== undefined) assert.equal(seen.generation, generation);
    assert.ok(seen.remainingMs > 0, 'a lease that is held has time left');
    return seen;
  }

  async free(): Promise<void> {
    assert.equal(await this.store.inspect(this.key), undefined, 'nobody must hold the key');
  }

  /** The key must come free by itself. */
  async comesFree(why: string, owner = 'the next'): Promise<number> {
    return eventually(`the key is free ${why}`, async () => {
      const answer = await this.acquire(owner);
      return answer.granted && answer.generation;
    }) as Promise<number>;
  }

  /**
   * Steps that follow on a release while the store keeps the key for a waiter. Where they took too long, because the machine
   * was busy, they say nothing: then they are done again, with another key.
   */
  async promptly(steps: (fromNow: () => void) => Promise<void>): Promise<void> {
    for (let tries = 0; tries < MOST_TRIES; tries++) {
      this.key = `key ${randomUUID()}`;
      let began = performance.now();
      try {
        return await steps(() => (began = performance.now()));
      } catch (error) {
        if (performance.now() - began < KEPT_MS) throw error;
      }
    }
    assert.fail(`of ${MOST_TRIES} tries none took less than ${KEPT_MS} ms`);
  }
}

/** Registers a test of a store. */
export type StoreTest = (title: string, body: (one: LeaseStoreCase) => Promise<void>) => void;

export function storeTests(
  { it }: ContractTools,
  make: () => LeaseAuthority | Promise<LeaseAuthority>,
): StoreTest {
  return (title, body) => {
    it(
      title,
      async () => {
        const one = await LeaseStoreCase.begin(await make());
        try {
          await body(one);
        } finally {
          await one.end();
        }
      },
      TEST_TIMEOUT_MS,
    );
  };
}

/** How somebody waits for a key. */
export function waiter(id: string): { id: string; forMs: number } {
  return { id, forMs: 60_000 };
}
