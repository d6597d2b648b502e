import { readFileSync } from 'node:fs';
import { jest } from '@jest/globals';
import type { AcquiredLease } from 'nestjs-fencing';
import type { Browser, Page } from 'playwright-core';
import {
  type BoardApp,
  type BoardAppOptions,
  StaffGuard,
  StaffModule,
  startBoardApp,
} from './support/board-app.js';
import { structureOf } from '../scripts/pictures/structure.mjs';
import { findChromium, NO_CHROMIUM, openPage, startBrowser } from './support/browser.js';
import { eventually } from './support/gate.js';

const pictured = JSON.parse(
  readFileSync(new URL('../docs/pictures/structure.json', import.meta.url), 'utf8'),
) as Record<'board' | 'home', string[]>;

jest.setTimeout(120_000);

const chromium = findChromium();
if (!chromium) console.warn(NO_CHROMIUM);
const inBrowser = chromium ? describe : describe.skip;

inBrowser('the page of the board', () => {
  let browser: Browser;
  const open: { close(): Promise<void> }[] = [];

  beforeAll(async () => {
    browser = await startBrowser(chromium!);
  });
  afterAll(() => browser.close());
  afterEach(async () => {
    for (const one of open.splice(0).reverse()) await one.close();
  });

  const start = async (options?: BoardAppOptions): Promise<BoardApp> => {
    const app = await startBoardApp(options);
    open.push(app);
    return app;
  };
  const visit = async (url: string, options?: Parameters<typeof openPage>[1]) => {
    const opened = await openPage(browser, options);
    open.push(opened);
    await opened.page.goto(url);
    return opened;
  };
  const write = (app: BoardApp, lease: AcquiredLease) =>
    lease.run(() =>
      app.fencing.write({}, async (manager: { query(sql: string): Promise<unknown> }) =>
        manager.query('SELECT 1'),
      ),
    );
  const rowOf = (page: Page, key: string) =>
    page
      .getByRole('table', { name: /^Leases held/ })
      .getByRole('row')
      .filter({ hasText: key });
  const keysOf = (page: Page) => page.locator('#leases tr td:first-child').allTextContents();

  it('shows leases and refused writes as they come and go, and asks nothing of another origin', async () => {
    const app = await start();
    const { page, problems, requested } = await visit(`${app.url}/fencing`);
    await page.getByText('This process holds no lease now.').waitFor();
    const lease = await app.fencing.acquire('report:42');
    await rowOf(page, 'report:42').waitFor();
    await write(app, lease);
    await rowOf(page, 'report:42').getByRole('cell', { name: '1', exact: true }).waitFor();

    await page.getByRole('button', { name: 'report:42' }).click();
    await page.locator('.timeline .bar.live').waitFor();
    await page.locator('.timeline .sign.accepted').waitFor();
    await app.fencing.revoke('report:42');
    await expect(write(app, lease)).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    const refused = page.getByRole('table', { name: 'Refused writes, newest first' }).getByRole('row').nth(1);
    await refused.getByText('STALE_GENERATION').waitFor();
    await refused.getByText(String(lease.generation)).waitFor();
    await page.locator('.timeline .sign.stale').waitFor();

    lease.release();
    await rowOf(page, 'report:42').waitFor({ state: 'detached' });
    expect(problems).toEqual([]);
    expect(requested.length).toBeGreaterThan(1);
    expect(requested.filter((url) => !url.startsWith(`${app.url}/fencing`) && url !== 'data:,')).toEqual([]);
  });

  it('shows a hostile key as the text that it is, wherever it appears', async () => {
    const app = await start();
    const hostile = '</title></script><script>alert(1)</script><img src=x onerror=alert(2)>';
    const lease = await app.fencing.acquire(hostile);
    const { page, problems } = await visit(`${app.url}/fencing#key=${encodeURIComponent(hostile)}`);
    await page.locator('.timeline .bar').waitFor();
    expect(await page.locator('#key').textContent()).toBe(hostile);
    expect(await keysOf(page)).toEqual([hostile]);
    await page.getByRole('button', { name: 'Revoke …' }).click();
    expect(await page.locator('#revoke-key').textContent()).toBe(hostile);
    await page.getByLabel('Reason, kept in the audit').fill('<img src=x onerror=alert(3)>');
    await page.getByRole('button', { name: 'Revoke', exact: true }).click();
    await page.getByRole('status').filter({ hasText: 'The key was revoked' }).waitFor();
    await expect(write(app, lease)).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    await page
      .getByRole('cell', { name: 'revoked by the fencing board: <img src=x onerror=alert(3)>' })
      .waitFor();
    expect(await page.locator('img, script:not(:last-child)').count()).toBe(0);
    expect(await page.title()).toBe('Fencing board');
    expect(problems).toEqual([]);
    lease.release();
  });

  it('is used by keyboard alone: search, look, revoke, with the focus to be seen', async () => {
    const app = await start();
    const lease = await app.fencing.acquire('by-keyboard');
    const bystander = await app.fencing.acquire('other');
    const { page, problems } = await visit(`${app.url}/fencing`);
    await rowOf(page, 'by-keyboard').waitFor();
    const press = async (...keys: string[]) => {
      for (const key of keys) await page.keyboard.press(key);
    };
    const focused = () => page.evaluate('document.activeElement.id || document.activeElement.dataset.key');
    await press('Tab', 'Enter');
    expect(await focused()).toBe('search');
    expect(await page.evaluate('getComputedStyle(document.activeElement).outlineStyle')).toBe('solid');
    await page.keyboard.type('KEYBOARD');
    await rowOf(page, 'other').waitFor({ state: 'detached' });
    await press('Tab', 'Tab', 'Tab');
    expect(await focused()).toBe('by-keyboard');
    await press('Enter');
    await eventually(async () => (await focused()) === 'key');
    await press('Tab');
    expect(await focused()).toBe('revoke');
    await press('Enter');
    expect(await focused()).toBe('reason');
    // Without a reason nothing happens, and Escape leaves everything as it was.
    await press('Enter');
    expect(await page.locator('#dialog').isVisible()).toBe(true);
    await press('Escape');
    expect(await page.locator('#dialog').isVisible()).toBe(false);
    expect((await app.fencing.inspect('by-keyboard')).lease?.owner).toBe(lease.owner);
    await press('Enter');
    await page.keyboard.type('stuck');
    await press('Enter');
    await page.getByRole('status').filter({ hasText: 'The key was revoked' }).waitFor();
    expect((await app.fencing.inspect('by-keyboard')).lease).toBeUndefined();
    expect((await app.fencing.inspect('other')).lease?.owner).toBe(bystander.owner);
    expect(problems).toEqual([]);
    lease.release();
    bystander.release();
  });

  it('is told apart by a screen reader: headings, tables with headers, controls with names', async () => {
    const app = await start();
    const lease = await app.fencing.acquire('read-aloud');
    await write(app, lease);
    const { page } = await visit(`${app.url}/fencing#key=read-aloud`);
    await page.locator('.timeline .bar').waitFor();
    await page.getByText('The same as a table').click();
    await page.getByRole('cell', { name: 'write accepted' }).waitFor();
    // Else the pictures in docs/ show something else: npm run pictures.
    expect(await structureOf(page)).toEqual(pictured.board);
    const tree = await page.locator('body').ariaSnapshot();
    for (const part of [
      '- heading "Fencing board" [level=1]',
      '- heading "read-aloud" [level=2]',
      '- button "Revoke …"',
      '- searchbox "Search keys"',
      '- combobox "Show"',
      'table "Leases held by this process: 1"',
      '- columnheader "generation"',
    ])
      expect(tree).toContain(part);
    expect(tree).toMatch(/img "1 grants and revocations since .*, 0 refused writes/);
    const unnamed = await page.evaluate(
      `[...document.querySelectorAll('button, input, select')].filter((one) => !one.textContent.trim() && !one.labels?.length).length`,
    );
    expect(unnamed).toBe(0);
    expect(await page.locator('th:not([scope])').count()).toBe(0);
    // What is said unasked is little: the connection, and what came of a revocation.
    expect(await page.locator('[aria-live], [role=status], [role=alert]').count()).toBe(3);
    lease.release();
  });

  it.each(['light', 'dark'] as const)('is legible in %s, and fits a narrow window', async (colorScheme) => {
    const app = await start();
    const lease = await app.fencing.acquire('legible');
    const { page } = await visit(`${app.url}/fencing`, {
      colorScheme,
      viewport: { width: 400, height: 800 },
    });
    await rowOf(page, 'legible').waitFor();
    const contrasts = await page.evaluate<[string, number][]>(CONTRASTS);
    expect(contrasts.length).toBeGreaterThan(10);
    expect(contrasts.filter(([, contrast]) => contrast < 4.5)).toEqual([]);
    const ground = await page.evaluate<number>(
      `${LUMINANCE}(getComputedStyle(document.body).backgroundColor)`,
    );
    if (colorScheme === 'dark') expect(ground).toBeLessThan(0.05);
    else expect(ground).toBeGreaterThan(0.8);
    expect(await page.evaluate('document.documentElement.scrollWidth')).toBe(400);
    lease.release();
  });

  it('shows 10 000 leases with no more to send than for 25, in no more than 60 rows, and finds one of them', async () => {
    const app = await start({ memory: true });
    const leases: AcquiredLease[] = [];
    const hold = async (count: number) => {
      while (leases.length < count) leases.push(await app.fencing.acquire(`many:${leases.length}`));
    };
    const sent = async () => (await (await fetch(`${app.url}/fencing/api/view`)).text()).length;
    await hold(25);
    const few = await sent();
    await hold(10_000);
    expect(await sent()).toBeLessThan(1.1 * few);
    const { page } = await visit(`${app.url}/fencing`);
    await page.getByText('Leases held by this process: 10,000').waitFor();
    expect(await page.locator('#leases tr').count()).toBe(25);
    expect(await page.locator('tr').count()).toBeLessThanOrEqual(60);
    await page.getByRole('button', { name: 'Next' }).click();
    await rowOf(page, 'many:49').waitFor();
    await page.getByRole('searchbox').fill('MANY:9876');
    await eventually(async () => (await keysOf(page)).join() === 'many:9876');
    await page.getByText('Leases held by this process: 1 of 10,000').waitFor();
    expect(await page.locator('tr').count()).toBeLessThanOrEqual(60);
    for (const lease of leases) lease.release();
  });

  it('says so when the application is gone, and goes on when it is back', async () => {
    const app = await startBoardApp({ memory: true });
    const { page } = await visit(`${app.url}/fencing`);
    await page.getByText('live', { exact: true }).waitFor();
    await app.close();
    await page.getByText('not connected, trying again').waitFor();
  });

  it('is not there for somebody whom the guard does not let in', async () => {
    const app = await start({ board: { guard: StaffGuard, imports: [StaffModule] } });
    const lease = await app.fencing.acquire('private');
    const { page } = await visit(`${app.url}/fencing#key=private`);
    const text = await page.locator('body').textContent();
    expect(text).toContain('"statusCode":403');
    expect(text).not.toContain('private');
    expect(await page.locator('script, table, button').count()).toBe(0);
    const staff = await visit(`${app.url}/fencing`, { extraHTTPHeaders: { 'x-password': 'secret' } });
    await rowOf(staff.page, 'private').waitFor();
    lease.release();
  });
});

/** As WCAG counts it. */
const LUMINANCE = `((colour) => {
  const [r, g, b] = colour.match(/[\\d.]+/g).map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
})`;
/** The contrast of every text that is to be seen, to what is behind it. */
const CONTRASTS = `(() => {
  const luminance = ${LUMINANCE};
  const behind = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return luminance(colour);
    }
    return 1;
  };
  const texts = [...document.querySelectorAll('body *:not(script, svg, svg *)')].filter((node) =>
    node.getClientRects().length > 0 && !node.closest(':disabled') && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()));
  return texts.map((node) => {
    const [high, low] = [luminance(getComputedStyle(node).color), behind(node)].sort((a, b) => b - a);
    return [node.textContent.trim(), (high + 0.05) / (low + 0.05)];
  });
})()`;
