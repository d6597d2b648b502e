import assert from 'node:assert/strict';
import { randomInt, randomUUID } from 'node:crypto';
import type { LeaseStore, ReleaseRequest } from '../core/lease-store.js';
import { eventually, randomFrom, sleep } from './contract-tools.js';
import type { StoreTest } from './lease-store-case.js';
import { breachesOf, type StoreEvent } from './lease-store-history.js';

const WORKERS = 9;
const STORES = 3;
const KEYS = 3;
const TURNS = 25;
const LONGEST_TTL_MS = 160;

/** Workers that do all that a protocol may, and what it must not, at random; the history is then checked. */
export function provesItUnderLoad(test: StoreTest): void {
  test('I1, I5, I6, exclusion: whatever many workers send at once, late or twice, the history is in order', async (one) => {
    const seed = randomInt(2 ** 31);
    const stores = [one.store];
    while (stores.length < STORES) stores.push(await one.another());
    const keys = Array.from({ length: KEYS }, () => `key ${randomUUID()}`);
    const events: StoreEvent[] = [];
    await Promise.all(
      Array.from({ length: WORKERS }, (_, i) =>
        new Worker(stores[i % STORES]!, keys, events, randomFrom(seed + i)).work(),
      ),
    );
    assert.deepEqual(breachesOf(events), [], `seed ${seed}`);
    const granted = events.filter(({ what }) => what === 'granted').length;
    assert.ok(granted >= WORKERS, `${granted} grants: everybody had a turn`);
    for (const key of keys)
      await eventually(
        'I8: every key is free in the end',
        async () => (await one.acquire('last', { key })).granted,
      );
  });
}

/** One caller after the other, each for a random key. */
class Worker {
  private readonly waiterId = randomUUID();

  constructor(
    private readonly store: LeaseStore,
    private readonly keys: readonly string[],
    private readonly events: StoreEvent[],
    private readonly random: () => number,
  ) {}

  async work(): Promise<void> {
    for (let turn = 0; turn < TURNS; turn++) {
      const key = this.keys[Math.floor(this.random() * this.keys.length)]!;
      const ttlMs = 40 + Math.floor(this.random() * (LONGEST_TTL_MS - 40));
      const owner = randomUUID();
      if (await this.waitFor(key, owner, ttlMs)) await this.hold(key, owner, ttlMs);
    }
  }

  /** Asks until it is granted or has enough of it. */
  private async waitFor(key: string, owner: string, ttlMs: number): Promise<boolean> {
    const queues = this.random() < 0.5;
    for (let tries = 0; tries < 20; tries++) {
      const waiter = queues ? { id: this.waiterId, forMs: 500 } : undefined;
      const ask = () => this.acquire(key, owner, ttlMs, waiter);
      // A request that is sent again crosses the first.
      const answers = await Promise.all(this.random() < 0.2 ? [ask(), ask()] : [ask()]);
      if (answers.some(({ granted }) => granted)) return true;
      await sleep(this.random() * 20);
    }
    if (queues) await this.store.withdraw(key, this.waiterId);
    return false;
  }

  private async hold(key: string, owner: string, ttlMs: number): Promise<void> {
    if (this.random() < 0.5) await sleep(this.random() * 15);
    // A duplicate of its request that comes late.
    if (this.random() < 0.2) await this.acquire(key, owner, ttlMs);
    if (this.random() < 0.3) await this.renew(key, owner, ttlMs);
    const choice = this.random();
    // Its process dies: nobody releases it.
    if (choice < 0.15) return;
    // It is paused, and comes back when the lease is over.
    if (choice < 0.3) await sleep(ttlMs + this.random() * 40);
    if (choice < 0.4) await this.renew(key, owner, ttlMs);
    if (choice > 0.75) {
      const next = randomUUID();
      if (await this.release(key, owner, { next, ttlMs, mayOvertake: choice > 0.9 }))
        await this.hold(key, next, ttlMs);
    } else {
      await this.release(key, owner);
    }
    if (this.random() < 0.3) await this.release(key, owner);
    if (this.random() < 0.3) await this.renew(key, owner, ttlMs);
  }

  private async acquire(key: string, owner: string, ttlMs: number, waiter?: { id: string; forMs: number }) {
    const sentAt = performance.now();
    const answer = await this.store.acquire({ key, owner, ttlMs, floor: 0, waiter });
    if (answer.granted) {
      const { generation } = answer;
      this.note({ what: 'granted', accepted: true, key, owner, sentAt, generation, ttlMs });
    }
    return answer;
  }

  private async renew(key: string, owner: string, ttlMs: number): Promise<void> {
    const sentAt = performance.now();
    const [accepted] = await this.store.renew([{ key, owner, ttlMs }]);
    this.note({ what: 'renewed', accepted: accepted!, key, owner, sentAt, ttlMs });
  }

  /** Answers whether the successor was granted the key. */
  private async release(
    key: string,
    owner: string,
    to?: { next: string; ttlMs: number; mayOvertake: boolean },
  ): Promise<boolean> {
    const sentAt = performance.now();
    const successor: ReleaseRequest['successor'] = to && {
      owner: to.next,
      ttlMs: to.ttlMs,
      waiterId: this.waiterId,
      forMs: 100,
      mayOvertake: to.mayOvertake,
    };
    const answer = await this.store.release({ key, owner, successor });
    this.note({ what: 'released', accepted: answer.held, key, owner, sentAt });
    if (!to || !answer.successor || !('generation' in answer.successor)) return false;
    const { generation } = answer.successor;
    this.note({ what: 'granted', accepted: true, key, owner: to.next, sentAt, generation, ttlMs: to.ttlMs });
    return true;
  }

  private note(event: Omit<StoreEvent, 'answeredAt'>): void {
    this.events.push({ ...event, answeredAt: performance.now() });
  }
}
