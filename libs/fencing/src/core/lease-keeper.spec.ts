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
import { LeaseBusyError, LeaseOrderError, LeaseReleasedError, StoreUnavailableError } from './errors.js';
import type { HeldLease } from './lease.js';

const KEY = 'report:42';

describe('a leased call', () => {
  let bench: Bench;
  beforeEach(() => {
    bench = keeperBench();
  });

  it('holds the key while its body runs, and has released it before the caller goes on', async () => {
    const { keeper, store } = bench;
    const generation = await keeper.run([KEY], leaseOptions(), async ([lease]) => {
      expect(await store.inspect(KEY)).toMatchObject({ owner: lease!.owner, generation: lease!.generation });
      return lease!.generation;
    });
    expect(generation).toBeGreaterThan(0);
    expect(await store.inspect(KEY)).toBeUndefined();
    expect(store.sent.map(({ method }) => method)).toEqual(['acquire', 'release']);
  });

  it('does not wait for the answer to its release', async () => {
    const { keeper, store, clock } = bench;
    store.next('release', 'hang');
    const call = observe(keeper.run([KEY], leaseOptions(), () => 'done'));
    await clock.advance(0);
    expect(call).toMatchObject({ state: 'resolved', value: 'done' });
  });

  it('has an owner of its own, also for the same key in the same process', async () => {
    const { keeper } = bench;
    const owners = new Set<string>();
    for (let i = 0; i < 3; i++)
      await keeper.run([KEY], leaseOptions(), ([lease]) => owners.add(lease!.owner));
    expect(owners.size).toBe(3);
  });

  it('passes on what its body throws, and releases', async () => {
    const failure = new Error('of the body');
    const call = bench.keeper.run([KEY], leaseOptions(), () => {
      throw failure;
    });
    await expect(call).rejects.toBe(failure);
    expect(await bench.store.inspect(KEY)).toBeUndefined();
  });

  it('joins a lease of the same key that its caller holds: same generation, no second grant', async () => {
    const { keeper, store } = bench;
    await keeper.run([KEY], leaseOptions(), async ([outer]) => {
      await keeper.run([KEY], leaseOptions(), ([inner]) => expect(inner).toBe(outer));
      expect(outer!.state).toBe('held');
    });
    expect(store.count('acquire')).toBe(1);
    expect(store.count('release')).toBe(1);
  });

  it('does not join a lease that has ended: late work is told so, or takes its own', async () => {
    const { keeper } = bench;
    const gate = new Gate();
    let late!: Promise<HeldLease | undefined>;
    const first = await keeper.run([KEY], leaseOptions(), ([lease]) => {
      late = gate.wait().then(() => keeper.run([KEY], leaseOptions(), ([own]) => own));
      return lease;
    });
    gate.open();
    const second = await late;
    expect(second).not.toBe(first);
    expect(() => first!.assertHeld()).toThrow(LeaseReleasedError);
  });

  it('does not join a lease that is lost', async () => {
    const { keeper, clock } = bench;
    const call = keeper.run([KEY], leaseOptions(), async () => {
      clock.block(10_000);
      await keeper.run([KEY], leaseOptions(), () => 'inner');
    });
    await expect(call).rejects.toMatchObject({ code: 'LEASE_LOST', reason: 'expired' });
  });

  it('takes several keys in sorted order, each once, and gives them in the order asked for', async () => {
    const { keeper, store } = bench;
    await keeper.run(['b', 'a', 'b', 'c'], leaseOptions(), (leases) => {
      expect(leases.map(({ key }) => key)).toEqual(['b', 'a', 'b', 'c']);
      expect(leases[0]).toBe(leases[2]);
    });
    const acquired = store.sent
      .filter(({ method }) => method === 'acquire')
      .map(({ request }) => request.key);
    expect(acquired).toEqual(['a', 'b', 'c']);
    expect(store.count('release')).toBe(3);
  });

  it('takes all of several keys or none', async () => {
    const { keeper, store } = bench;
    store.steal('b');
    await expect(keeper.run(['a', 'b'], leaseOptions({ waitMs: 0 }), () => 0)).rejects.toThrow(
      LeaseBusyError,
    );
    expect(await store.inspect('a')).toBeUndefined();
  });

  it("with onBusy 'skip' does not run its body while the key is held elsewhere", async () => {
    const { keeper, store } = bench;
    store.steal(KEY);
    const body = jest.fn();
    expect(await keeper.run([KEY], leaseOptions({ waitMs: 0, onBusy: 'skip' }), body)).toBeUndefined();
    expect(body).not.toHaveBeenCalled();
  });

  it("with onBusy 'skip' still reports a store that does not answer", async () => {
    const { keeper, store } = bench;
    store.break('fail', 'acquire');
    const call = keeper.run([KEY], leaseOptions({ waitMs: 0, onBusy: 'skip' }), () => 0);
    await expect(call).rejects.toThrow(StoreUnavailableError);
  });

  it('with waitMs 0 tries once, and says how long the key may stay taken', async () => {
    const { keeper, store } = bench;
    store.steal(KEY, 4_000);
    const call = keeper.run([KEY], leaseOptions({ waitMs: 0 }), () => 0);
    await expect(call).rejects.toMatchObject({ code: 'LEASE_BUSY', waitedMs: 0, retryAfterMs: 4_000 });
    expect(store.count('acquire')).toBe(1);
  });

  it('with holdAtLeastMs keeps the key taken after a short run, measured from the grant', async () => {
    const { keeper, store, clock } = bench;
    await keeper.run([KEY], leaseOptions({ holdAtLeastMs: 5_000 }), () => clock.advance(2_000));
    await clock.advance(2_999);
    expect(await store.inspect(KEY)).toBeDefined();
    await clock.advance(1);
    expect(await store.inspect(KEY)).toBeUndefined();
  });

  it('with holdAtLeastMs frees the key at once after a longer run', async () => {
    const { keeper, store, clock } = bench;
    await keeper.run([KEY], leaseOptions({ holdAtLeastMs: 5_000 }), () => clock.advance(5_000));
    expect(await store.inspect(KEY)).toBeUndefined();
  });

  it('with holdAtLeastMs makes a waiter of the same process wait for it as well', async () => {
    const { keeper, clock } = bench;
    const first = keeper.run([KEY], leaseOptions({ holdAtLeastMs: 5_000 }), () => clock.now());
    const second = observe(keeper.run([KEY], leaseOptions(), () => clock.now()));
    const began = (await first)!;
    await clock.advance(4_900);
    expect(second.state).toBe('pending');
    await clock.advance(3_000);
    expect(second.value! - began).toBeGreaterThanOrEqual(5_000);
  });

  it('is refused inside a transaction of the fenced database', async () => {
    const fence = new MemoryFence();
    const { keeper, store } = keeperBench({ fence });
    fence.isInTransaction = true;
    await expect(keeper.run([KEY], leaseOptions(), () => 0)).rejects.toThrow(LeaseOrderError);
    expect(store.sent).toEqual([]);
  });

  it('keeps its lease until a result that goes on after it has ended', async () => {
    const { keeper, store, clock } = bench;
    const end = new Gate();
    const stream = (result: string | undefined) => ({ result, ended: end.wait() });
    expect(await keeper.run([KEY], leaseOptions(), () => 'stream', { stream })).toBe('stream');
    await clock.advance(10_000);
    expect(await store.inspect(KEY)).toBeDefined();
    end.open();
    await clock.advance(0);
    expect(await store.inspect(KEY)).toBeUndefined();
  });
});

