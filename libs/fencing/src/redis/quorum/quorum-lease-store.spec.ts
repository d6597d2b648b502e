import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { StoreUnavailableError } from '../../core/errors.js';
import { type AcquireAnswer, type LeaseStore, MAX_GENERATION } from '../../core/lease-store.js';
import { MemoryLeaseStore } from '../../testing/memory-lease-store.js';
import { QuorumLeaseStore } from './quorum-lease-store.js';

const KEY = 'report:42';
const TTL_MS = 30_000;
const TIMEOUT_MS = 200;

/** A node whose answers a test holds back, or loses. */
class Node extends MemoryLeaseStore {
  down = false;
  readonly asked: string[] = [];
  private held: (() => void)[] | undefined;

  /** Requests are done, and not answered until `answerAll`. */
  holdAnswers(): void {
    this.held = [];
  }

  answerAll(): void {
    for (const answer of this.held ?? []) answer();
    this.held = undefined;
  }

  override async acquire(request: Parameters<LeaseStore['acquire']>[0]) {
    return this.reply('acquire', super.acquire(request));
  }
  override async renew(requests: Parameters<LeaseStore['renew']>[0]) {
    return this.reply('renew', super.renew(requests));
  }
  override async release(request: Parameters<LeaseStore['release']>[0]) {
    return this.reply('release', super.release(request));
  }
  override async withdraw(key: string, waiterId: string) {
    return this.reply('withdraw', super.withdraw(key, waiterId));
  }
  override async inspect(key: string) {
    return this.reply('inspect', super.inspect(key));
  }
  /** What it knows, also while it does not answer. */
  async holder(): Promise<string | undefined> {
    return (await MemoryLeaseStore.prototype.inspect.call(this, KEY))?.owner;
  }

  private async reply<T>(what: string, answer: Promise<T>): Promise<T> {
    this.asked.push(what);
    if (this.down) throw new StoreUnavailableError('lease store', 'Redis did not answer: down');
    await new Promise<void>((resolve) => (this.held ? this.held.push(resolve) : resolve()));
    return answer;
  }
}

