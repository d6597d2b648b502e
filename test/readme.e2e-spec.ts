import { readFileSync } from 'node:fs';
import { jest } from '@jest/globals';
import { Test } from '@nestjs/testing';
import * as fencing from 'nestjs-fencing';
import { FencingService } from 'nestjs-fencing';
import { DataSource } from 'typeorm';
import { resolveLeaseOptions } from '../libs/fencing/src/core/options.js';
import { startFencedApp } from './support/fenced-app.js';
import { Gate } from './support/gate.js';
import { freshDatabase } from './support/postgres-server.js';

jest.setTimeout(60_000);

const root = new URL('../', import.meta.url);
const readme = readFileSync(new URL('README.md', root), 'utf8');
const region = (file: string): string => {
  const text = readFileSync(new URL(`test/readme/${file}`, root), 'utf8');
  return /\/\/ #region .*\n([\s\S]*?)\n\/\/ #endregion/.exec(text)![1]!;
};
/** The rows of the table under a heading, as lists of cells. */
const table = (heading: string): string[][] => {
  const section = readme.split(/^#+ /m).find((part) => part.startsWith(heading))!;
  const rows = section.split('\n').filter((line) => line.startsWith('|'));
  return rows.slice(2).map((row) =>
    row
      .split('|')
      .slice(1, -1)
      .map((cell) => cell.trim()),
  );
};
const code = (cell: string) => /`([^`]+)`/.exec(cell)![1]!;

describe('the README', () => {
  it('shows its example as it is compiled and run here', () => {
    expect(readme).toContain('```ts\n' + region('quick-start.ts') + '\n```');
  });

  it('lists every lease option, with its default, and no other', () => {
    const defaults = Object.entries(resolveLeaseOptions('test'));
    const inCode = defaults
      .map(([name, value]) => `${name} ${typeof value === 'string' ? `'${value}'` : String(value)}`)
      .sort();
    const listed = table('Lease options')
      .map(([name, value]) => `${code(name!)} ${code(value!).replaceAll('_', '')}`)
      .sort();
    expect(listed).toEqual(inCode);
  });
});

describe('the first example', () => {
  it('runs: a rebuild publishes, and one that was superseded does not', async () => {
    const database = await freshDatabase();
    const shared = process.env.DATABASE_URL;
    process.env.DATABASE_URL = database.url;
    const { AppModule, Report, ReportsService } = await import('./readme/quick-start.js');
    const module = await Test.createTestingModule({ imports: [AppModule] }).compile();
    await module.init();
    try {
      const reports = module.get(ReportsService);
      const rows = () => module.get(DataSource).getRepository(Report).find();
      await reports.rebuild('alice');
      expect(await rows()).toEqual([{ customerId: 'alice', total: 5 }]);

      const [reading, mayGoOn] = [new Gate(), new Gate()];
      reports.readLedger = async () => {
        reading.open();
        await mayGoOn.wait();
        return 666;
      };
      const slow = reports.rebuild('alice');
      await reading.wait();
      await module.get(FencingService).revoke('report:alice');
      mayGoOn.open();
      await expect(slow).rejects.toThrow(fencing.StaleGenerationError);
      expect(await rows()).toEqual([{ customerId: 'alice', total: 5 }]);
    } finally {
      await module.close();
      process.env.DATABASE_URL = shared;
      await database.drop();
    }
  });
});

describe('the same without decorators', () => {
  it('is shown by docs/everyday.md as it is compiled here', () => {
    const page = readFileSync(new URL('docs/everyday.md', root), 'utf8');
    expect(page).toContain('```ts\n' + region('functions.ts') + '\n```');
  });

  it('runs: counts, tells busy and superseded apart', async () => {
    const { StockService } = await import('./readme/functions.js');
    const app = await startFencedApp({ providers: [StockService] });
    try {
      await app.dataSource.query('CREATE TABLE stock (sku text PRIMARY KEY, count integer NOT NULL)');
      const stock = app.get(StockService);
      await expect(stock.recount('a', async () => 7)).resolves.toBe('counted');
      await expect(
        stock.recount('a', async () => ((await stock.recount('a', async () => 1)) === 'counted' ? 8 : 9)),
      ).resolves.toBe('counted');
      const other = app.fencing.run('stock:a', {}, async () => {
        // Out of the lease's own call chain, as another request would be.
        await expect(runOutside(() => stock.recount('a', async () => 1))).resolves.toBe('busy');
      });
      await other;
      await expect(
        stock.recount('a', async () => {
          await runOutside(() => app.fencing.revoke('stock:a'));
          return 666;
        }),
      ).resolves.toBe('superseded');
      expect(await app.dataSource.query('SELECT * FROM stock')).toEqual([{ sku: 'a', count: 8 }]);
    } finally {
      await app.dataSource.query('DROP TABLE IF EXISTS stock');
      await app.close();
    }
  });
});

/** Runs `work` without the caller's lease. */
function runOutside<T>(work: () => T): T {
  return outside(work) as T;
}
const { AsyncLocalStorage } = await import('node:async_hooks');
const outside = AsyncLocalStorage.snapshot() as (work: () => unknown) => unknown;