describe('a stopping keeper', () => {
  it('renews running calls until they end, and takes no new ones', async () => {
    const { keeper, store, clock } = keeperBench();
    const end = new Gate();
    const call = observe(keeper.run([KEY], leaseOptions(), () => end.wait()));
    await clock.advance(0);
    const stopped = observe(keeper.stop(60_000));
    await expect(keeper.run(['other'], leaseOptions(), () => 0)).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
      retryable: false,
    });
    await clock.advance(30_000);
    expect([call.state, stopped.state]).toEqual(['pending', 'pending']);
    end.open();
    await clock.advance(0);
    expect(call.state).toBe('resolved');
    expect(stopped).toMatchObject({ state: 'resolved', value: 0 });
    expect(await store.inspect(KEY)).toBeUndefined();
  });

  it('lets running calls take the leases that they need to end', async () => {
    const { keeper, clock } = keeperBench();
    const stopping = new Gate();
    const call = observe(
      keeper.run([KEY], leaseOptions(), async () => {
        await stopping.wait();
        return keeper.run(['nested'], leaseOptions(), () => 'done');
      }),
    );
    await clock.advance(0);
    const stopped = observe(keeper.stop(60_000));
    stopping.open();
    await clock.advance(0);
    expect(call).toMatchObject({ state: 'resolved', value: 'done' });
    expect(stopped.state).toBe('resolved');
  });

  it('after drainMs aborts what still runs, releases it, and counts it', async () => {
    const { keeper, store, clock } = keeperBench();
    let signal!: AbortSignal;
    const call = observe(
      keeper.run([KEY], leaseOptions(), ([lease]) => {
        signal = lease!.signal;
        return new Promise((_, reject) => signal.addEventListener('abort', () => reject(new Error('cut'))));
      }),
    );
    await clock.advance(0);
    const stopped = observe(keeper.stop(1_000));
    await clock.advance(1_000);
    expect(signal.reason).toMatchObject({ code: 'LEASE_LOST', reason: 'drained' });
    expect(call.error).toMatchObject({
      code: 'LEASE_LOST',
      reason: 'drained',
      bodyError: { message: 'cut' },
    });
    expect(stopped).toMatchObject({ state: 'resolved', value: 1 });
    expect(await store.inspect(KEY)).toBeUndefined();
  });

  it('gives a grant back that was on its way when it began to stop', async () => {
    const { keeper, store, clock } = keeperBench();
    const answer = new Gate();
    store.next('acquire', { slow: answer });
    const body = jest.fn();
    const call = observe(keeper.run([KEY], leaseOptions(), body));
    await clock.advance(0);
    void keeper.stop(0);
    answer.open();
    await clock.advance(0);
    expect(call.error).toMatchObject({ code: 'STORE_UNAVAILABLE', retryable: false });
    expect(body).not.toHaveBeenCalled();
    expect(await store.inspect(KEY)).toBeUndefined();
  });

  it('accepts no grant of another service whose activation was on its way when it began to stop', async () => {
    const fence = new MemoryFence();
    const { keeper, clock } = keeperBench({ fence });
    const answer = new Gate();
    fence.before = () => answer.wait();
    const grant = { key: KEY, owner: 'theirs', generation: 7 };
    const accepted = observe(keeper.accept(grant, leaseOptions()));
    await clock.advance(0);
    const stopped = observe(keeper.stop(0));
    await clock.advance(0);
    expect(stopped.state).toBe('resolved');
    answer.open();
    await clock.advance(0);
    expect(accepted.error).toMatchObject({ code: 'STORE_UNAVAILABLE', retryable: false });
  });

  it('ends the wait of those who stand in line', async () => {
    const { keeper, store, clock } = keeperBench();
    store.steal(KEY);
    const calls = [1, 2].map(() => observe(keeper.run([KEY], leaseOptions(), () => 0)));
    await clock.advance(0);
    const stopped = observe(keeper.stop(0));
    await clock.advance(0);
    expect(calls.map(({ error }) => error?.code)).toEqual(['STORE_UNAVAILABLE', 'STORE_UNAVAILABLE']);
    expect(stopped.state).toBe('resolved');
  });

  it('is done after one more store timeout when the store is frozen', async () => {
    const { keeper, store, clock } = keeperBench();
    void keeper.run([KEY], leaseOptions(), () => new Promise(() => undefined)).catch(() => undefined);
    await clock.advance(0);
    store.freeze();
    const stopped = observe(keeper.stop(0));
    await clock.advance(STORE_TIMEOUT_MS + 1);
    expect(stopped).toMatchObject({ state: 'resolved', value: 1 });
  });
});