describe('a quorum of lease stores', () => {
  let nodes: Node[];
  let quorum: QuorumLeaseStore;
  let clocks: number[];

  const open = (): QuorumLeaseStore =>
    new QuorumLeaseStore(
      nodes.map((store) => ({ store })),
      { nodeTimeoutMs: TIMEOUT_MS },
    );
  const setUp = (count: number): void => {
    // Node clocks that stand still, far apart.
    clocks = Array.from({ length: count }, (_, i) => 1_000_000 + i * 500_000);
    nodes = clocks.map((_, i) => new Node({ wallClockUs: () => clocks[i]! }));
    quorum = open();
  };
  beforeEach(() => setUp(3));
  afterEach(() => quorum.close());

  const acquire = (owner: string, more = {}, store = quorum): Promise<AcquireAnswer> =>
    store.acquire({ key: KEY, owner, ttlMs: TTL_MS, floor: 0, ...more });
  const granted = async (owner: string, more = {}, store = quorum): Promise<number> => {
    const answer = await acquire(owner, more, store);
    if (!answer.granted) throw new Error(`${owner} found the key busy`);
    return answer.generation;
  };
  /** What a node was told after its answer takes a few turns. */
  const become = async (expected: (string | undefined)[]) => {
    for (let turns = 0; turns < 200; turns++) {
      if (JSON.stringify(await holders()) === JSON.stringify(expected)) break;
      await new Promise(setImmediate);
    }
    expect(await holders()).toEqual(expected);
  };
  const holders = () => Promise.all(nodes.map((node) => node.holder()));

  it('gives a grant only when a majority has stored it under the same generation', async () => {
    const generation = await granted('a');
    const stored = await Promise.all(nodes.map((node) => node.inspect(KEY)));
    expect(stored.filter((one) => one?.generation === generation).length).toBeGreaterThanOrEqual(2);
    expect(await quorum.inspect(KEY)).toMatchObject({ owner: 'a', generation });
  });

  it('I1: generations increase whichever majority answers, with clocks that stand still and differ', async () => {
    setUp(5);
    let last = 0;
    const downs = [[0, 1], [2, 3], [3, 4], [0, 4], [], [1, 2], [4], [0, 1], [3, 4]];
    for (const [turn, down] of downs.entries()) {
      nodes.forEach((node, at) => (node.down = down.includes(at)));
      const owner = `owner ${turn}`;
      const generation = await granted(owner);
      expect(generation).toBeGreaterThan(last);
      last = generation;
      await quorum.release({ key: KEY, owner });
      // A node that was down keeps its lease until the ttl.
      nodes.forEach((node) => node.expireNow(KEY));
    }
  });

  it('one node whose counter is near the end does not drag the others along', async () => {
    clocks[2] = MAX_GENERATION - 10;
    for (const owner of ['a', 'b', 'c']) {
      expect(await granted(owner)).toBeLessThan(10_000_000);
      await quorum.release({ key: KEY, owner });
    }
  });

  it('I7: counters lost on a majority are healed by the floor that the fence gives', async () => {
    clocks.fill(4_000_000_000);
    const fence = await granted('a');
    await quorum.release({ key: KEY, owner: 'a' });
    for (const node of nodes.slice(0, 2)) node.loseCounter(5);
    nodes[2]!.down = true;
    expect(await granted('b')).toBeLessThan(fence);
    const healed = await granted('b', { floor: fence });
    expect(healed).toBeGreaterThan(fence);
    await quorum.release({ key: KEY, owner: 'b' });
    expect(await granted('c')).toBeGreaterThan(healed);
  });

  it('is busy where another owner has a majority, and takes back what the rest granted', async () => {
    await nodes[0]!.acquire({ key: KEY, owner: 'a', ttlMs: TTL_MS, floor: 0 });
    await nodes[1]!.acquire({ key: KEY, owner: 'a', ttlMs: TTL_MS, floor: 0 });
    const answer = await acquire('b');
    expect(answer).toMatchObject({ granted: false });
    expect((answer as { remainingMs: number }).remainingMs).toBeGreaterThan(TTL_MS / 2);
    await become(['a', 'a', undefined]);
  });

  it('takes a partial grant back also where its answer came late', async () => {
    for (const node of nodes.slice(0, 2))
      await node.acquire({ key: KEY, owner: 'a', ttlMs: TTL_MS, floor: 0 });
    nodes[2]!.holdAnswers();
    expect(await acquire('b')).toMatchObject({ granted: false });
    expect(await nodes[2]!.holder()).toBe('b');
    nodes[2]!.answerAll();
    await become(['a', 'a', undefined]);
  });

  it('a late answer to a request takes nothing from a later one of the same owner', async () => {
    for (const node of nodes.slice(0, 2))
      await node.acquire({ key: KEY, owner: 'a', ttlMs: TTL_MS, floor: 0 });
    nodes[2]!.holdAnswers();
    expect(await acquire('b')).toMatchObject({ granted: false });
    for (const node of nodes.slice(0, 2)) await node.release({ key: KEY, owner: 'a' });
    await granted('b');
    nodes[2]!.answerAll();
    for (let i = 0; i < 50; i++) await new Promise(setImmediate);
    expect(await holders()).toEqual(['b', 'b', 'b']);
  });

  it('a failure of a majority is unavailable, names the nodes, and leaves nothing behind', async () => {
    nodes[0]!.down = nodes[1]!.down = true;
    const failure = await acquire('a').catch((error: StoreUnavailableError) => error);
    expect(failure).toBeInstanceOf(StoreUnavailableError);
    expect((failure as StoreUnavailableError).retryable).toBe(true);
    expect((failure as Error).message).toMatch(/of 3 nodes answered, and 2 must.*node 1:.*node 2:/);
    await become([undefined, undefined, undefined]);
  });

  it('does not wait for a silent node once that is known, and counts it again when it answers', async () => {
    await granted('a');
    nodes[2]!.holdAnswers();
    await quorum.inspect(KEY);
    const began = performance.now();
    for (let i = 0; i < 20; i++) await quorum.inspect(KEY);
    // Twenty times the node timeout otherwise.
    expect(performance.now() - began).toBeLessThan(TIMEOUT_MS * 10);
    nodes[2]!.answerAll();
    await new Promise(setImmediate);
    nodes[0]!.down = true;
    expect(await quorum.inspect(KEY)).toMatchObject({ owner: 'a' });
  });

  it('keeps no more than a few requests for a node that is silent', async () => {
    nodes[2]!.holdAnswers();
    await quorum.inspect(KEY);
    nodes[2]!.asked.length = 0;
    for (let i = 0; i < 200; i++) {
      await granted(`owner ${i}`);
      await quorum.release({ key: KEY, owner: `owner ${i}` });
    }
    expect(nodes[2]!.asked.length).toBeLessThan(100);
    nodes[2]!.answerAll();
  });

  it('a tie settles: of owners that each have some nodes one gets the key', async () => {
    for (let round = 0; round < 10; round++) {
      const owners = ['a', 'b', 'c'].map((name) => `${name}${round}`);
      // Each finds one node free of the others, as where their requests cross.
      for (const [at, owner] of owners.entries())
        await nodes[at]!.acquire({ key: KEY, owner, ttlMs: TTL_MS, floor: 0 });
      const stores = owners.map(() => open());
      const answers = await Promise.all(owners.map((owner, i) => acquire(owner, {}, stores[i])));
      expect(answers.filter((answer) => answer.granted)).toHaveLength(1);
      const winner = owners[answers.findIndex((answer) => answer.granted)]!;
      expect((await holders()).filter((holder) => holder === winner).length).toBeGreaterThanOrEqual(2);
      await quorum.release({ key: KEY, owner: winner });
    }
  });

  it('I6: requests of one owner that cross get one generation', async () => {
    for (let round = 0; round < 20; round++) {
      const more = { key: `report:${round}` };
      const answers = await Promise.all([granted('a', more), granted('a', more), granted('a', more)]);
      expect(new Set(answers).size).toBe(1);
    }
  });

  it('renews what a majority still holds; what a majority does not is lost, whatever a node that is down has', async () => {
    await granted('a');
    await granted('b', { key: 'other' });
    nodes[0]!.expireNow(KEY);
    const requests = [KEY, 'other'].map((key, i) => ({ key, owner: 'ab'[i]!, ttlMs: TTL_MS }));
    expect(await quorum.renew(requests)).toEqual([true, true]);
    nodes[1]!.down = true;
    expect(await quorum.renew(requests)).toEqual([false, true]);
    nodes[2]!.down = true;
    await expect(quorum.renew(requests)).rejects.toBeInstanceOf(StoreUnavailableError);
  });

  it('a release reaches all nodes; one that was not answered by a majority may be sent again', async () => {
    await granted('a');
    nodes[0]!.down = nodes[1]!.down = true;
    await expect(quorum.release({ key: KEY, owner: 'a' })).rejects.toBeInstanceOf(StoreUnavailableError);
    nodes[0]!.down = nodes[1]!.down = false;
    await quorum.release({ key: KEY, owner: 'a' });
    await become([undefined, undefined, undefined]);
  });

  it('a hand-over that only a minority did is taken back', async () => {
    await granted('a');
    await quorum.withdraw(KEY, 'mine');
    for (const node of nodes.slice(0, 2)) {
      const waiter = { id: 'theirs', forMs: 60_000 };
      await node.acquire({ key: KEY, owner: 'b', ttlMs: TTL_MS, floor: 0, waiter });
    }
    const successor = { owner: 'c', ttlMs: TTL_MS, waiterId: 'mine', forMs: 60_000 };
    const answer = await quorum.release({ key: KEY, owner: 'a', successor });
    expect(answer).toMatchObject({ held: true, successor: { waitMs: expect.any(Number) } });
    expect(await holders()).toEqual([undefined, undefined, undefined]);
  });
});
