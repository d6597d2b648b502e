import { existsSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, it } from '@jest/globals';

const root = fileURLToPath(new URL('..', import.meta.url));
const rows = [
  ...readFileSync(`${root}docs/field-reports.md`, 'utf8').matchAll(/^\| (R?\d+) \| .* \| .* \| (.*) \|$/gm),
].map(([, report, tests]) => ({ report: report!, tests: tests! }));
const fileOf = (name: string) =>
  [`${root}test/${name}.e2e-spec.ts`, `${root}test/${name}.spec.ts`].find((file) => existsSync(file));

it('docs/field-reports.md has a row for each report', () => {
  expect(rows.length).toBeGreaterThan(35);
});

it.each(rows)(
  'docs/field-reports.md: the tests of $report are there, by the words of their titles',
  ({ tests }) => {
    const named = [...tests.matchAll(/`([\w-]+)`((?:,? ?:? "[^"]+")*)/g)];
    if (tests.includes('scripts/')) return expect(existsSync(`${root}scripts/check-package.mjs`)).toBe(true);
    expect(named.length).toBeGreaterThan(0);
    for (const [, name, words] of named) {
      const file = fileOf(name!);
      expect([name, file === undefined]).toEqual([name, false]);
      const text = readFileSync(file!, 'utf8');
      for (const [, title] of words!.matchAll(/"([^"]+)"/g)) expect(text).toContain(title);
    }
  },
);
