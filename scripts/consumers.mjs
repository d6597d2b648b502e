// npm run test:consumers [-- <name>...] [--nodes 22,24] [--keep] [--no-build]
//
// Packs the package, installs the tarball into fresh applications (test/consumers), compiles them strictly with
// `skipLibCheck: false`, and runs a leased, fenced call through each, on real servers.
//   --nodes      also on these versions of Node, from the registry's packages node-<platform>-<arch>; the one at hand is always used
//   --keep       leaves the applications in their folders
//   --no-build   packs what libs/fencing/dist holds
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import path from 'node:path';
import { parseArgs } from 'node:util';
import pg from 'pg';
import { execute } from './consumers/execute.mjs';
import { installNodes } from './consumers/nodes.mjs';
import { typeQuickStart } from './consumers/quick-start.mjs';
import { temporaryFolder } from './services/folders.mjs';
import { endServersOnSignals, findOrStartPostgres, findOrStartRedis, projectRoot } from './services.mjs';

const templates = path.join(projectRoot, 'test', 'consumers');
const shared = path.join(templates, 'shared');
/** These use nothing of what the others share. */
const STANDS_ALONE = ['bare', 'quick-start'];
const all = readdirSync(templates).filter((name) => name !== 'shared');

const { values, positionals } = parseArgs({
  allowPositionals: true,
  allowNegative: true,
  options: {
    nodes: { type: 'string', default: '' },
    keep: { type: 'boolean', default: false },
    build: { type: 'boolean', default: true },
  },
});
const unknown = positionals.filter((name) => !all.includes(name));
if (unknown.length > 0) {
  console.error(`There is no consumer ${unknown.join(', ')}. Consumers: ${all.join(', ')}.`);
  process.exit(2);
}

endServersOnSignals();
const folder = temporaryFolder('consumers');
const starting = [findOrStartPostgres(), findOrStartRedis()];
/** @type {string[]} */
const failures = [];
let databases = 0;
try {
  const tarball = await pack();
  const nodes = await installNodes(folder, values.nodes.split(',').filter(Boolean));
  const [postgres, redis] = await Promise.all(starting);
  if (!postgres || !redis) throw new Error('The consumers need PostgreSQL and Redis.');
  for (const name of positionals.length > 0 ? positionals : all) {
    const started = performance.now();
    const problem = await proveConsumer(name, tarball, nodes, { postgres: postgres.url, redis: redis.url });
    const seconds = `${((performance.now() - started) / 1000).toFixed(0)} s`;
    console.log(`${problem ? 'FAILED' : 'ok    '} ${name.padEnd(16)} ${seconds}`);
    if (problem) failures.push(`${name}: ${problem}`);
  }
} finally {
  for (const server of await Promise.allSettled(starting)) {
    if (server.status === 'fulfilled') await server.value?.stop();
  }
  if (values.keep) console.log(`The applications are in ${folder}`);
  else rmSync(folder, { recursive: true, force: true });
}
for (const failure of failures) console.error(`\n${failure}`);
console.log(failures.length === 0 ? 'all consumers passed' : `${failures.length} failed`);
process.exit(failures.length === 0 ? 0 : 1);

/** The packed tarball, with a fresh build in it. */
async function pack() {
  const args = [
    'pack',
    '--json',
    '--pack-destination',
    folder,
    ...(values.build ? [] : ['--ignore-scripts']),
  ];
  const packed = await execute('npm', args, path.join(projectRoot, 'libs', 'fencing'));
  if (packed.code !== 0) throw new Error(`npm pack failed:\n${packed.output}`);
  // What the build prints comes before npm's JSON.
  const [{ filename, size }] = JSON.parse(packed.stdout.slice(packed.stdout.lastIndexOf('\n[') + 1));
  console.log(`${filename}: ${(size / 1000).toFixed(0)} kB`);
  return path.join(folder, filename);
}

/**
 * @param {string} name
 * @param {string} tarball
 * @param {Map<string, string>} nodes executables by version
 * @param {{ postgres: string, redis: string }} servers
 * @returns {Promise<string | undefined>} what is wrong
 */
async function proveConsumer(name, tarball, nodes, servers) {
  const app = path.join(folder, name);
  const template = path.join(templates, name);
  mkdirSync(app);
  const usesServers = name !== 'bare';
  if (!STANDS_ALONE.includes(name)) cpSync(shared, app, { recursive: true });
  else cpSync(path.join(shared, 'tsconfig.json'), path.join(app, 'tsconfig.json'));
  cpSync(template, app, { recursive: true });
  // Not every application speaks HTTP; a file that is not used must not ask for more packages.
  if (!readFileSync(path.join(app, 'main.ts'), 'utf8').includes('./http.js'))
    rmSync(path.join(app, 'http.ts'), { force: true });
  // First the application as it was, then what its README tells it to add.
  const typed = name === 'quick-start' ? typeQuickStart(path.join(projectRoot, 'README.md'), app) : [];
  for (const packages of [[], [tarball, ...typed]]) {
    const install = [
      'install',
      ...packages,
      '--no-audit',
      '--no-fund',
      '--prefer-offline',
      '--loglevel=error',
    ];
    const installed = await execute('npm', install, app);
    if (installed.code !== 0) return `npm ${install.join(' ')} failed:\n${installed.output}`;
  }
  const compiled = await compile(app);
  if (compiled) return compiled;
  for (const [version, node] of nodes) {
    const env = usesServers ? await serversOfItsOwn(`${name}_${version}`, servers) : {};
    const ran = await execute(node, ['dist/main.js'], app, env);
    if (ran.code !== 0) return `on Node ${version}, exit code ${ran.code}:\n${ran.output}`;
    console.log(`       ${name} on Node ${version}: ${ran.stdout.trim().replaceAll('\n', '; ')}`);
  }
  return undefined;
}

/** Faults in the declarations of other packages are not ours to judge; they are named. @param {string} app */
async function compile(app) {
  const tsc = path.join(app, 'node_modules', 'typescript', 'bin', 'tsc');
  const { output } = await execute(process.execPath, [tsc, '-p', '.', '--pretty', 'false'], app);
  const errors = output.split('\n').filter((line) => /error TS\d+/.test(line));
  const others = errors.filter((line) => /^node_modules\/(?!nestjs-fencing\/)/.test(line));
  if (errors.length > others.length) return `it does not compile:\n${output}`;
  const packages = new Set(others.map((line) => /^node_modules\/((@[^/]+\/)?[^/]+)/.exec(line)?.[1]));
  if (others.length > 0)
    console.log(`       ${others.length} errors in the declarations of ${[...packages].join(', ')}`);
  return existsSync(path.join(app, 'dist', 'main.js')) ? undefined : `tsc wrote nothing:\n${output}`;
}

/** A database and a Redis database that nobody else uses. @param {string} name @param {{ postgres: string, redis: string }} servers */
async function serversOfItsOwn(name, { postgres, redis }) {
  const database = `consumer_${name.replaceAll(/\W/g, '_')}`;
  const client = new pg.Client({ connectionString: postgres });
  await client.connect();
  await client.query(`DROP DATABASE IF EXISTS ${database}`);
  await client.query(`CREATE DATABASE ${database} TEMPLATE template0`);
  await client.end();
  const [postgresUrl, redisUrl] = [new URL(postgres), new URL(redis)];
  postgresUrl.pathname = `/${database}`;
  redisUrl.pathname = `/${databases++ % 16}`;
  return { DATABASE_URL: postgresUrl.href, REDIS_URL: redisUrl.href };
}
