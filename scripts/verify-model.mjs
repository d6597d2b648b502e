// npm run verify:model [-- [<words>] [--long] [--table]]: lets SPIN check the models in spec/ and compares its answers with spec/checks.mjs.
// Words pick checks by model, flag or what they say. --long adds larger worlds (minutes, 4 GB). --table prints the rows for spec/README.md.
import { spawn, spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { checks, longChecks } from '../spec/checks.mjs';

/** @typedef {import('../spec/checks.mjs').Check} Check */
/** @typedef {{ answer: string, states: number, seconds: number }} Result */

const { values, positionals: words } = parseArgs({
  allowPositionals: true,
  options: { table: { type: 'boolean', default: false }, long: { type: 'boolean', default: false } },
});

for (const [command, args, help] of /** @type {const} */ ([
  [
    'spin',
    ['-V'],
    'the model checker SPIN (Debian and Ubuntu: apt-get install spin; elsewhere: https://spinroot.com)',
  ],
  ['gcc', ['--version'], 'a C compiler (Debian and Ubuntu: apt-get install gcc libc6-dev)'],
])) {
  if (!spawnSync(command, args).error) continue;
  console.log(`The models were not checked: this needs ${help}.`);
  process.exit(process.env.CI === 'true' ? 1 : 0);
}

const spec = path.join(import.meta.dirname, '../spec');
const all = values.long ? [...checks, ...longChecks] : checks;
const chosen = all.filter((check) => words.every((word) => Object.values(check).join(' ').includes(word)));
const started = performance.now();
let next = 0;
let failed = 0;
/** @type {Map<Check, string>} */
const rows = new Map();
await Promise.all(
  Array.from({ length: Math.min(4, os.availableParallelism()) }, async () => {
    for (let check; (check = chosen[next++]);) report(check, await run(check));
  }),
);
if (values.table) for (const check of chosen) console.log(rows.get(check));
console.log(`${((performance.now() - started) / 1000).toFixed(0)} s`);
console.log(`${chosen.length - failed} passed, ${failed} failed`);
process.exitCode = failed > 0 ? 1 : 0;

/** @param {Check} check @param {Result} result */
function report(check, { answer, states, seconds }) {
  const right = answer === check.expect;
  if (!right) failed++;
  const { model, flags, says, expect } = check;
  const count = states.toLocaleString('en').replaceAll(',', ' ');
  rows.set(
    check,
    `| ${model} | ${says} | \`${flags || 'none'}\` | ${answer} | ${count} | ${seconds.toFixed(1)} |`,
  );
  const verdict = right ? 'ok  ' : 'FAIL';
  console.log(
    `${verdict} ${model.padEnd(10)} ${answer.padEnd(10)} ${String(states).padStart(9)} states ${seconds.toFixed(1).padStart(6)} s  ${says} (${flags})`,
  );
  if (!right) console.log(`     expected: ${expect}`);
}

/** Generates, compiles and runs one checker in a folder of its own. @param {Check} check @returns {Promise<Result>} */
async function run({ model, flags, expect }) {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'fencing-model-'));
  const isLiveness = model === 'heal' || model === 'turns';
  try {
    copyFileSync(path.join(spec, `${model}.pml`), path.join(folder, 'model.pml'));
    const generated = await output(folder, 'spin', ['-a', ...flags.split(' ').filter(Boolean), 'model.pml']);
    // A wrong variant is refuted within moments: compiling is what takes the time.
    const kind = isLiveness ? '-DNFAIR=4' : '-DSAFETY';
    const built = await output(folder, 'gcc', [
      expect === 'holds' ? '-O2' : '-O0',
      '-w',
      '-DMEMLIM=6000',
      kind,
      '-o',
      'pan',
      'pan.c',
    ]);
    if (!existsSync(path.join(folder, 'pan')))
      return { answer: `does not compile: ${generated}${built}`, states: 0, seconds: 0 };
    const began = performance.now();
    const size = expect === 'holds' ? '-w25' : '-w18';
    const searched = await output(folder, './pan', [
      '-m300000',
      size,
      '-E',
      ...(isLiveness ? ['-a', '-f'] : []),
    ]);
    const states = Number(/^\s*([\d.e+]+) states, stored/m.exec(searched)?.[1] ?? 0);
    return { answer: answerOf(searched), states, seconds: (performance.now() - began) / 1000 };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** @param {string} searched */
function answerOf(searched) {
  const [, trouble] = /^pan:\d+: (.*?)(?: \(at depth \d+\))?$/m.exec(searched) ?? [];
  if (trouble?.startsWith('acceptance cycle')) return 'cycle';
  const [, name] = /^assertion violated (\w+)$/.exec(trouble ?? '') ?? [];
  if (trouble !== undefined) return name ?? trouble;
  const complete = /errors: 0$/m.test(searched) && !/max search depth too small|out of memory/.test(searched);
  return complete ? 'holds' : `is unfinished: ${searched.slice(0, 500)}`;
}

/** All that a command prints. @param {string} cwd @param {string} command @param {string[]} args @returns {Promise<string>} */
function output(cwd, command, args) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { cwd, stdio: ['ignore', 'pipe', 'pipe'] });
    let text = '';
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (text += chunk));
    child.on('error', reject);
    child.on('close', () => resolve(text));
  });
}
