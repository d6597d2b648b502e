import { afterEach, describe, expect, it, jest } from '@jest/globals';
import { Injectable } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import {
  CurrentLease,
  FencedWrite,
  FencingConfigError,
  FencingHealthIndicator,
  FencingService,
  type Lease,
  Leased,
  LeaseBusyError,
  LeaseLostError,
  OperationConflictError,
  StaleGenerationError,
  StoreUnavailableError,
} from 'nestjs-fencing';
import {
  FencingFaults,
  FencingTestingModule,
  type FencingTestingOptions,
  ManualClock,
} from 'nestjs-fencing/testing';
import { Gate } from '../../../../test/support/gate.js';

const KEY = 'report:1';

@Injectable()
class Reports {
  readonly written: string[] = [];
  lease: Lease | undefined;

  async beforeApplicationShutdown(): Promise<void> {}

  @Leased(KEY)
  async rebuild(
    meanwhile: () => Promise<unknown> = async () => undefined,
    inWrite: () => Promise<unknown> = async () => undefined,
    @CurrentLease() lease?: Lease,
  ): Promise<number> {
    this.lease = lease;
    await meanwhile();
    await this.publish(inWrite);
    return lease!.generation;
  }

  @FencedWrite()
  async publish(inWrite: () => Promise<unknown>): Promise<void> {
    this.written.push('begun');
    await inWrite();
  }

  @Leased((_operation: string, payload: number) => `order:${payload}`)
  async order(operation: string, payload: number, effect?: () => Promise<unknown>): Promise<unknown> {
    return this.place(operation, payload, effect);
  }

  @FencedWrite({ operation: (operation: string, _payload: number) => operation })
  async place(operation: string, payload: number, effect?: unknown): Promise<unknown> {
    this.written.push(operation);
    await (effect as (() => Promise<unknown>) | undefined)?.();
    return { payload };
  }
}

let close: () => Promise<void> = async () => undefined;
afterEach(() => close());

async function start(options?: FencingTestingOptions) {
  const clock = new ManualClock();
  const module = await Test.createTestingModule({
    imports: [FencingTestingModule.forRoot({ clock, defaults: { waitMs: 0 }, ...options })],
    providers: [Reports],
  }).compile();
  await module.init();
  close = () => module.close();
  return {
    clock,
    module,
    reports: module.get(Reports),
    faults: module.get(FencingFaults),
    fencing: module.get(FencingService),
  };
}

describe('FencingTestingModule', () => {
  it('runs leased methods and fenced writes without any server', async () => {
    const { reports, fencing } = await start();
    const first = await reports.rebuild();
    expect(await reports.rebuild()).toBeGreaterThan(first);
    expect(reports.written).toHaveLength(2);
    expect((await fencing.inspect(KEY)).fence?.generation).toBeGreaterThan(first);
  });

  it('excludes: a second caller of one key is busy, of another is not', async () => {
    const { reports } = await start();
    const gate = new Gate();
    const first = reports.rebuild(() => gate.wait());
    await expect(reports.rebuild()).rejects.toThrow(LeaseBusyError);
    await reports.order('op', 1);
    gate.open();
    await first;
    expect(reports.written).toEqual(['op', 'begun']);
  });

  it('stops with a store that stands still, a clock that nobody moves and a method that never ends', async () => {
    const { module, reports, faults } = await start();
    const inside = new Gate();
    const stuck = reports.rebuild(async () => {
      inside.open();
      faults.freeze();
      await new Promise(() => undefined);
    });
    stuck.catch(() => undefined);
    await inside.wait();
    await module.close();
    close = async () => undefined;
    expect(reports.lease!.state).toBe('lost');
  });
});

it('leaves the clock alone while something else of the application takes its time to stop', async () => {
  const { module, reports, clock } = await start();
  const mayEnd = new Gate();
  jest.spyOn(reports, 'beforeApplicationShutdown').mockImplementation(() => mayEnd.wait());
  const closing = module.close();
  for (let i = 0; i < 10; i++) await new Promise((resolve) => setImmediate(resolve));
  expect(clock.now()).toBe(0);
  mayEnd.open();
  await closing;
});

describe('FencingTestingModule on the real clock', () => {
  it('stops with a store that stands still, and does not wait until its requests time out', async () => {
    const { module, reports, faults } = await start({ clock: undefined, storeTimeoutMs: 3_600_000 });
    await reports.rebuild(async () => faults.freeze());
    await module.close();
    close = async () => undefined;
  });
});

