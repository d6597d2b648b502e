/**
 * What a page is made of, without what changes from visit to visit: the pictures of it in docs/ are out of date when this changes.
 * @param {{ evaluate(expression: string): Promise<unknown> }} page of Playwright
 * @returns {Promise<string[]>}
 */
export async function structureOf(page) {
  const lines = await page.evaluate(STRUCTURE);
  return /** @type {string[]} */ (lines);
}

const STRUCTURE = `[...document.querySelectorAll('h1, h2:not(.mono), button, label, th, caption, dt, summary, .legend li, .figures li')]
  .filter((one) => !one.closest('tbody'))
  .map((one) => one.localName + ': ' + [...one.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data).join('').trim())
  .filter((line) => !line.endsWith(': '))`;
