import { fork, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, statSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { machineReadable, table, writeIntoPage } from './harness/report.mjs';
import { scenarios } from './scenarios/index.mjs';

/** @typedef {import('./harness/rows.mjs').Row} Row */

const bench = path.dirname(fileURLToPath(import.meta.url));
const root = path.dirname(bench);

const usage = `npm run bench -- [--quick] [--only id,id] [--json FILE] [--check] [--docs]

  --quick  fewer and shorter rounds: some minutes in all
  --only   rows, or whole scenarios, by name; what belongs to the same scenario is measured along with them
  --json   writes [{ id, ours, reference, referenceName, ratio, target, ok, spread }]
  --check  ends with a line for each target that was missed, and code 1
  --docs   puts the table into docs/performance.md`;

const { values: flags } = parseArgs({
  options: {
    help: { type: 'boolean', short: 'h', default: false },
    quick: { type: 'boolean', default: false },
    only: { type: 'string' },
    json: { type: 'string' },
    check: { type: 'boolean', default: false },
    docs: { type: 'boolean', default: false },
  },
});

if (flags.help) {
  console.log(usage);
  for (const [name, ids] of Object.entries(scenarios)) console.log(`\n${name}: ${ids.join(', ')}`);
  process.exit(0);
}

const wanted = flags.only?.split(',') ?? Object.keys(scenarios);
const known = Object.entries(scenarios).flatMap(([name, ids]) => [name, ...ids]);
const unknown = wanted.filter((name) => !known.includes(name));
if (unknown.length > 0) {
  console.error(`There is no ${unknown.join(', ')}. There are: ${known.join(', ')}.`);
  process.exit(2);
}

if (flags.docs && flags.only) {
  console.error('--docs is for a whole run: the page shows all rows.');
  process.exit(2);
}

/** Runs a command to its end. @param {string} command @param {string[]} args @param {string} cwd */
function run(command, args, cwd) {
  const { status } = spawnSync(command, args, { cwd, stdio: ['ignore', 'inherit', 'inherit'] });
  if (status !== 0) throw new Error(`${command} ${args.join(' ')} ended with ${status}`);
}

/** When the newest file of a folder was changed. @param {string} folder @returns {number} */
function newest(folder) {
  const files = readdirSync(folder, { recursive: true, withFileTypes: true }).filter((entry) =>
    entry.isFile(),
  );
  return Math.max(...files.map((entry) => statSync(path.join(entry.parentPath, entry.name)).mtimeMs));
}

function prepare() {
  if (!existsSync(path.join(bench, 'node_modules'))) {
    run('npm', ['ci', '--no-audit', '--no-fund', '--loglevel=error'], bench);
  }
  const lib = path.join(root, 'libs', 'fencing');
  const built = path.join(lib, 'dist', 'esm', 'index.js');
  if (!existsSync(built) || statSync(built).mtimeMs < newest(path.join(lib, 'src'))) {
    run(process.execPath, ['scripts/build-lib.mjs'], root);
  }
}

/**
 * Each scenario has a process of its own, so that none inherits the heap and the connections of another.
 * @param {string} name
 * @returns {Promise<Row[]>}
 */
async function measure(name) {
  const child = fork(path.join(bench, 'harness', 'scenario.mjs'), [name, ...(flags.quick ? ['quick'] : [])], {
    execArgv: ['--expose-gc'],
  });
  /** @type {Row[]} */
  let rows = [];
  child.on('message', (message) => (rows = /** @type {Row[]} */ (message)));
  const stop = () => child.kill('SIGTERM');
  process.once('SIGINT', stop).once('SIGTERM', stop);
  const [code] = await once(child, 'exit');
  process.removeListener('SIGINT', stop).removeListener('SIGTERM', stop);
  if (code !== 0) console.error(`The scenario "${name}" failed.`);
  return rows;
}

prepare();
const began = Date.now();
/** @type {Row[]} */
const rows = [];
/** @type {string[]} */
const unmeasured = [];
for (const [name, ids] of Object.entries(scenarios)) {
  const asked = wanted.includes(name) ? ids : ids.filter((id) => wanted.includes(id));
  if (asked.length === 0) continue;
  console.error(`${name} (${Math.round((Date.now() - began) / 1000)} s)`);
  const found = await measure(name);
  // Full mode has rows beside those that are named.
  rows.push(...found.filter(({ id }) => wanted.includes(name) || asked.includes(id)));
  unmeasured.push(...asked.filter((id) => !found.some((row) => row.id === id)));
}

const about = `Measured with Node ${process.versions.node} on ${os.availableParallelism()} cores, PostgreSQL and Redis on the same machine, ${flags.quick ? 'quick' : 'full'} mode, in ${Math.round((Date.now() - began) / 60_000)} minutes.`;
console.log(`\n${table(rows)}\n\n${about}`);
if (flags.json) writeFileSync(flags.json, `${JSON.stringify(machineReadable(rows), null, 2)}\n`);
if (flags.docs) writeIntoPage(path.join(root, 'docs', 'performance.md'), rows, about);

const missed = [
  ...rows
    .filter(({ ok }) => !ok)
    .map(
      ({ id, ours, unit, ratio, target }) =>
        `${id}: ${ratio === null ? `${ours} ${unit}` : `${ratio.toFixed(3)} ×`}, target ${target}`,
    ),
  ...unmeasured.map((id) => `${id}: was not measured`),
];
if (flags.check) for (const line of missed) console.log(`MISSED ${line}`);
process.exit((flags.check && missed.length > 0) || unmeasured.length > 0 ? 1 : 0);
