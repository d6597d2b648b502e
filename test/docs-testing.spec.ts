import { readFileSync } from 'node:fs';
import { describe, expect, it } from '@jest/globals';
import { FencingFaults } from 'nestjs-fencing/testing';

const read = (file: string) => readFileSync(new URL(`../${file}`, import.meta.url), 'utf8');
const page = read('docs/testing.md');

describe('docs/testing.md', () => {
  it('shows the unit test as it is compiled and run in test/readme/testing.spec.ts', () => {
    const [, region] = /\/\/ #region .*\n([\s\S]*?)\n\/\/ #endregion/.exec(
      read('test/readme/testing.spec.ts'),
    )!;
    expect(page).toContain('```ts\n' + region + '\n```');
  });

  it('is about the service that the README shows', () => {
    const [, shown] = /@Injectable\(\)\nexport (class ReportsService \{[\s\S]*?\n\})/.exec(
      read('README.md'),
    )!;
    const [, tested] = /export (class ReportsService \{[\s\S]*?\n\})/.exec(read('test/readme/reports.ts'))!;
    const withoutComments = (text: string) => text.replaceAll(/ \/\/ .*/g, '');
    expect(withoutComments(tested!)).toBe(withoutComments(shown!));
  });

  it('lists every fault, and no other', () => {
    const inCode = Object.getOwnPropertyNames(FencingFaults.prototype).filter(
      (name) => !['constructor', 'end', 'runOut'].includes(name),
    );
    const listed = [...page.matchAll(/^\| (`\w+\([^|]*`) \|/gm)].flatMap(([, cell]) =>
      [...cell!.matchAll(/`(\w+)\(/g)].map(([, name]) => name),
    );
    expect(listed.sort()).toEqual(inCode.sort());
  });
});
