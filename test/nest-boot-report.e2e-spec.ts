import { afterEach, describe, expect, it, jest } from '@jest/globals';
import { Injectable, Logger, type Type } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import {
  CurrentLease,
  FencingConfigError,
  FencingModule,
  type FencingModuleOptions,
  type Lease,
  Leased,
  type LeaseStore,
  memoryLeases,
  StoreUnavailableError,
} from 'nestjs-fencing';

const closing: (() => Promise<void>)[] = [];
afterEach(async () => {
  jest.restoreAllMocks();
  for (const close of closing.splice(0)) await close();
});

/** Boots an application, and answers what it warned of. */
async function boot(
  services: Type | Type[],
  options: Partial<FencingModuleOptions> = {},
  leases: LeaseStore = memoryLeases(),
): Promise<string[]> {
  const warnings = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => undefined);
  const module = await Test.createTestingModule({
    imports: [FencingModule.forRoot({ leases, ...options })],
    providers: [services].flat(),
  }).compile();
  await module.init();
  closing.push(() => module.close());
  return warnings.mock.calls.map(([message]) => String(message));
}

/** A lease store whose answers take `ms`, by the clock of the process. */
function slowLeases(ms: () => number) {
  const store = memoryLeases();
  let asked = 0;
  jest.spyOn(store, 'inspect').mockImplementation(async () => {
    asked++;
    for (const end = performance.now() + ms(); performance.now() < end;);
    return undefined;
  });
  return { store, asked: () => asked };
}

@Injectable()
class Constant {
  @Leased('rebuild')
  async rebuild(_customerId: string): Promise<void> {}
}

class Inherited extends Constant {}

@Injectable()
class Fine {
  @Leased('nightly')
  async withoutParameters(@CurrentLease() _lease?: Lease): Promise<void> {}

  @Leased('report:{0}')
  async withPlace(_id: string): Promise<void> {}

  @Leased(['all', 'report:{0}'])
  async oneOfSeveral(_id: string): Promise<void> {}

  @Leased(() => 'rebuild')
  async saidSo(_event: object): Promise<void> {}

  @Leased('nightly')
  async withDefault(_now = new Date()): Promise<void> {}
}

@Injectable()
class Short {
  @Leased('short:{0}', { ttlMs: 100 })
  async run(_id: string): Promise<void> {}
}

describe('the boot reports', () => {
  it('a key that names no parameter of a method that has some', async () => {
    expect(await boot(Constant)).toEqual([
      "@Leased on Constant.rebuild: the key 'rebuild' names no parameter, and the method has 1: all calls exclude each other. " +
        "Name one, e.g. 'rebuild:{0}'; where one key for all is meant, say so by a function: () => 'rebuild'.",
    ]);
  });

  it('it once, also where a descendant inherits the method', async () => {
    expect(await boot([Constant, Inherited])).toHaveLength(1);
  });

  it('nothing of keys that are constant for a reason', async () => {
    expect(await boot(Fine)).toEqual([]);
  });

  it('a ttl that is shorter than three requests to the lease store, by the quickest of three', async () => {
    const { store, asked } = slowLeases(() => 50);
    const [warning, ...others] = await boot(Short, {}, store);
    expect(warning).toMatch(
      /^@Leased on Short\.run: ttlMs is 100, and one request to the lease store took \d+\.\d ms at boot: .* Set ttlMs to \d+ at least/,
    );
    expect(others).toEqual([]);
    expect(asked()).toBe(3);
  });

  it('a default ttl that is, for what FencingService takes', async () => {
    const { store } = slowLeases(() => 50);
    expect(await boot(Fine, { defaults: { ttlMs: 100 } }, store)).toContainEqual(
      expect.stringMatching(/^FencingModule defaults: ttlMs is 100/),
    );
  });

  it('nothing after one slow answer, and asks once where that settles it', async () => {
    let answers = 0;
    const { store } = slowLeases(() => (answers++ === 0 ? 50 : 0));
    expect(await boot(Short, {}, store)).toEqual([]);

    const quick = slowLeases(() => 0);
    expect(await boot(Short, {}, quick.store)).toEqual([]);
    expect(quick.asked()).toBe(1);
  });
});

describe('strict: true', () => {
  it('makes of all that the boot reports a failure that names it', async () => {
    const { store } = slowLeases(() => 50);
    jest
      .spyOn(store, 'check')
      .mockResolvedValue([{ problem: 'Wrong.', consequence: 'Bad.', fix: 'Do.' }] as never);
    const failed = boot(Constant, { strict: true, defaults: { ttlMs: 100 } }, store);
    await expect(failed).rejects.toThrow(FencingConfigError);
    const { message } = (await failed.catch((error: unknown) => error)) as Error;
    expect(message).toContain('FencingModule is strict, and found at boot:');
    for (const part of [
      '- Wrong. Bad. Do.',
      "- @Leased on Constant.rebuild: the key 'rebuild'",
      'ttlMs is 100',
    ]) {
      expect(message).toContain(part);
    }
  });

  it('boots where there is nothing to report', async () => {
    expect(await boot(Fine, { strict: true })).toEqual([]);
  });

  it('boots where the lease store is down: that is no mistake', async () => {
    const store = memoryLeases();
    jest.spyOn(store, 'check').mockRejectedValue(new StoreUnavailableError('lease store', 'down.'));
    expect(await boot(Constant, { strict: true }, store)).toEqual([
      expect.stringContaining('The application starts; calls that need a lease fail until it answers.'),
    ]);
  });

  it('is true or false', async () => {
    await expect(boot(Fine, { strict: 'yes' as never })).rejects.toThrow(
      "FencingModule: strict must be true or false, got 'yes'.",
    );
  });
});

it('a clock must be one', async () => {
  await expect(boot(Fine, { clock: Date as never })).rejects.toThrow(
    'FencingModule: clock must be a Clock (now, setTimer), got a function.',
  );
});
