import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Injectable } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import {
  FencedWrite,
  type FencingError,
  FencingEvents,
  FencingService,
  type Lease,
  Leased,
} from 'nestjs-fencing';
import { FencingTestingModule } from 'nestjs-fencing/testing';
import { of } from 'rxjs';
import { startFencedApp } from './support/fenced-app.js';
import { Gate } from './support/gate.js';

@Injectable()
class Orders {
  ran = 0;

  @Leased('order:{0}')
  async place(id: string, body: (orders: Orders, lease: Lease) => unknown): Promise<unknown> {
    return body(this, undefined as never);
  }

  @FencedWrite()
  async write(body: () => unknown = () => undefined): Promise<unknown> {
    this.ran++;
    return body();
  }

  @FencedWrite({ isolation: 'SERIALIZABLE' })
  async strictly(body: () => unknown = () => undefined): Promise<unknown> {
    return body();
  }
}

interface World {
  readonly fencing: FencingService;
  readonly orders: Orders;
  readonly events: FencingEvents;
  /** A name that no other scenario uses. */
  readonly id: string;
  once(id: string, payload: unknown, body?: () => unknown): Promise<unknown>;
}

/** What a call came to, without what differs by chance. */
async function told(call: () => unknown): Promise<unknown> {
  try {
    return { value: await call() };
  } catch (error) {
    const { name, code, message } = error as FencingError;
    return {
      name,
      code,
      message: message
        .replaceAll(/\d{10,}/g, '<generation>')

        .replaceAll(/\d+ ms/g, '<ms>'),
    };
  }
}

