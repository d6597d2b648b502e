import { beforeEach, describe, expect, it, jest } from '@jest/globals';
import {
  type Bench,
  keeperBench,
  leaseOptions,
  MemoryFence,
  observe,
  STORE_TIMEOUT_MS,
} from '../../../../test/support/faulty-store.js';
import { Gate } from '../../../../test/support/gate.js';
import { StoreUnavailableError } from './errors.js';
import type { LeaseOptions } from './options.js';

const KEY = 'report:42';
const TTL_MS = 3_000;

function raise(error: Error): never {
  throw error;
}

describe('a leased call on a store that fails', () => {
  let bench: Bench;
  beforeEach(() => {
    bench = keeperBench();
  });

  /** A leased call that records what its body gets. */
  const start = (options: LeaseOptions = {}, end?: Gate) => {
    const body = { began: 0, generation: 0, remainingMs: 0, signal: undefined as AbortSignal | undefined };
    const call = observe(
      bench.keeper.run([KEY], leaseOptions({ ttlMs: TTL_MS, ...options }), async ([lease]) => {
        body.began += 1;
        body.generation = lease!.generation;
        body.remainingMs = lease!.remainingMs();
        body.signal = lease!.signal;
        await end?.wait();
        return 'result';
      }),
    );
    return { call, body };
  };

  it('retries an acquisition whose reply was lost as the same owner, and gets the generation of the first', async () => {
    bench.store.next('acquire', 'lose');
    const { call, body } = start();
    await bench.clock.advance(STORE_TIMEOUT_MS + 100);
    expect(call.state).toBe('resolved');
    const [first, second] = bench.store.sent.filter(({ method }) => method === 'acquire');
    expect(second!.request.owner).toBe(first!.request.owner);
    // The store's clock stands at 0, so the first number ever issued is 1.
    expect(body.generation).toBe(1);
  });

  it('is unavailable when the store does not answer within waitMs, and frees what it may have been granted', async () => {
    bench.store.break('lose', 'acquire');
    const { call, body } = start({ waitMs: 700 });
    await bench.clock.advance(1_000);
    expect(call.error).toBeInstanceOf(StoreUnavailableError);
    expect(body.began).toBe(0);
    expect(await bench.store.inspect(KEY)).toBeUndefined();
  });

  it('gives back a grant that comes after it has given up', async () => {
    const late = new Gate();
    bench.store.break({ late }, 'acquire');
    const { call } = start({ waitMs: 200 });
    await bench.clock.advance(600);
    expect(call.error).toBeInstanceOf(StoreUnavailableError);
    late.open();
    await bench.settle();
    expect(await bench.store.inspect(KEY)).toBeUndefined();
  });

  it('frees what an unanswered try was granted also when its caller gives up between two tries', async () => {
    const { keeper, store, clock } = bench;
    const stop = new AbortController();
    store.next('acquire', 'lose');
    const call = observe(keeper.run([KEY], leaseOptions(), () => 0, { signal: stop.signal }));
    await clock.advance(STORE_TIMEOUT_MS + 1);
    expect(await store.inspect(KEY)).toBeDefined();
    stop.abort();
    await clock.advance(0);
    expect(call.error).toMatchObject({ code: 'WAIT_ABORTED' });
    expect(await store.inspect(KEY)).toBeUndefined();
  });

  it('gives back what its first try is granted after the second one was answered busy', async () => {
    const { store, clock } = bench;
    const late = new Gate();
    store.next('acquire', { late });
    const { call } = start({ waitMs: STORE_TIMEOUT_MS + 500 });
    await clock.advance(1);
    const thief = store.steal(KEY, 60_000);
    await clock.advance(STORE_TIMEOUT_MS + 600);
    expect(call.error).toMatchObject({ code: 'LEASE_BUSY' });
    expect(await store.inspect(KEY)).toMatchObject({ generation: thief });
    store.expireNow(KEY);
    late.open();
    await clock.advance(0);
    expect(await store.inspect(KEY)).toBeUndefined();
  });

  it('does not retry what cannot pass by itself', async () => {
    jest.spyOn(bench.store, 'acquire').mockImplementationOnce(async () => {
      throw new StoreUnavailableError('lease store', 'OOM', { retryable: false });
    });
    const { call } = start();
    await bench.settle();
    expect(call.error).toMatchObject({ code: 'STORE_UNAVAILABLE', retryable: false });
  });

  it.each<[string, () => unknown]>([
    ['throws', () => raise(new Error('not ready'))],
    ['answers nothing', async () => undefined],
    ['does not answer by a promise', () => ({ granted: true, generation: 1 })],
  ])("ends in an error, and stands in nobody's way, where a store %s", async (_, acquire) => {
    jest.spyOn(bench.store, 'acquire').mockImplementationOnce(acquire as typeof bench.store.acquire);
    const { call, body } = start();
    await bench.settle();
    expect(call).toMatchObject({ state: 'rejected', error: expect.any(Error) });
    expect(body.began).toBe(0);
    const next = start();
    await bench.settle();
    expect(next.call.state).toBe('resolved');
  });

  it('starts its body with at least half of the ttl left: a grant that comes late is renewed first', async () => {
    const answer = new Gate();
    bench.store.next('acquire', { slow: answer });
    const { call, body } = start({ ttlMs: 800 });
    await bench.clock.advance(420);
    expect(body.began).toBe(0);
    answer.open();
    await bench.settle();
    expect(bench.store.count('renew')).toBe(1);
    expect(body).toMatchObject({ began: 1 });
    expect(body.remainingMs).toBeGreaterThanOrEqual(400);
    expect(call.state).toBe('resolved');
  });

  it('takes a grant anew that comes too late and is gone at the store', async () => {
    const answer = new Gate();
    bench.store.next('acquire', { slow: answer });
    const { call, body } = start({ ttlMs: 300 });
    await bench.clock.advance(350);
    answer.open();
    await bench.settle();
    expect(call.state).toBe('resolved');
    expect(body.remainingMs).toBeGreaterThanOrEqual(150);
    expect(bench.store.count('acquire')).toBe(2);
  });

  it('is unavailable, and leaves nothing, when every grant comes too late', async () => {
    const { clock, store } = bench;
    const acquire = store.acquire.bind(store);
    jest.spyOn(store, 'acquire').mockImplementation(async (request) => {
      const answer = await acquire(request);
      clock.block(290);
      return answer;
    });
    const { call, body } = start({ ttlMs: 300, waitMs: 1_000 });
    store.break('hang', 'renew');
    await clock.advance(3_000);
    expect(call.error).toBeInstanceOf(StoreUnavailableError);
    expect(body.began).toBe(0);
    expect(await store.inspect(KEY)).toBeUndefined();
  });

  it('is aborted at its local deadline when the store is frozen, without anybody asking', async () => {
    const { call, body } = start({}, new Gate());
    await bench.settle();
    bench.store.freeze();
    await bench.clock.advance(TTL_MS * 0.99 - 3);
    expect(body.signal!.aborted).toBe(false);
    await bench.clock.advance(1);
    expect(body.signal!.reason).toMatchObject({ code: 'LEASE_LOST', reason: 'expired' });
    expect(call.state).toBe('pending');
  });

  it('keeps its result, and what its body threw, when its lease was lost', async () => {
    const [first, second] = [new Gate(), new Gate()];
    const returns = start({}, first);
    await bench.settle();
    bench.clock.block(TTL_MS);
    first.open();
    await bench.settle();
    expect(returns.call.error).toMatchObject({ code: 'LEASE_LOST', result: 'result', acceptedWrites: 0 });

    const failure = new Error('of the body');
    const throws = observe(
      bench.keeper.run(['other'], leaseOptions({ ttlMs: TTL_MS }), async () => {
        await second.wait();
        throw failure;
      }),
    );
    await bench.settle();
    bench.clock.block(TTL_MS);
    second.open();
    await bench.settle();
    expect(throws.error).toMatchObject({ code: 'LEASE_LOST', bodyError: failure, cause: failure });
  });

  it("with onUncertain 'stop' is aborted at the first renewal that fails, and its key is freed", async () => {
    const { body } = start({ onUncertain: 'stop' }, new Gate());
    await bench.settle();
    bench.store.next('renew', 'fail');
    await bench.clock.advance(TTL_MS / 3);
    expect(body.signal!.reason).toMatchObject({ code: 'LEASE_UNCERTAIN' });
    expect(await bench.store.inspect(KEY)).toBeUndefined();
  });

  it('frees its key although the reply to its release was lost, and was lost again', async () => {
    bench.store.next('release', 'hang');
    bench.store.next('release', 'fail');
    const { call } = start();
    await bench.settle();
    expect(call.state).toBe('resolved');
    expect(await bench.store.inspect(KEY)).toBeDefined();
    await bench.clock.advance(STORE_TIMEOUT_MS + 200);
    expect(await bench.store.inspect(KEY)).toBeUndefined();
    expect(bench.store.count('release')).toBe(3);
  });

  it('frees only its own key: a late release of it never touches a later holder', async () => {
    const late = new Gate();
    bench.store.next('release', { late });
    start();
    await bench.settle();
    bench.store.expireNow(KEY);
    const end = new Gate();
    const second = start({}, end);
    await bench.settle();
    late.open();
    await bench.settle();
    expect(await bench.store.inspect(KEY)).toMatchObject({ generation: second.body.generation });
    end.open();
  });

  it('stops sending a release when the ttl has freed the key anyway, and says so once', async () => {
    bench.store.break('fail', 'release');
    start();
    await bench.clock.advance(10 * TTL_MS);
    const sent = bench.store.count('release');
    expect(bench.logged).toHaveLength(1);
    expect(bench.logged[0]).not.toContain(KEY);
    await bench.clock.advance(10 * TTL_MS);
    expect(bench.store.count('release')).toBe(sent);
  });

  it('knows before its next write whether it still holds an uncertain lease', async () => {
    const { keeper, store, clock } = bench;
    await keeper.run([KEY], leaseOptions({ ttlMs: TTL_MS }), async ([lease]) => {
      store.next('renew', 'fail');
      await clock.advance(TTL_MS / 3);
      expect(lease!.state).toBe('uncertain');
      await keeper.confirm(lease!);
      expect(lease!.state).toBe('held');
    });
  });

  it('is told that its lease is uncertain when the store does not answer that question', async () => {
    const { keeper, store, clock } = bench;
    await keeper.run([KEY], leaseOptions({ ttlMs: TTL_MS }), async ([lease]) => {
      store.freeze();
      const asked = observe(keeper.confirm(lease!));
      await clock.advance(STORE_TIMEOUT_MS);
      expect(asked.error).toMatchObject({ code: 'LEASE_UNCERTAIN' });
    });
  });
});

