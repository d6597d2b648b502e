// npm run mutants [-- <text>]: takes one mechanism at a time out of a copy of the project, and demands that a test fails. A
// test that cannot fail proves nothing. With a text: only the mutants whose claim, file or test contains it.
//
// The mutants are in test/mutants/*.mjs; each file exports a list of them:
//
//     export default [
//       {
//         invariant: 'I5: a release by a non-owner changes nothing', // what would no longer hold
//         file: 'libs/fencing/src/redis/scripts.ts',                 // where the mechanism is
//         from: `~= owner .. ' ' then return {0} end`,               // must occur exactly once; any white space counts alike
//         to: `== nil then return {0} end`,
//         test: 'redis-lease-store',                                 // pattern of the test file, as for npm test
//         title: 'I5: release',                                      // pattern of the tests' names; must be quick
//       },
//     ];
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import {
  findOrStartPostgres,
  findOrStartRedis,
  endServersOnSignals,
  projectRoot,
  REDIS_HELP,
} from './services.mjs';

/**
 * @typedef {object} Mutant
 * @property {string} invariant
 * @property {string} file
 * @property {string} from
 * @property {string} to
 * @property {string} test
 * @property {string} [title]
 */

const NOT_COPIED = new Set(['node_modules', 'dist', '.git', '.data', 'coverage', '.eslintcache']);
/** A mutant may make a test wait for ever. */
const LIMIT_MS = 120_000;

endServersOnSignals();
process.exit(await main(process.argv[2] ?? ''));

/** @param {string} text @returns {Promise<number>} the exit code */
async function main(text) {
  const mutants = (await readMutants()).filter((mutant) =>
    [mutant.invariant, mutant.file, mutant.test].some((one) => one.includes(text)),
  );
  const copy = mkdtempSync(path.join(os.tmpdir(), 'fencing-mutants-'));
  const [postgres, redis] = await Promise.all([
    findOrStartPostgres({ settings: { max_connections: 300 } }),
    findOrStartRedis(),
  ]);
  try {
    if (!redis) throw new Error(REDIS_HELP);
    const env = { ...process.env, DATABASE_URL: postgres.url, REDIS_URL: redis.url };
    copyProject(copy);
    const failures = await checkUnchanged(copy, env, mutants);
    for (const [i, mutant] of mutants.entries()) {
      const verdict = await tryMutant(copy, env, mutant);
      console.log(`${i + 1}/${mutants.length} ${verdict.padEnd(8)} ${mutant.invariant}`);
      if (verdict !== 'killed') failures.push(`${verdict}: ${mutant.invariant} (${mutant.file})`);
    }
    console.log(`\n${mutants.length} mutants, ${failures.length} failures`);
    for (const failure of failures) console.log(failure);
    return failures.length === 0 && mutants.length > 0 ? 0 : 1;
  } finally {
    rmSync(copy, { recursive: true, force: true, maxRetries: 3 });
    await Promise.all([postgres.stop(), redis?.stop()]);
  }
}

async function readMutants() {
  const folder = path.join(projectRoot, 'test', 'mutants');
  const lists = readdirSync(folder)
    .filter((name) => name.endsWith('.mjs'))
    .map(async (name) => {
      const module = /** @type {{ default: Mutant[] }} */ (
        await import(pathToFileURL(path.join(folder, name)).href)
      );
      return module.default;
    });
  return (await Promise.all(lists)).flat();
}

/** @param {string} copy */
function copyProject(copy) {
  for (const name of readdirSync(projectRoot)) {
    if (NOT_COPIED.has(name)) continue;
    cpSync(path.join(projectRoot, name), path.join(copy, name), {
      recursive: true,
      filter: (source) => !NOT_COPIED.has(path.basename(source)),
    });
  }
  symlinkSync(path.join(projectRoot, 'node_modules'), path.join(copy, 'node_modules'), 'dir');
}

/**
 * The tests must pass without a mutant, or their failure with one says nothing.
 * @param {string} copy @param {NodeJS.ProcessEnv} env @param {Mutant[]} mutants
 */
async function checkUnchanged(copy, env, mutants) {
  /** @type {Map<string, Set<string | undefined>>} */
  const titles = new Map();
  for (const { test, title } of mutants) titles.set(test, (titles.get(test) ?? new Set()).add(title));
  const failures = [];
  for (const [test, of] of titles) {
    const title = of.has(undefined) ? undefined : [...of].map((one) => `(${one})`).join('|');
    const { passed, output } = await runTests(copy, env, test, title);
    if (passed > 0 && output === '') continue;
    failures.push(`fails without a mutant, or matches no test: ${test} ${title ?? ''}\n${output}`);
  }
  return failures;
}

/** @param {string} copy @param {NodeJS.ProcessEnv} env @param {Mutant} mutant */
async function tryMutant(copy, env, { file, from, to, test, title }) {
  const target = path.join(copy, file);
  const source = readFileSync(target, 'utf8');
  // Whatever the formatter makes of the place.
  const place = new RegExp(from.trim().split(/\s+/).map(escape).join('\\s+'), 'g');
  const found = source.match(place)?.length ?? 0;
  if (found !== 1) return found === 0 ? 'missing' : 'unclear';
  writeFileSync(
    target,
    source.replace(place, () => to),
  );
  const { failed } = await runTests(copy, env, test, title);
  writeFileSync(target, source);
  return failed > 0 ? 'killed' : 'SURVIVED';
}

/** @param {string} text */
function escape(text) {
  return text.replace(/[\\^$.*+?()[\]{}|/-]/g, '\\$&');
}

/**
 * Not spawnSync: the servers write their logs to this process, and stand still once nobody reads them.
 * @param {string} copy @param {NodeJS.ProcessEnv} env @param {string} test @param {string | undefined} title
 * @returns {Promise<{ passed: number, failed: number, output: string }>} output: what went wrong, if anything
 */
async function runTests(copy, env, test, title) {
  const file = path.join(copy, 'result.json');
  rmSync(file, { force: true });
  const flags = ['--maxWorkers', '1', '--silent', '--forceExit', '--json', '--outputFile', file];
  const named = title === undefined ? [] : ['-t', title];
  const jest = spawn('npm', ['test', '--', test, ...named, ...flags], {
    cwd: copy,
    env,
    detached: true, // a group of its own, to be ended as a whole
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let printed = '';
  jest.stderr.on('data', (data) => (printed += String(data)));
  let isLate = false;
  const timer = setTimeout(() => {
    isLate = true;
    if (jest.pid) process.kill(-jest.pid, 'SIGKILL');
  }, LIMIT_MS);
  await once(jest, 'close');
  clearTimeout(timer);
  if (isLate) return { passed: 0, failed: 1, output: `no end within ${LIMIT_MS} ms` };
  try {
    /** @type {{ numPassedTests: number, numFailedTests: number, testResults: { message: string }[] }} */
    const result = JSON.parse(readFileSync(file, 'utf8'));
    return {
      passed: result.numPassedTests,
      // A file that cannot even be loaded has no failed tests, and has not shown anything.
      failed: result.numFailedTests,
      output: result.testResults
        .map(({ message }) => message)
        .join('')
        .trim(),
    };
  } catch {
    return { passed: 0, failed: 0, output: printed };
  }
}
