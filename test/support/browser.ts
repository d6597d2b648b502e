import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core';
import { findExecutable } from '../../scripts/services/folders.mjs';

const NAMES = ['chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable', 'chrome'];

/** A Chromium on this machine: `CHROMIUM`, or one on the PATH. */
export function findChromium(): string | undefined {
  if (process.env.CHROMIUM !== undefined) return process.env.CHROMIUM || undefined;
  return findExecutable(NAMES, []);
}

export const NO_CHROMIUM =
  'SKIPPED: no Chromium found. Set CHROMIUM to its path, or install it (apt-get install chromium).';

export function startBrowser(executablePath: string): Promise<Browser> {
  // The sandbox of Chromium does not start as root, as in most containers.
  const args = process.getuid?.() === 0 ? ['--no-sandbox'] : [];
  return chromium.launch({ executablePath, args, headless: true });
}

/** A page, and everything that went wrong in it or left it. */
export async function openPage(browser: Browser, options: BrowserContextOptions = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page: Page = await context.newPage();
  const problems: string[] = [];
  const requested: string[] = [];
  page.on('pageerror', (error) => problems.push(String(error)));
  page.on('console', (message) => {
    if (message.type() === 'error' || message.type() === 'warning') problems.push(message.text());
  });
  page.on('dialog', (dialog) => {
    problems.push(`a dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on('request', (request) => requested.push(request.url()));
  return { page, problems, requested, close: () => context.close() };
}
