import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { beforeEach, describe, expect, it, jest } from '@jest/globals';
import {
  type Bench,
  keeperBench,
  leaseOptions,
  MemoryFence,
  observe,
} from '../../../../test/support/faulty-store.js';
import { Gate } from '../../../../test/support/gate.js';
import { StoreUnavailableError } from './errors.js';
import {
  FENCING_EVENT_NAMES,
  FencingEmitter,
  type FencingEvent,
  fencingChannelName,
  tellUnavailable,
} from './events.js';
import type { HeldLease } from './lease.js';
import { silentLogger } from './logger.js';

const KEY = 'report:42';
const TTL_MS = 3_000;
const VALID_MS = TTL_MS * 0.99 - 2;

describe('the events of leases', () => {
  let bench: Bench;
  let fence: MemoryFence;
  let heard: FencingEvent[];

  beforeEach(() => {
    heard = [];
    fence = new MemoryFence();
    const events = new FencingEmitter('default', silentLogger);
    events.listen((event) => heard.push(event));
    bench = keeperBench({ fence, events });
  });

  const names = () => heard.map(({ name }) => name);
  const run = (body: (lease: HeldLease) => unknown, options = {}) =>
    bench.keeper.run([KEY], leaseOptions({ ttlMs: TTL_MS, ...options }), ([lease]) => body(lease!));

  it('lease.acquired tells the grant, and lease.released how long it was held', async () => {
    let grant: object = {};
    await run(async ({ key, owner, generation }) => {
      grant = { key, owner, generation };
      await bench.clock.advance(70);
    });
    expect(heard).toEqual([
      {
        name: 'lease.acquired',
        instance: 'default',
        at: expect.any(Date),
        ...grant,
        ttlMs: TTL_MS,
        waitedMs: 0,
        activated: true,
      },
      {
        name: 'lease.released',
        instance: 'default',
        at: expect.any(Date),
        ...grant,
        heldMs: 70,
        acceptedWrites: 0,
        uncertainMs: 0,
      },
    ]);
  });

  it('lease.contended is told once by a caller whose key is taken in this process', async () => {
    const gate = new Gate();
    const first = observe(run(() => gate.wait()));
    await bench.settle();
    const second = observe(run(() => 'done'));
    await bench.clock.advance(40);
    expect(heard.at(-1)).toMatchObject({ name: 'lease.contended', key: KEY, waitMs: 10_000 });
    gate.open();
    await bench.clock.advance(10);
    expect([first.state, second.state]).toEqual(['resolved', 'resolved']);
    expect(names().filter((name) => name === 'lease.contended')).toHaveLength(1);
    expect(heard.filter(({ name }) => name === 'lease.acquired')[1]).toMatchObject({ waitedMs: 40 });
  });

  it('lease.contended is told once by a caller whose key another application holds, however often it asks', async () => {
    await bench.store.acquire({ key: KEY, owner: 'theirs', ttlMs: 60_000, floor: 0 });
    const call = observe(run(() => 'done'));
    await bench.clock.advance(20_000);
    expect(call.state).toBe('rejected');
    expect(bench.store.count('acquire')).toBeGreaterThan(3);
    expect(names()).toEqual(['lease.contended', 'lease.busy']);
  });

  it.each([0, 5_000])('lease.busy is told where a wait of %d ms is over', async (waitMs) => {
    const gate = new Gate();
    const first = observe(run(() => gate.wait()));
    await bench.settle();
    const second = observe(run(() => 'done', { waitMs }));
    await bench.clock.advance(waitMs);
    expect(second.error).toMatchObject({ code: 'LEASE_BUSY' });
    expect(heard.find(({ name }) => name === 'lease.busy')).toMatchObject({ key: KEY, waitedMs: waitMs });
    gate.open();
    await bench.settle();
    expect(first.state).toBe('resolved');
  });

  it('lease.renewed tells the margin, and lease.uncertain that there is a doubt', async () => {
    const gate = new Gate();
    const call = observe(run(() => gate.wait()));
    await bench.settle();
    await bench.clock.advance(TTL_MS / 3);
    expect(heard.at(-1)).toMatchObject({
      name: 'lease.renewed',
      key: KEY,
      marginMs: VALID_MS - TTL_MS / 3,
      uncertainMs: 0,
    });
    bench.store.next('renew', 'fail');
    await bench.clock.advance(TTL_MS / 3);
    expect(names().slice(-2)).toEqual(['store.unavailable', 'lease.uncertain']);
    expect(heard.at(-1)).toMatchObject({ remainingMs: VALID_MS - TTL_MS / 3 });
    await bench.clock.advance(TTL_MS / 6);
    expect(heard.at(-1)).toMatchObject({ name: 'lease.renewed', uncertainMs: TTL_MS / 6 });
    gate.open();
    await bench.settle();
    expect(call.state).toBe('resolved');
  });

  it.each([
    ['expired', (world: Bench): void => world.store.freeze()],
    ['superseded', (world: Bench): void => void world.store.steal(KEY)],
  ] as const)('lease.lost tells why: %s', async (reason, befall) => {
    const gate = new Gate();
    const call = observe(run(() => gate.wait()));
    await bench.settle();
    befall(bench);
    await bench.clock.advance(TTL_MS);
    gate.open();
    await bench.settle();
    expect(call.error).toMatchObject({ code: 'LEASE_LOST' });
    expect(heard.find(({ name }) => name === 'lease.lost')).toMatchObject({ key: KEY, reason });
    expect(names()).not.toContain('lease.released');
  });

  it('lease.lost and lease.released tell how long the lease had been in doubt at its end', async () => {
    const gate = new Gate();
    const call = observe(run(() => gate.wait()));
    await bench.settle();
    bench.store.break('fail', 'renew');
    await bench.clock.advance(TTL_MS / 3 + 100);
    gate.open();
    await bench.settle();
    expect(call.state).toBe('resolved');
    expect(heard.at(-1)).toMatchObject({ name: 'lease.released', uncertainMs: 100 });
    const second = new Gate();
    const lost = observe(run(() => second.wait()));
    await bench.clock.advance(TTL_MS);
    second.open();
    await bench.settle();
    expect(lost.error).toMatchObject({ code: 'LEASE_LOST' });
    const doubt = heard.findLast(({ name }) => name === 'lease.uncertain') as FencingEvent & {
      name: 'lease.uncertain';
    };
    const end = heard.find(({ name }) => name === 'lease.lost') as FencingEvent & { name: 'lease.lost' };
    expect(end.reason).toBe('expired');
    expect(doubt.remainingMs).toBeGreaterThan(0);
    expect(end.uncertainMs).toBeCloseTo(doubt.remainingMs, 6);
  });

  it("lease.lost tells that a method which stops in doubt was stopped: 'uncertain'", async () => {
    const gate = new Gate();
    const call = observe(run(() => gate.wait(), { onUncertain: 'stop' }));
    await bench.settle();
    bench.store.break('fail', 'renew');
    await bench.clock.advance(TTL_MS / 3);
    expect(heard.at(-1)).toMatchObject({ name: 'lease.lost', reason: 'uncertain' });
    gate.open();
    await bench.settle();
    expect(call.error).toMatchObject({ code: 'LEASE_UNCERTAIN' });
  });

  it("lease.lost tells what the end of the application cut off: 'drained'", async () => {
    const gate = new Gate();
    const call = observe(run(() => gate.wait()));
    await bench.settle();
    const stop = bench.keeper.stop(1_000);
    await bench.clock.advance(1_000);
    expect(heard.at(-1)).toMatchObject({ name: 'lease.lost', reason: 'drained' });
    gate.open();
    await bench.settle();
    await stop;
    expect(call.state).toBe('rejected');
  });

  it('store.unavailable is told for each request without an answer', async () => {
    bench.store.next('acquire', 'fail');
    const call = observe(run(() => 'done'));
    await bench.clock.advance(100);
    expect(call.state).toBe('resolved');
    expect(heard[0]).toMatchObject({
      name: 'store.unavailable',
      store: 'lease store',
      cause: expect.objectContaining({ code: 'STORE_UNAVAILABLE' }),
    });
    expect(names()).toEqual(['store.unavailable', 'lease.acquired', 'lease.released']);
  });

  it('store.unavailable is told of a database that does not answer to an activation', async () => {
    fence.before = () => {
      throw new StoreUnavailableError('database', 'broken by the test.');
    };
    await expect(run(() => 'done')).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
    expect(heard).toMatchObject([{ name: 'store.unavailable', store: 'database' }]);
  });

  it('store.unavailable is told once of one failure, through however many hands it goes', () => {
    const events = new FencingEmitter();
    const listener = jest.fn();
    events.listen(listener);
    const failure = new StoreUnavailableError('database', 'broken by the test.');
    tellUnavailable(events, failure);
    tellUnavailable(events, failure);
    expect(listener).toHaveBeenCalledTimes(1);
  });

  it('store.healed tells by how much the lease store was behind', async () => {
    fence.rows.set(KEY, { generation: 5_000_000, owner: 'before the loss' });
    await run(() => 'done');
    const healed = heard[0] as FencingEvent & { name: 'store.healed' };
    expect(healed).toMatchObject({ name: 'store.healed', key: KEY, generation: 5_000_001 });
    expect(healed.behind).toBeGreaterThan(4_000_000);
  });

  it('a grant that never reached a method is no lease that was acquired or released', async () => {
    fence.before = () => {
      throw new Error('of the fence');
    };
    await expect(run(() => 'done')).rejects.toThrow('of the fence');
    expect(names()).toEqual([]);
  });
});

