// How the rows are shown: a Markdown table, for people and for docs/performance.md.
import { readFileSync, writeFileSync } from 'node:fs';
import { short } from './stats.mjs';

/** @typedef {import('./rows.mjs').Row} Row */

const BEGIN = '<!-- bench: begin (npm run bench -- --docs) -->';
const END = '<!-- bench: end -->';

/** @param {readonly Row[]} rows */
export function table(rows) {
  const lines = rows.map(({ id, title, unit, ours, reference, referenceName, ratio, spread, target, ok }) => [
    `${title} (\`${id}\`)`,
    `${short(ours)} ${unit}`,
    reference === null ? '' : `${short(reference)} (${referenceName})`,
    ratio === null || !Number.isFinite(ratio)
      ? ''
      : `${times(ratio)} ×${spread ? ` (${times(spread[0])} to ${times(spread[1])})` : ''}`,
    target ?? '',
    target === null ? '' : ok ? 'yes' : '**no**',
  ]);
  const head = ['measure', 'ours', 'reference', 'ratio (quartiles)', 'target', 'reached'];
  return [head, head.map(() => '---'), ...lines].map((cells) => `| ${cells.join(' | ')} |`).join('\n');
}

/**
 * Puts the table between the marks of a page.
 * @param {string} file
 * @param {readonly Row[]} rows
 * @param {string} about how and where it was measured
 */
export function writeIntoPage(file, rows, about) {
  const page = readFileSync(file, 'utf8');
  const [before, rest] = page.split(BEGIN);
  const after = rest?.split(END)[1];
  if (after === undefined) throw new Error(`${file} has no "${BEGIN}" … "${END}".`);
  writeFileSync(file, `${before}${BEGIN}\n\n${about}\n\n${table(rows)}\n\n${END}${after}`);
}

/** Far below one as a fraction, so that it can be read. @param {number} ratio */
const times = (ratio) => (ratio > 0 && ratio < 0.02 ? `1/${short(Math.round(1 / ratio))}` : short(ratio));

/** What a program reads. @param {readonly Row[]} rows */
export function machineReadable(rows) {
  return rows.map(({ id, ours, reference, referenceName, ratio, target, ok, spread }) => ({
    id,
    ours,
    reference,
    referenceName,
    ratio: ratio === null || !Number.isFinite(ratio) ? null : ratio,
    target,
    ok,
    spread,
  }));
}
