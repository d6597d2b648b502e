import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { memoryLeases, type Lease } from 'nestjs-fencing';
import { Account, InvoiceRun, InvoicesCron, Leader, PriceImports, Transfers } from './readme/everyday.js';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { Gate } from './support/gate.js';

const read = (file: string) => readFileSync(new URL(`../${file}`, import.meta.url), 'utf8');

describe.each(['everyday', 'migrating'])('docs/%s.md', (page) => {
  const source = read(`test/readme/${page}.ts`);
  const shown = read(`docs/${page}.md`);
  const regions = [...source.matchAll(/\/\/ #region (\S+)\n([\s\S]*?)\n\/\/ #endregion/g)];

  it.each(regions.map(([, name, code]) => ({ name, code })))(
    'shows $name as it is compiled here',
    ({ code }) => {
      expect(shown).toContain('```ts\n' + code + '\n```');
    },
  );
});

class Led extends Leader {
  readonly leads = new Gate();
  readonly steps: string[] = [];

  protected override async lead(lease: Lease): Promise<void> {
    this.leads.open();
    await super.lead(lease);
    this.steps.push('ended');
  }
}

describe('the everyday recipes', () => {
  let app: FencedApp;

  beforeAll(async () => {
    app = await startFencedApp({
      entities: [Account, InvoiceRun],
      providers: [InvoicesCron, PriceImports, Transfers],
      leases: memoryLeases(),
    });
  });
  afterAll(() => app.close());

  it('cron: ten ticks of one month are one run, and none of them fails', async () => {
    const cron = app.get(InvoicesCron);
    const month = `2026-11 ${Date.now()}`;
    const ids = await Promise.all(Array.from({ length: 10 }, () => cron.run(month)));
    expect(ids.filter((id) => id !== undefined)).toHaveLength(1);
    // The key is kept for a minute more.
    expect(await cron.run(month)).toBeUndefined();
    expect(await app.dataSource.getRepository(InvoiceRun).countBy({ month })).toBe(1);
  });

  it('queue: a job that is delivered twice is stored once', async () => {
    const job = { id: `job ${Date.now()}`, data: { supplier: 'acme', prices: { nut: 3, bolt: 4 } } };
    const imports = app.get(PriceImports);
    expect(await Promise.all([imports.process(job), imports.process(job)])).toEqual([2, 2]);
    const operation = { id: `prices ${job.id}` };
    expect(await app.fencing.receipt(operation.id)).toMatchObject({ result: 2 });
  });

  it('accounts: transfers in both directions at once neither block each other nor make money', async () => {
    const accounts = app.dataSource.getRepository(Account);
    await accounts.save([
      { id: 'alice', cents: 500 },
      { id: 'bob', cents: 500 },
    ]);
    const transfers = app.get(Transfers);
    await Promise.all(
      Array.from({ length: 10 }, (_, i) =>
        i % 2 ? transfers.transfer('alice', 'bob', 30) : transfers.transfer('bob', 'alice', 10),
      ),
    );
    await expect(transfers.transfer('alice', 'bob', 10_000)).rejects.toThrow('has not enough');
    expect(await accounts.find({ order: { id: 'ASC' } })).toEqual([
      { id: 'alice', cents: 400 },
      { id: 'bob', cents: 600 },
    ]);
  });

  it('leader: one leads, until its lease ends; who asks meanwhile goes home', async () => {
    const stopping = await startFencedApp({
      fence: false,
      leases: memoryLeases(),
      providers: [Led],
      fencing: { drainMs: 50 },
    });
    const leader = stopping.get(Led);
    const campaign = leader.campaign();
    await leader.leads.wait();
    await leader.campaign();
    expect(leader.steps).toEqual([]);
    await stopping.close();
    await campaign;
    expect(leader.steps).toEqual(['ended']);
  });
});