describe('FencingFaults', () => {
  it('steal: the write of the former owner is refused before its body runs, and its signal aborts at the next renewal', async () => {
    const { clock, reports, faults } = await start();
    let stolen = 0;
    const run = reports.rebuild(async () => {
      stolen = await faults.steal(KEY);
      expect(reports.lease!.signal.aborted).toBe(false);
      await clock.advance(10_000);
      expect(reports.lease!.signal.aborted).toBe(true);
    });
    await expect(run).rejects.toThrow(LeaseLostError);
    expect(stolen).toBeGreaterThan(reports.lease!.generation);

    const { reports: others, faults: theirs } = await start();
    await expect(others.rebuild(() => theirs.steal(KEY))).rejects.toThrow(StaleGenerationError);
    expect(others.written).toEqual([]);
  });

  it('steal waits for an open write, as an activation does, and takes the key for its ttl', async () => {
    const { clock, reports, faults } = await start();
    const [inside, mayEnd] = [new Gate(), new Gate()];
    const run = reports.rebuild(undefined, async () => {
      inside.open();
      await mayEnd.wait();
    });
    await inside.wait();
    let isStolen = false;
    const stealing = faults.steal(KEY, 1_000).then(() => (isStolen = true));
    await clock.advance(0);
    expect(isStolen).toBe(false);
    mayEnd.open();
    await run;
    await stealing;
    await expect(reports.rebuild()).rejects.toThrow(LeaseBusyError);
    await clock.advance(1_000);
    await reports.rebuild();
  });

  it('steal inside a fenced write is refused: it would wait for that write', async () => {
    const { reports, faults } = await start();
    await expect(reports.rebuild(undefined, () => faults.steal(KEY))).rejects.toThrow(FencingConfigError);
  });

  it('refuseNextWrite: the next write is stale and its body does not run; the one after is as ever', async () => {
    const { reports, faults } = await start();
    faults.refuseNextWrite();
    await expect(reports.rebuild()).rejects.toThrow(StaleGenerationError);
    expect(reports.written).toEqual([]);
    await reports.rebuild();
    expect(reports.written).toEqual(['begun']);
  });

  it('expireNow: the holder finds out at its next renewal, and somebody else may have the key at once', async () => {
    const { clock, reports, faults } = await start();
    const run = reports.rebuild(async () => {
      faults.expireNow(KEY);
      await clock.advance(10_000);
    });
    await expect(run).rejects.toThrow(LeaseLostError);
    expect(reports.written).toEqual([]);
    await reports.rebuild();
  });

  it('freeze: who wants a lease is told that the store is silent; thaw ends it', async () => {
    const { clock, reports, faults } = await start();
    faults.freeze();
    const refused = expect(reports.rebuild()).rejects.toThrow(StoreUnavailableError);
    await clock.advance(10_000);
    await refused;
    faults.thaw();
    await clock.advance(60_000);
    await reports.rebuild();
  });

  it('freeze: who has a lease loses it at its deadline', async () => {
    const { clock, reports, faults } = await start();
    const run = reports.rebuild(async () => {
      faults.freeze();
      await clock.advance(29_000);
      expect(reports.lease!.state).toBe('uncertain');
      await clock.advance(1_000);
      expect(reports.lease!.state).toBe('lost');
    });
    await expect(run).rejects.toThrow(LeaseLostError);
    expect(reports.written).toEqual([]);
  });

  it('freeze: operators and health checks find the store silent as well', async () => {
    const { reports, faults, fencing, module } = await start();
    const health = async () => (await module.get(FencingHealthIndicator).isHealthy()).fencing.status;
    await reports.rebuild(async () => {
      faults.freeze();
      await expect(fencing.inspect(KEY)).rejects.toThrow(StoreUnavailableError);
      expect(await health()).toBe('degraded');
      faults.thaw();
    });
    faults.freeze();
    expect(await health()).toBe('down');
    faults.thaw();
    expect(await health()).toBe('up');
  });

  it('loseCounter: the next generation is above the last one all the same, also for a thief', async () => {
    const { reports, faults } = await start();
    const before = await reports.rebuild();
    faults.loseCounter();
    const after = await reports.rebuild();
    expect(after).toBeGreaterThan(before);
    faults.loseCounter();
    expect(await faults.steal(KEY)).toBeGreaterThan(after);
  });
});

