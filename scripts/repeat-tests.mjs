// npm run test:repeat -- <pattern> [--times 20]: runs the given test files again and again; a test that sleeps and hopes
// shows itself.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { projectRoot } from './services.mjs';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { times: { type: 'string', default: '20' } },
});
const times = Number(values.times);
if (positionals.length === 0 || !(times > 0)) {
  console.error('usage: npm run test:repeat -- <pattern> [--times 20]');
  process.exit(2);
}

const folder = mkdtempSync(path.join(os.tmpdir(), 'fencing-repeat-'));
const file = path.join(folder, 'result.json');
let failedRuns = 0;
for (let run = 1; run <= times; run++) {
  const started = Date.now();
  rmSync(file, { force: true });
  const args = ['test', '--', '--silent', '--json', '--outputFile', file, ...positionals];
  const jest = spawnSync('npm', args, { cwd: projectRoot, encoding: 'utf8' });
  const seconds = ((Date.now() - started) / 1000).toFixed(1);
  const verdict = jest.status === 0 ? 'passed' : 'FAILED';
  console.log(`run ${run}/${times} ${verdict} in ${seconds} s`);
  if (jest.status !== 0) {
    failedRuns++;
    console.log(failures(jest));
  }
}
rmSync(folder, { recursive: true, force: true });
console.log(`${times - failedRuns} of ${times} runs passed`);
process.exit(failedRuns === 0 ? 0 : 1);

/** The messages of a failed run, or what Jest printed where it wrote no result. @param {{ stderr: string }} jest */
function failures(jest) {
  try {
    /** @type {{ testResults: { message: string }[] }} */
    const result = JSON.parse(readFileSync(file, 'utf8'));
    return result.testResults
      .map((test) => test.message)
      .filter(Boolean)
      .join('\n');
  } catch {
    return jest.stderr;
  }
}