let next = 0;
/** What a test in memory is to show as real servers do. Each answers what its caller sees. */
const scenarios: Record<string, (world: World) => Promise<unknown>> = {
  'the next two senders of one that failed': async ({ fencing, id }) => {
    let ran = 0;
    const [inside, mayFail] = [new Gate(), new Gate()];
    const send = (key: string, body: () => Promise<unknown>, begun = new Gate()) => {
      const done = told(() =>
        fencing.run(key, {}, () => {
          begun.open();
          return fencing.write({ operation: { id } }, body);
        }),
      );
      return { begun, done };
    };
    const first = send(`${id}a`, async () => {
      inside.open();
      await mayFail.wait();
      throw new Error('no');
    });
    await inside.wait();
    const others = ['b', 'c'].map((key) => send(`${id}${key}`, async () => ++ran));
    for (const { begun } of others) await begun.wait();
    await new Promise((resolve) => setImmediate(resolve));
    mayFail.open();
    return [await first.done, await Promise.all(others.map(({ done }) => done)), ran];
  },
  'isolation inside a write of another': ({ orders, id }) =>
    told(() => orders.place(id, () => orders.write(() => orders.strictly(() => 'in')))),
  'isolation inside the same': ({ orders, id }) =>
    told(() =>
      orders.place(id, () => orders.strictly(() => orders.strictly(() => orders.write(() => 'in')))),
    ),
  'two senders of one operation at once': async ({ fencing, id }) => {
    let ran = 0;
    const send = (key: string) =>
      fencing.run(key, {}, () => fencing.write({ operation: { id } }, async () => ++ran));
    const results = await Promise.all([send(`${id}a`), send(`${id}b`), send(`${id}c`)]);
    return { results, ran };
  },
  'an operation inside itself': ({ orders, id, once }) => {
    let depth = 0;
    const again = (): unknown => (depth++ > 3 ? 'deep' : once(id, 1, again));
    return told(() => orders.place(id, async () => [await once(id, 1, again), depth]));
  },
  'one operation twice in one write': ({ orders, id, once }) =>
    told(() =>
      orders.place(id, () =>
        orders.write(async () => [await once(id, 1, () => 'a'), await once(id, 1, () => 'b'), orders.ran]),
      ),
    ),
  'one operation twice at once in one write': ({ orders, id, once }) => {
    let ran = 0;
    return told(() =>
      orders.place(id, () =>
        orders.write(async () => [
          await Promise.all([once(id, 1, () => ++ran), once(id, 1, () => ++ran)]),
          ran,
        ]),
      ),
    );
  },
  'its own receipt inside an operation': ({ orders, fencing, id, once }) =>
    told(() => orders.place(id, () => once(id, 1, async () => Boolean(await fencing.receipt(id))))),
  'an operation inside one that failed and was caught': async ({ orders, fencing, id, once }) => [
    await told(() =>
      orders.place(id, () =>
        orders.write(async () => {
          await told(() =>
            once(`${id}outer`, 1, async () => {
              await once(`${id}inner`, 1, () => 1);
              throw new Error('outer');
            }),
          );
          return 'went on';
        }),
      ),
    ),
    Boolean(await fencing.receipt(`${id}outer`)),
    Boolean(await fencing.receipt(`${id}inner`)),
  ],
  'another payload': async ({ orders, id, once }) => [
    await told(() => orders.place(id, () => once(id, 1))),
    await told(() => orders.place(id, () => once(id, 2))),
    await told(() => orders.place(id, () => once(id, 1))),
  ],
  'results that are no JSON': async ({ orders, id, once }) =>
    Promise.all(
      [
        new Date(),
        1n,
        Symbol('x'),
        NaN,
        new Map(),
        [undefined],
        '\0',
        '\ud800',
        () => 1,
        { a: new Set() },
      ].map((one, i) => told(() => orders.place(`${id}${i}`, () => once(`${id}${i}`, 1, () => one)))),
    ),
  'results that are': async ({ orders, id, once }) =>
    Promise.all(
      [
        undefined,
        null,
        0,
        '',
        'ä😀',
        { b: 1, a: undefined, '': [] },
        [[]],
        -0,
        1e300,
        { z: 1, aa: 2, b: 3 },
      ].map(async (one, i) => {
        const send = () => told(() => orders.place(`${id}${i}`, () => once(`${id}${i}`, 1, () => one)));
        return [await send(), await send()];
      }),
    ),
  'a stream from a write': ({ orders, id }) => told(() => orders.place(id, () => orders.write(() => of(1)))),
  'a lease inside a write': ({ orders, fencing, id }) =>
    told(() => orders.place(id, () => orders.write(() => fencing.run('other' + id, {}, () => 1)))),
  'the same key inside a write': ({ orders, fencing, id }) =>
    told(() => orders.place(id, () => orders.write(() => fencing.run(`order:${id}`, {}, () => 1)))),
  'a write without a lease': ({ orders }) => told(() => orders.write()),
  'after a revocation': async ({ orders, fencing, id }) => {
    const key = `order:${id}`;
    const first = await told(() =>
      orders.place(id, async () => {
        await fencing.revoke(key, { by: 'me', reason: 'why' });
        return orders.write();
      }),
    );
    return [first, await told(() => orders.place(id, () => orders.write(() => 'next'))), orders.ran];
  },
  'revoked while nobody holds it': async ({ fencing, id }) => {
    const revocation = await fencing.revoke(id);
    return { ...revocation, again: (await fencing.revoke(id))?.supersededGeneration };
  },
  'caught stale, and written again': ({ orders, fencing, id }) =>
    told(() =>
      orders.place(id, async () => {
        await fencing.revoke(`order:${id}`);
        return [await told(() => orders.write()), await told(() => orders.write())];
      }),
    ),
  skip: async ({ fencing, id }) => {
    await using lease = await fencing.acquire(id);
    return [await told(() => fencing.run(id, { waitMs: 0, onBusy: 'skip' }, () => 1)), lease.state];
  },
  busy: async ({ fencing, id }) => {
    await using lease = await fencing.acquire(id);
    return [await told(() => fencing.run(id, { waitMs: 0 }, () => 1)), lease.state];
  },
  'held at least': async ({ fencing, id }) => {
    await fencing.run(id, { holdAtLeastMs: 60_000 }, () => 1);
    const report = await fencing.inspect(id);
    return [
      await told(() => fencing.run(id, { waitMs: 0 }, () => 1)),
      Boolean(report.lease),
      (await fencing.revoke(id)) !== undefined,
      await told(() => fencing.run(id, { waitMs: 0 }, () => 2)),
    ];
  },
  'several keys': ({ fencing, id }) =>
    told(() =>
      fencing.run([`${id}b`, `${id}a`, `${id}b`], {}, async (...leases) => [
        leases.map(({ key }) => key.slice(id.length)),
        fencing.current()!.key.slice(id.length),
        await fencing.write({ operation: { id } }, async () => 1),
        (await fencing.receipt(id))!.key.slice(id.length),
      ]),
    ),
  'pruned inside a write': ({ orders, fencing, id }) =>
    told(() => orders.place(id, () => orders.write(() => fencing.pruneReceipts({ olderThanMs: 3_600_000 })))),
  'a write after its call': async ({ orders, id }) => {
    const gate = new Gate();
    let late: Promise<unknown> | undefined;
    await orders.place(id, () => {
      late = told(async () => {
        await gate.wait();
        return orders.write();
      });
    });
    gate.open();
    return late;
  },
  'a write inside a write that is over': async ({ orders, id }) => {
    const gate = new Gate();
    return told(() =>
      orders.place(id, async () => {
        let late: Promise<unknown> | undefined;
        await orders.write(() => {
          late = told(async () => {
            await gate.wait();
            return orders.write(() => 'late');
          });
        });
        gate.open();
        return late;
      }),
    );
  },
  events: async ({ orders, events, fencing, id, once }) => {
    const heard: string[] = [];
    const subscription = events.subscribe((event) => {
      if (!('key' in event) || String(event.key).includes(id)) heard.push(event.name);
    });
    await told(() => orders.place(id, () => orders.write()));
    await told(() => orders.place(id, () => once(id, 1)));
    await told(() => orders.place(id, () => once(id, 1)));
    await told(() => orders.place(id, () => once(id, 2)));
    await told(() => orders.place(id, () => orders.write(() => once(`${id}n`, 1))));
    await told(() => orders.place(id, () => orders.write(() => once(id, 1))));
    await told(() =>
      orders.place(id, async () => {
        await fencing.revoke(`order:${id}`);
        await orders.write();
      }),
    );
    subscription.unsubscribe();
    return heard;
  },
  'accepted writes that a loss tells': async ({ orders, fencing, id }) => {
    try {
      await orders.place(id, async () => {
        await orders.write();
        await orders.write(() => orders.write());
        await fencing.revoke(`order:${id}`);
        await told(() => orders.write());
        return 'mine';
      });
    } catch (error) {
      const { acceptedWrites, outcome, reason, code } = error as Record<string, unknown>;
      return { acceptedWrites, outcome, reason, code };
    }
    return undefined;
  },
};

