import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from '@jest/globals';
import * as fencing from 'nestjs-fencing';
import { FencingError } from 'nestjs-fencing';

const root = fileURLToPath(new URL('..', import.meta.url));
const page = readFileSync(`${root}docs/troubleshooting.md`, 'utf8');
const section = (heading: string) => page.split(/^## /m).find((part) => part.startsWith(heading))!;
/** What is in backticks in the first cells of the tables. */
const symptomsOf = (text: string) =>
  [...text.matchAll(/^\| (.*?) \|/gm)].flatMap(([, cell]) =>
    [...cell!.matchAll(/`([^`]+)`/g)].map(([, quoted]) => quoted!),
  );

describe('docs/troubleshooting.md', () => {
  it('quotes messages as the package has them', () => {
    const sources = readdirSync(`${root}libs/fencing/src`, { recursive: true, encoding: 'utf8' })
      .filter((file) => /(?<!\.spec)\.ts$/.test(file))
      .map((file) => readFileSync(`${root}libs/fencing/src/${file}`, 'utf8'))
      // A message goes on in the next line.
      .join('\n')
      .replaceAll(/['"`] \+\s*['"`]/g, '');
    const messages = symptomsOf(page.replace(section('A call fails'), '')).filter((one) => / /.test(one));
    expect(messages.length).toBeGreaterThan(15);
    const parts = messages.flatMap((message) => message.split(/ ?… ?/)).filter((part) => part !== '');
    // The first is Nest's; what it then names is ours.
    expect(parts.filter((part) => !sources.includes(part))).toEqual(["Nest can't resolve dependencies"]);
  });

  it('explains every code, and no other', () => {
    const codes = Object.values(fencing).flatMap((one) =>
      typeof one === 'function' && Object.getPrototypeOf(one) === FencingError
        ? [(one as typeof FencingError).prototype.code]
        : [],
    );
    const explained = symptomsOf(section('A call fails')).filter((one) => !one.startsWith('NF'));
    expect(explained.sort()).toEqual([...codes].sort());
  });
});
