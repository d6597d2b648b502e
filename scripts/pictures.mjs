// npm run pictures: takes the pictures in docs/pictures of the reference app that `npm start` runs, and notes what the
// pages were made of then (structure.json), which a test compares. Needs a Chromium: CHROMIUM, or one on the PATH.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { chromium } from 'playwright-core';
import { structureOf } from './pictures/structure.mjs';
import { endServersOnSignals, projectRoot, startPostgres, startRedis } from './services.mjs';

/** All pictures together: they are read by everybody who clones the repository. */
const LARGEST_BYTES = 150_000;
const folder = path.join(projectRoot, 'docs', 'pictures');

endServersOnSignals();
// Servers of its own: what somebody has done with `npm start` is in no picture.
const [postgres, redis] = await Promise.all([startPostgres(), startRedis()]);
// Its reports take long, so that the board has leases to show.
const app = spawn(process.execPath, ['scripts/start.mjs'], {
  cwd: projectRoot,
  env: {
    ...process.env,
    DATABASE_URL: postgres.url,
    REDIS_URL: redis.url,
    PORT: '0',
    REBUILD_PAGE_MS: '8000',
    NO_COLOR: '1',
  },
  stdio: ['ignore', 'pipe', 'inherit'],
});
const url = await new Promise((resolve, reject) => {
  app.once('exit', (code) => reject(new Error(`The reference app ended with ${code}.`)));
  createInterface({ input: app.stdout }).on('line', (line) => {
    const [found] = /http:\/\/[\d.]+:\d+/.exec(line.includes('Listening on') ? line : '') ?? [];
    if (found) resolve(found);
  });
});

const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
const browser = await chromium.launch({
  executablePath,
  args: process.getuid?.() === 0 ? ['--no-sandbox'] : [],
});
try {
  mkdirSync(folder, { recursive: true });
  /** @type {Record<string, string[]>} */
  const structure = {};
  const page = await browser.newPage({ colorScheme: 'light', viewport: { width: 960, height: 800 } });
  await page.goto(url);
  await page.getByText('done', { exact: true }).waitFor({ timeout: 120_000 });
  structure.home = await structureOf(page);
  await take(page, 'drill', '.sides', '.legend');
  for (const customer of ['alice', 'bob'])
    void page.request.post(`${url}/reports/${customer}/rebuild`).catch(() => undefined);
  await page.goto(`${url}/fencing#key=report%3Aexercise-with-fence`);
  await page.locator('.timeline .sign.stale').first().waitFor();
  await page.getByRole('button', { name: 'report:bob' }).first().waitFor();
  structure.board = await structureOf(page);
  await take(page, 'board', '.top', '#leases');
  writeFileSync(path.join(folder, 'structure.json'), `${JSON.stringify(structure, undefined, 2)}\n`);
} finally {
  await browser.close();
  app.kill('SIGTERM');
  await once(app, 'exit');
  await Promise.all([postgres.stop(), redis.stop()]);
}

const pictures = ['drill', 'board'].map((name) => path.join(folder, `${name}.png`));
const bytes = pictures.reduce((sum, file) => sum + statSync(file).size, 0);
console.log(`${pictures.length} pictures, ${bytes} bytes`);
if (bytes > LARGEST_BYTES) throw new Error(`The pictures have ${bytes} bytes, more than ${LARGEST_BYTES}.`);

/**
 * Takes the part of a page from one element to another.
 * @param {import('playwright-core').Page} page @param {string} name @param {string} first @param {string} last
 */
async function take(page, name, first, last) {
  const [from, to] = await Promise.all([first, last].map((one) => page.locator(one).boundingBox()));
  if (!from || !to) throw new Error('The page is not what it was.');
  const y = Math.max(0, from.y - 10);
  const clip = { x: 8, y, width: 944, height: to.y + to.height + 10 - y };
  await page.screenshot({ path: path.join(folder, `${name}.png`), fullPage: true, clip });
}
