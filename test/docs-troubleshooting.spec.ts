import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it, jest } from '@jest/globals';
import { BaseExceptionFilter } from '@nestjs/core';
import * as fencing from 'nestjs-fencing';
import { FencingError, FencingExceptionFilter } from 'nestjs-fencing';

const root = fileURLToPath(new URL('..', import.meta.url));
const page = readFileSync(`${root}docs/troubleshooting.md`, 'utf8');
const section = (heading: string) => page.split(/^## /m).find((part) => part.startsWith(heading))!;
/** What is in backticks in the first cells of the tables. */
const symptomsOf = (text: string) =>
  [...text.matchAll(/^\| (.*?) \|/gm)].flatMap(([, cell]) =>
    [...cell!.matchAll(/`([^`]+)`/g)].map(([, quoted]) => quoted!),
  );

/** What the package's filter answers over HTTP; 500 where it leaves the error to Nest. */
function statusOf({ code }: FencingError): number {
  const reply = jest.fn<(response: unknown, text: string, status: number) => void>();
  const httpAdapter = { isHeadersSent: () => false, setHeader: () => undefined, reply };
  jest.spyOn(BaseExceptionFilter.prototype, 'catch').mockImplementation(() => reply({}, '', 500));
  const host = { getType: () => 'http', switchToHttp: () => ({ getResponse: () => ({}) }) };
  new FencingExceptionFilter({ httpAdapter } as never).catch({ code } as never, host as never);
  return reply.mock.calls[0]![2];
}

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

  it('explains every error, with its class and its HTTP status, and no other', () => {
    const classes = Object.values(fencing).filter(
      (one): one is typeof FencingError =>
        typeof one === 'function' && Object.getPrototypeOf(one) === FencingError,
    );
    const inCode = classes.map(({ name, prototype }) =>
      [prototype.code, name, statusOf(prototype)].join(' '),
    );
    const rows = section('A call fails').matchAll(/^\| `([A-Z_]+)`[^|]* \| `(\w+)` \| (\d+)/gm);
    expect([...rows].map(([, ...cells]) => cells.join(' ')).sort()).toEqual(inCode.sort());
  });
});