describe('FencingTestingModule behaves as real servers do', () => {
  const worlds: { memory?: Omit<World, 'id' | 'once'>; real?: Omit<World, 'id' | 'once'> } = {};
  const closing: (() => Promise<unknown>)[] = [];
  beforeAll(async () => {
    const module = await Test.createTestingModule({
      imports: [FencingTestingModule.forRoot({ manager: {} })],
      providers: [Orders],
    }).compile();
    await module.init();
    const app = await startFencedApp({ providers: [Orders] });
    closing.push(
      () => module.close(),
      () => app.close(),
    );
    worlds.memory = {
      fencing: module.get(FencingService),
      orders: module.get(Orders),
      events: module.get(FencingEvents),
    };
    worlds.real = { fencing: app.fencing, orders: app.get(Orders), events: app.get(FencingEvents) };
  });
  afterAll(async () => {
    for (const close of closing) await close();
  });

  it.each(Object.keys(scenarios))('%s', async (name) => {
    const outcome = async (world: Omit<World, 'id' | 'once'>) => {
      world.orders.ran = 0;
      const once: World['once'] = (id, payload, body) =>
        world.fencing.write({ operation: { id, payload } }, () => body?.());
      const result = await scenarios[name]!({ ...world, once, id: `parity${next}` });
      return JSON.parse(JSON.stringify(result ?? null).replaceAll(/\d{12,}/g, '1'));
    };
    next++;
    const real = await outcome(worlds.real!);
    const memory = await outcome(worlds.memory!);
    expect(memory).toEqual(real);
  });
});