describe('the fence in memory', () => {
  it('does not accept a write whose lease ended while it ran', async () => {
    const { clock, reports, faults } = await start();
    const run = reports.rebuild(undefined, async () => {
      faults.expireNow(KEY);
      await clock.advance(10_000);
    });
    await expect(run).rejects.toMatchObject({ code: 'LEASE_LOST', acceptedWrites: 0 });
  });

  it('holds up nobody by a write whose lease ended while it runs', async () => {
    const { clock, reports, faults } = await start();
    const [inside, mayEnd] = [new Gate(), new Gate()];
    const stuck = reports.rebuild(undefined, async () => {
      inside.open();
      await mayEnd.wait();
    });
    await inside.wait();
    faults.expireNow(KEY);
    await clock.advance(10_000);
    const next = reports.rebuild();
    await clock.advance(0);
    await expect(next).resolves.toBeGreaterThan(0);
    mayEnd.open();
    await expect(stuck).rejects.toThrow(LeaseLostError);
  });

  it('does an operation once: later senders get the stored result, another payload is refused', async () => {
    const { reports, fencing } = await start();
    expect(await reports.order('op', 1)).toEqual({ payload: 1 });
    expect(await reports.order('op', 1)).toEqual({ payload: 1 });
    expect(reports.written).toEqual(['op']);
    await expect(reports.order('op', 2)).rejects.toThrow(OperationConflictError);
    expect(await fencing.receipt('op')).toMatchObject({ key: 'order:1', result: { payload: 1 } });
  });

  it('does an operation that failed again', async () => {
    const { reports } = await start();
    const fails = async () => Promise.reject(new Error('no'));
    await expect(reports.order('op', 1, fails as never)).rejects.toThrow();
    expect(await reports.order('op', 1)).toEqual({ payload: 1 });
  });

  it('lets the second of two senders at once wait for the first', async () => {
    const { fencing } = await start();
    const [inside, mayEnd] = [new Gate(), new Gate()];
    let effects = 0;
    const send = (key: string) =>
      fencing.run(key, {}, () =>
        fencing.write({ operation: { id: 'op' } }, async () => {
          inside.open();
          await mayEnd.wait();
          return ++effects;
        }),
      );
    const first = send('a');
    await inside.wait();
    const second = send('b');
    await new Promise((resolve) => setImmediate(resolve));
    mayEnd.open();
    expect([await first, await second]).toEqual([1, 1]);
  });

  it('gives bodies the manager of the test, and says what to do where there is none', async () => {
    const manager = { query: async () => 'answered' };
    type Manager = typeof manager;
    const withOne = await start({ manager });
    const query = (fencing: FencingService) =>
      fencing.run(KEY, {}, () => fencing.write({}, (given: Manager) => given.query()));
    expect(await query(withOne.fencing)).toBe('answered');
    await withOne.module.close();
    const { fencing } = await start();
    await expect(query(fencing)).rejects.toThrow(
      'uses query of its manager, and there is none without a database: give FencingTestingModule.forRoot({ manager })',
    );
  });
});

it.each([null, { leases: undefined }, { fence: {} }])(
  'refuses %j: it brings its own lease store and fence',
  (options) => {
    expect(() => FencingTestingModule.forRoot(options as never)).toThrow(FencingConfigError);
  },
);

it.each([NaN, -1, undefined, '30s', 365 * 86_400_000 + 1])(
  'a manual clock is not moved by %p ms',
  async (ms) => {
    const clock = new ManualClock();
    await expect(clock.advance(ms as never)).rejects.toThrow(FencingConfigError);
    expect(() => clock.block(ms as never)).toThrow(FencingConfigError);
    expect(clock.now()).toBe(0);
  },
);

it('a manual clock moves on also where the timers of the test are fake ones', async () => {
  jest.useFakeTimers();
  try {
    const { clock, reports } = await start();
    await expect(reports.rebuild(() => clock.advance(60_000))).resolves.toBeGreaterThan(0);
    await close();
  } finally {
    jest.useRealTimers();
    close = async () => undefined;
  }
});

it('a manual clock does not go back where two advance it at once', async () => {
  const clock = new ManualClock();
  const far = clock.advance(1_000);
  await clock.advance(10);
  await far;
  expect(clock.now()).toBeGreaterThanOrEqual(1_000);
});