describe('an emitter', () => {
  it('computes nothing while nobody listens, on either side', () => {
    const events = new FencingEmitter();
    expect(FENCING_EVENT_NAMES.filter((name) => events.hears(name))).toEqual([]);
    const stop = events.listen(() => undefined);
    expect(FENCING_EVENT_NAMES.filter((name) => events.hears(name))).toEqual(FENCING_EVENT_NAMES);
    stop();
    expect(events.hears('lease.acquired')).toBe(false);
  });

  it('computes only what is listened to by name', () => {
    const events = new FencingEmitter();
    const listener = jest.fn();
    const stop = events.listen(listener, ['lease.busy']);
    expect(FENCING_EVENT_NAMES.filter((name) => events.hears(name))).toEqual(['lease.busy']);
    events.emit('lease.contended', { key: KEY, waitMs: 3 });
    expect(listener).not.toHaveBeenCalled();
    events.emit('lease.busy', { key: KEY, waitedMs: 3 });
    expect(listener).toHaveBeenCalledTimes(1);
    stop();
    expect(events.hears('lease.busy')).toBe(false);
  });

  it('publishes on the channel of the event, with the name of its instance', () => {
    const events = new FencingEmitter('billing');
    const listener = jest.fn();
    const channel = fencingChannelName('lease.busy');
    subscribe(channel, listener);
    try {
      expect(events.hears('lease.busy')).toBe(true);
      expect(events.hears('lease.acquired')).toBe(false);
      events.emit('lease.busy', { key: KEY, waitedMs: 3 });
      const event = { name: 'lease.busy', instance: 'billing', at: expect.any(Date), key: KEY, waitedMs: 3 };
      expect(listener).toHaveBeenCalledWith(event, channel);
    } finally {
      unsubscribe(channel, listener);
    }
  });

  it('contains a listener that throws: the others hear it all the same', () => {
    const error = jest.fn();
    const events = new FencingEmitter('default', { warn: () => undefined, error });
    const failure = new Error('of the listener');
    const second = jest.fn();
    events.listen(() => {
      throw failure;
    });
    events.listen(second);
    events.emit('lease.busy', { key: KEY, waitedMs: 3 });
    expect(second).toHaveBeenCalledTimes(1);
    expect(error).toHaveBeenCalledWith(expect.not.stringContaining(KEY), failure);
  });
});
