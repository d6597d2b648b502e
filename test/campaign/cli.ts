import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { check, shortest, type Verdict } from './checker.js';
import { type Figures, figuresOf } from './figures.js';
import { readHistory } from './history.js';
import { runCampaign } from './main.js';
import { KEYS, START_BALANCE, TTL_MS } from './settings.js';
import type { Tables, Without } from './tables.js';

const CONTROLS: readonly Without[] = ['fence', 'activation', 'guard-lock'];
const print = (line = ''): void => console.log(line);

const parse = (args: string[]) =>
  parseArgs({
    args,
    options: {
      minutes: { type: 'string', default: '2' },
      seed: { type: 'string', default: '1' },
      without: { type: 'string' },
      controls: { type: 'boolean', default: false },
      keep: { type: 'string' },
      check: { type: 'string' },
      json: { type: 'string' },
    },
  }).values;

/** @returns the exit code */
export async function main(args: string[]): Promise<number> {
  let values: ReturnType<typeof parse>;
  try {
    values = parse(args);
  } catch (error) {
    print(String((error as Error).message));
    return 2;
  }
  const [minutes, seed] = [Number(values.minutes), Number(values.seed)];
  const without = values.without as Without | undefined;
  if (!(minutes > 0) || !Number.isInteger(seed) || (without && !CONTROLS.includes(without))) {
    print(
      `usage: npm run campaign -- [--minutes 2] [--seed 1] [--without ${CONTROLS.join('|')}] [--controls] [--keep FOLDER] [--json FILE]`,
    );
    return 2;
  }
  if (values.check) return judge(values.check);
  if (values.controls) return controls(seed);

  print(`campaign: ${minutes} min, seed ${seed}${without ? `, without ${without}` : ''}`);
  const { verdict, figures, folder } = await runCampaign({
    minutes,
    seed,
    without,
    keep: values.keep,
    print,
  });
  if (values.json)
    writeFileSync(values.json, `${JSON.stringify({ minutes, seed, without, figures }, null, 2)}\n`);
  printFigures(figures);
  printVerdict(verdict);
  if (verdict.failed === 0 && !values.keep) await rm(folder, { recursive: true, force: true });
  else print(`histories: ${folder}`);
  print(`\n${verdict.passed} passed, ${verdict.failed} failed`);
  return verdict.failed === 0 ? 0 : 1;
}

/** Each part of the fence taken out: the checker must notice, within a minute. */
async function controls(seed: number): Promise<number> {
  let failed = 0;
  for (const without of CONTROLS) {
    print(`control: without ${without}, at most a minute, seed ${seed}`);
    const { verdict, figures, folder } = await runCampaign({ minutes: 1, seed, without, print });
    const caught = verdict.failed > 0;
    if (!caught) failed += 1;
    print(caught ? `  caught after ${figures.seconds} s:` : '  NOT CAUGHT');
    printFindings(verdict);
    await rm(folder, { recursive: true, force: true });
  }
  print(`\n${CONTROLS.length - failed} passed, ${failed} failed`);
  return failed === 0 ? 0 : 1;
}

/** Judges a campaign whose histories were kept. */
function judge(folder: string): number {
  const histories = readdirSync(folder).filter((name) => name.endsWith('.jsonl'));
  const evidence = {
    events: readHistory(histories.map((name) => path.join(folder, name))),
    tables: JSON.parse(readFileSync(path.join(folder, 'tables.json'), 'utf8')) as Tables,
    complete: true,
    keys: KEYS,
    ttlMs: TTL_MS,
    balance: START_BALANCE,
  };
  const verdict = check(evidence);
  printFigures(figuresOf(evidence, evidence.events.at(-1)!.t - evidence.events[0]!.t));
  printVerdict(verdict);
  print(`\n${verdict.passed} passed, ${verdict.failed} failed`);
  return verdict.failed === 0 ? 0 : 1;
}

function printFigures({ faults, pairs, ...figures }: Figures): void {
  print('\nfaults                                            times   longest recovery, ms (alone)');
  for (const [kind, { count, alone, longestRecoveryMs }] of Object.entries(faults))
    print(
      `  ${kind.padEnd(48)}${String(count).padStart(5)}${String(alone ? longestRecoveryMs : '-').padStart(10)}`,
    );
  print(
    `  ${'(two at once)'.padEnd(48)}${String(pairs.count).padStart(5)}${String(pairs.longestRecoveryMs).padStart(10)}`,
  );
  print();
  for (const [name, value] of Object.entries(figures))
    print(`${name}: ${JSON.stringify(value).replace(/["{}]/g, '').replaceAll(',', ', ')}`);
}

function printVerdict(verdict: Verdict): void {
  print();
  for (const { name, title, findings } of verdict.rules)
    print(`${findings.length === 0 ? 'PASS' : 'FAIL'}  ${name.padEnd(11)} ${title}`);
  printFindings(verdict);
}

function printFindings(verdict: Verdict): void {
  for (const { name, findings } of verdict.rules) {
    if (findings.length === 0) continue;
    print(`\n  ${name}: ${findings.length} finding${findings.length === 1 ? '' : 's'}, the shortest:`);
    for (const { what, excerpt } of shortest(findings, 2)) {
      print(`    ${what}`);
      for (const line of excerpt) print(`      ${line}`);
    }
  }
}