describe('a leased call on a fence', () => {
  const setUp = () => {
    const fence = new MemoryFence();
    return { fence, ...keeperBench({ fence }) };
  };

  it('is activated before its body begins, with its own generation and owner', async () => {
    const { fence, keeper } = setUp();
    await keeper.run([KEY], leaseOptions(), ([lease]) => {
      expect(fence.rows.get(KEY)).toEqual({ generation: lease!.generation, owner: lease!.owner });
    });
  });

  it("with activate: 'write' leaves the fence alone until its first write", async () => {
    const { fence, keeper } = setUp();
    await keeper.run([KEY], leaseOptions({ activate: 'write' }), async ([lease]) => {
      expect(fence.activations).toEqual([]);
      expect(await keeper.activateForWrite(lease!)).toBeUndefined();
      expect(fence.rows.get(KEY)).toMatchObject({ generation: lease!.generation });
    });
  });

  it('heals a store that lost its counter: it starts above what the database has seen, after one more round', async () => {
    const { fence, keeper, store } = setUp();
    fence.rows.set(KEY, { generation: 5_000, owner: 'before the loss' });
    await keeper.run([KEY], leaseOptions(), ([lease]) => {
      expect(lease!.generation).toBe(5_001);
      expect(fence.rows.get(KEY)).toEqual({ generation: 5_001, owner: lease!.owner });
    });
    expect(fence.activations).toHaveLength(2);
    await keeper.run([KEY], leaseOptions(), ([lease]) => expect(lease!.generation).toBeGreaterThan(5_001));
    expect(fence.activations).toHaveLength(3);
    expect(store.count('acquire')).toBe(3);
  });

  it('never runs its body under a generation that is not activated: its grant is released, the error is told', async () => {
    const { fence, keeper, store } = setUp();
    const failure = new StoreUnavailableError('database', 'down');
    fence.before = () => {
      throw failure;
    };
    const body = jest.fn();
    await expect(keeper.run([KEY], leaseOptions(), body)).rejects.toBe(failure);
    expect(body).not.toHaveBeenCalled();
    expect(await store.inspect(KEY)).toBeUndefined();
  });

  it('whose activation fails lets the next in line have its turn', async () => {
    const { fence, keeper, settle } = setUp();
    fence.before = () => {
      fence.before = () => undefined;
      throw new StoreUnavailableError('database', 'down');
    };
    const calls = [1, 2].map((i) => observe(keeper.run([KEY], leaseOptions(), () => i)));
    await settle();
    expect(calls.map(({ state }) => state)).toEqual(['rejected', 'resolved']);
  });

  it('whose grant went to somebody else while the fence was ahead begins again with a new owner', async () => {
    const { fence, keeper, store, clock } = setUp();
    fence.rows.set(KEY, { generation: 5_000, owner: 'before the loss' });
    fence.before = () => {
      fence.before = () => undefined;
      store.steal(KEY, 1_000);
    };
    const call = observe(keeper.run([KEY], leaseOptions(), ([lease]) => lease!.generation));
    await clock.advance(2_500);
    expect(call.state).toBe('resolved');
    expect(new Set(fence.activations.map(({ owner }) => owner)).size).toBe(2);
  });

  it('gives up on a fence that is ahead again and again, and releases', async () => {
    const { fence, keeper, store } = setUp();
    fence.before = ({ generation }) =>
      void fence.rows.set(KEY, { generation: generation + 1, owner: 'newer' });
    await expect(keeper.run([KEY], leaseOptions(), () => 0)).rejects.toThrow(StoreUnavailableError);
    expect(await store.inspect(KEY)).toBeUndefined();
  });

  it('starts with at least half of its ttl left also after a slow activation', async () => {
    const { fence, keeper, clock } = setUp();
    const open = new Gate();
    fence.before = () => open.wait();
    const call = observe(keeper.run([KEY], leaseOptions({ ttlMs: 900 }), ([lease]) => lease!.remainingMs()));
    await clock.advance(5_000);
    expect(call.state).toBe('pending');
    open.open();
    await clock.advance(0);
    expect(call.value).toBeGreaterThanOrEqual(450);
  });

  it('does not begin when its lease was lost during the activation: it takes a new grant', async () => {
    const { fence, keeper, store, clock } = setUp();
    const open = new Gate();
    fence.before = () => open.wait();
    const call = observe(keeper.run([KEY], leaseOptions({ ttlMs: 900 }), ([lease]) => lease!.generation));
    await clock.advance(0);
    const stolen = store.steal(KEY, 2_000);
    await clock.advance(400);
    open.open();
    await clock.advance(3_000);
    expect(call.value).toBeGreaterThan(stolen);
  });

  it('ends its wait for an activation when its signal aborts, and releases', async () => {
    const { fence, keeper, store, settle } = setUp();
    fence.before = () => new Promise(() => undefined);
    const stop = new AbortController();
    const call = observe(keeper.run([KEY], leaseOptions(), () => 0, { signal: stop.signal }));
    await settle();
    stop.abort();
    await settle();
    expect(call.error).toMatchObject({ code: 'WAIT_ABORTED' });
    expect(await store.inspect(KEY)).toBeUndefined();
  });

  it('is unavailable when the database never answers an activation', async () => {
    const { fence, keeper, store, clock } = setUp();
    fence.before = () => new Promise(() => undefined);
    const call = observe(keeper.run([KEY], leaseOptions({ waitMs: 1_000 }), () => 0));
    await clock.advance(1_000 + STORE_TIMEOUT_MS);
    expect(call.error).toMatchObject({ code: 'STORE_UNAVAILABLE', store: 'database' });
    expect(await store.inspect(KEY)).toBeUndefined();
  });
});
