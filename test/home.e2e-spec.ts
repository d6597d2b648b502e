import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { jest } from '@jest/globals';
import type { INestApplication } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { DataSource } from 'typeorm';
import type { RunRecord, Step } from '../src/home/exercise-record.js';
import { structureOf } from '../scripts/pictures/structure.mjs';
import { findChromium, NO_CHROMIUM, openPage, startBrowser } from './support/browser.js';
import { freshDatabase } from './support/postgres-server.js';
import { readEvents } from './support/read-events.js';

const pictured = JSON.parse(
  readFileSync(new URL('../docs/pictures/structure.json', import.meta.url), 'utf8'),
) as Record<'board' | 'home', string[]>;

jest.setTimeout(180_000);

const chromium = findChromium();
if (!chromium) console.warn(NO_CHROMIUM);
const inBrowser = chromium ? it : it.skip;

describe('the home page of the reference app', () => {
  const { DATABASE_URL } = process.env;
  let database: Awaited<ReturnType<typeof freshDatabase>>;
  let app: INestApplication;
  let url: string;

  beforeAll(async () => {
    database = await freshDatabase();
    process.env.DATABASE_URL = database.url;
    const { AppModule } = await import('../src/app.module.js');
    const { WORKER } = await import('../src/home/exercise.js');
    const module = await Test.createTestingModule({ imports: [AppModule] })
      .overrideProvider(WORKER)
      .useValue({
        file: fileURLToPath(new URL('../src/home/exercise.worker.ts', import.meta.url)),
        execArgv: [
          '--enable-source-maps',
          '--import',
          new URL('support/swc-loader.mjs', import.meta.url).href,
        ],
      })
      .compile();
    app = module.createNestApplication({ logger: false });
    await app.listen(0, '127.0.0.1');
    url = await app.getUrl();
  });
  afterAll(async () => {
    await app.close();
    process.env.DATABASE_URL = DATABASE_URL;
    await database.drop();
  });

  const rowsLeft = () =>
    app
      .get(DataSource)
      .query(
        `SELECT customer_id FROM ledger_entry WHERE customer_id LIKE 'exercise%' UNION SELECT customer_id FROM report WHERE customer_id LIKE 'exercise%'`,
      );

  it('begins no run for a page elsewhere, which cannot send its header', async () => {
    expect((await fetch(`${url}/exercise`, { method: 'POST' })).status).toBe(403);
    const stream = await readEvents(`${url}/exercise/events`);
    expect(await stream.next()).toMatchObject({ state: 'idle', steps: [] });
    stream.close();
  });

  it('runs the exercise with real processes: the lock loses the newer report, the fence keeps it', async () => {
    const stream = await readEvents(`${url}/exercise/events`);
    const asked = await Promise.all(
      [1, 2, 3].map(() => fetch(`${url}/exercise`, { method: 'POST', headers: { 'x-exercise': '1' } })),
    );
    expect(asked.map(({ status }) => status)).toEqual([202, 202, 202]);
    let record: RunRecord;
    do record = (await stream.next()) as RunRecord;
    while (record.state !== 'done' && record.state !== 'failed');
    stream.close();
    expect(record).toMatchObject({ state: 'done' });

    const step = (kind: Step['kind'], side?: Step['side'], who?: Step['who']) => {
      const found = record.steps.filter((one) => one.kind === kind && one.side === side && one.who === who);
      expect({ kind, side, who, times: found.length }).toEqual({ kind, side, who, times: 1 });
      return found[0]!;
    };
    const three = { entries: 3, totalCents: '600' };
    const four = { entries: 4, totalCents: '1000' };
    for (const side of ['lock', 'fence'] as const) {
      expect(step('granted', side, 'B').generation).toBeGreaterThan(step('granted', side, 'A').generation!);
      expect(step('read', side, 'A').figures).toEqual(three);
      expect(step('wrote', side, 'B').figures).toEqual(four);
      expect(step('stopped', undefined, 'A').atMs).toBeLessThan(step('granted', side, 'B').atMs);
      expect(step('wrote', side, 'B').atMs).toBeLessThanOrEqual(step('resumed', undefined, 'A').atMs);
    }
    step('wrote', 'lock', 'A');
    expect(step('found', 'lock')).toMatchObject({
      figures: three,
      generation: step('granted', 'lock', 'A').generation,
    });
    expect(step('refused', 'fence', 'A').code).toBe('STALE_GENERATION');
    expect(step('found', 'fence')).toMatchObject({
      figures: four,
      generation: step('granted', 'fence', 'B').generation,
    });
    expect(await rowsLeft()).toEqual([]);

    // The board shows what happened in the workers.
    const view = (await (await fetch(`${url}/fencing/api/view?key=report:exercise-with-fence`)).json()) as {
      key: { tracks: { generation: number; refused: number; accepted: number }[] };
      refusals: { code: string; cause: { generation: number } }[];
    };
    expect(view.key.tracks).toMatchObject([
      { generation: step('granted', 'fence', 'A').generation, accepted: 0, refused: 1 },
      { generation: step('granted', 'fence', 'B').generation, accepted: 1, refused: 0 },
    ]);
    expect(view.refusals[0]).toMatchObject({
      code: 'STALE_GENERATION',
      cause: { generation: step('granted', 'fence', 'B').generation },
    });
  });

  inBrowser('draws both time lines, with and without the fence, and says what came of it', async () => {
    const browser = await startBrowser(chromium!);
    try {
      const { page, problems, requested } = await openPage(browser);
      await page.goto(url);
      const again = page.getByRole('button', { name: 'Run it again' });
      await again.click();
      await page.getByText('starting two worker processes …').waitFor();
      await page.getByText('done', { exact: true }).waitFor({ timeout: 120_000 });
      await page.getByRole('heading', { level: 1, name: 'A stale worker must not win' }).waitFor();
      const lanes = (side: string) =>
        page
          .locator(`#line-${side} .lane`)
          .evaluateAll(
            (groups: { querySelectorAll(s: string): Iterable<{ getAttribute(n: string): string }> }[]) =>
              groups.map((group) =>
                [...group.querySelectorAll('.sign, .halt')].map((one) => one.getAttribute('class')),
              ),
          );
      expect(await lanes('lock')).toEqual([
        ['halt', 'sign activated', 'sign overwrote'],
        ['sign activated', 'sign accepted'],
      ]);
      expect(await lanes('fence')).toEqual([
        ['halt', 'sign activated', 'sign stale'],
        ['sign activated', 'sign accepted'],
      ]);
      expect(await page.locator('#line-fence .because').count()).toBe(1);
      expect(await page.locator('#outcome-lock').textContent()).toBe(
        'A overwrote B. The report is 3 entries, 6.00: the fourth entry is lost, and nobody was told.',
      );
      expect(await page.locator('#outcome-fence').textContent()).toBe(
        'PostgreSQL refused A (STALE_GENERATION). The report is B’s: 4 entries, 10.00.',
      );
      // Else the pictures in docs/ show something else: npm run pictures.
      expect(await structureOf(page)).toEqual(pictured.home);
      expect(await page.getByRole('img').count()).toBe(2);
      await page.getByRole('link', { name: 'See it on the board' }).click();
      await page.locator('.timeline .sign.stale').first().waitFor();
      expect(problems).toEqual([]);
      expect(requested.filter((one) => !one.startsWith(url) && one !== 'data:,')).toEqual([]);
    } finally {
      await browser.close();
    }
    expect(await rowsLeft()).toEqual([]);
  });
});
