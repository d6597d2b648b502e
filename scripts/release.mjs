// npm run release [-- --publish] [--skip-consumers]: what must hold before a version is published. A dry run by default: it checks
// everything, packs, and publishes nothing. --publish then runs npm publish and tags the commit; it does not go with --skip-consumers.
import { spawnSync } from 'node:child_process';
import { parseArgs } from 'node:util';
import path from 'node:path';
import { releaseProblems } from './release/checks.mjs';
import { projectRoot } from './services/folders.mjs';

const { values } = parseArgs({
  options: {
    publish: { type: 'boolean', default: false },
    'skip-consumers': { type: 'boolean', default: false },
  },
});
if (values.publish && values['skip-consumers']) fail(['--publish does not go with --skip-consumers.']);

const { version, problems } = releaseProblems(projectRoot);
if (problems.length > 0) fail(problems);

const checks = [
  ['npm', 'run', 'build:lib'],
  ['node', 'scripts/check-package.mjs'],
  ['npm', 'run', 'api', '--', '--check'],
  ...(values['skip-consumers'] ? [] : [['npm', 'run', 'test:consumers', '--', '--no-build']]),
  ['npm', 'pack', '--dry-run', '--ignore-scripts', './libs/fencing'],
];
for (const command of checks) run(command);
if (!values.publish) {
  console.log(`\n${version} could be published: npm run release -- --publish`);
} else {
  run(['npm', 'publish', '--ignore-scripts', './libs/fencing']);
  run(['git', 'tag', `v${version}`]);
  console.log(`\n${version} is published. Push the tag: git push origin v${version}`);
}

/** @param {string[]} command */
function run([name, ...args]) {
  console.log(`\n== ${name} ${args.join(' ')}`);
  const { status } = spawnSync(name === 'node' ? process.execPath : String(name), args, {
    cwd: path.resolve(projectRoot),
    stdio: 'inherit',
    shell: process.platform === 'win32',
  });
  if (status !== 0) fail([`${name} ${args.join(' ')} failed.`]);
}

/** @param {readonly string[]} problems @returns {never} */
function fail(problems) {
  for (const problem of problems) console.error(`Not released: ${problem}`);
  return process.exit(1);
}
