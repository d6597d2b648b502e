// Redis (or Valkey, KeyDB): REDIS_URL, else a server found on this machine, else Docker.
import { spawnSync } from 'node:child_process';
import { existsSync, rmSync, writeFileSync } from 'node:fs';
import { findExecutable, temporaryFolder } from './folders.mjs';
import { freePort, redisAnswers } from './ports.mjs';
import { startServer } from './server-process.mjs';

export const REDIS_HELP =
  {
    darwin: 'No Redis found. Install one: brew install redis',
    linux: 'No Redis found. Install one: sudo apt-get install redis-server',
  }[/** @type {string} */ (process.platform)] ??
  'No Redis found. Start one and name it in REDIS_URL: docker run -d -p 127.0.0.1:6379:6379 redis:7-alpine';

/** The path of a Redis-like server: REDIS_SERVER, else from PATH or a well-known folder. */
export function findRedisServer() {
  return (
    process.env.REDIS_SERVER ??
    findExecutable(
      ['redis-server', 'valkey-server', 'keydb-server'],
      ['/usr/bin', '/usr/local/bin', '/opt/homebrew/bin', '/home/linuxbrew/.linuxbrew/bin', '/snap/bin'],
    )
  );
}

/**
 * Starts a Redis server of one's own that keeps nothing on disk unless asked to.
 * @param {object} [options]
 * @param {number} [options.port]
 * @param {string} [options.dir] its folder, kept by stop(); else a temporary one
 * @param {string[]} [options.args] settings, e.g. ['--maxmemory', '10mb']
 * @param {string} [options.config] a configuration file, instead of our settings and in front of `args`
 */
export async function startRedis(options = {}) {
  for (let tries = 1; ; tries++) {
    try {
      return await startRedisOnce(options);
    } catch (error) {
      // Somebody else took the port meanwhile (or that of a cluster's bus, 10 000 above).
      if (options.port || tries === 5 || !/Address already in use/.test(String(error))) throw error;
    }
  }
}

/** @param {NonNullable<Parameters<typeof startRedis>[0]>} options */
async function startRedisOnce({ port, dir, args = [], config }) {
  const command = findRedisServer();
  if (!command) throw new Error(REDIS_HELP);
  const folder = dir ?? temporaryFolder('redis');
  const listenOn = port ?? (await freePort());
  const settings = ['--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', '--databases', '64'];
  const server = await startServer(
    'Redis',
    command,
    [
      ...(config ? [config] : []),
      '--port',
      String(listenOn),
      '--dir',
      folder,
      ...(config ? [] : settings),
      ...args,
    ],
    {
      ready: () => redisAnswers(listenOn),
      stopSignal: 'SIGTERM',
      exitSignal: 'SIGKILL',
      afterwards: () => {
        if (!dir) rmSync(folder, { recursive: true, force: true, maxRetries: 3 });
      },
    },
  );
  return {
    url: `redis://127.0.0.1:${listenOn}/0`,
    port: listenOn,
    pid: /** @type {number | undefined} */ (server.pid),
    dir: /** @type {string | undefined} */ (folder),
    source: command,
    running: server.running,
    stop: server.stop,
  };
}

/**
 * REDIS_URL, else a server of our own, else one in Docker, else undefined (see REDIS_HELP).
 * @returns {Promise<Awaited<ReturnType<typeof startRedis>> | undefined>}
 */
export async function findOrStartRedis() {
  const url = process.env.REDIS_URL;
  if (url) return external(url, Number(new URL(url).port || 6379), 'REDIS_URL', () => Promise.resolve());
  return findRedisServer() ? startRedis() : redisInDocker();
}

async function redisInDocker() {
  if (spawnSync('docker', ['info'], { stdio: 'ignore', timeout: 5000 }).status !== 0) return undefined;
  const port = await freePort();
  const run = spawnSync(
    'docker',
    ['run', '-d', '--rm', '-p', `127.0.0.1:${port}:6379`, 'redis:7-alpine', 'redis-server', '--save', ''],
    { encoding: 'utf8' },
  );
  if (run.status !== 0) return undefined;
  const container = run.stdout.trim();
  const remove = async () => void spawnSync('docker', ['rm', '-f', container], { stdio: 'ignore' });
  for (const end = Date.now() + 30_000; !(await redisAnswers(port));) {
    if (Date.now() > end) {
      await remove();
      return undefined;
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return external(`redis://127.0.0.1:${port}/0`, port, 'docker', remove);
}

/** @param {string} url @param {number} port @param {string} source @param {() => Promise<void>} stop */
const external = (url, port, source, stop) => ({
  url,
  port,
  pid: undefined,
  dir: undefined,
  source,
  running: () => true,
  stop,
});

/**
 * Installs redis-server where that needs nobody's leave: as root on Debian or Ubuntu. The package's own service is kept
 * from starting, or stopped. Resolves to the path of the server, or undefined where it cannot be done.
 */
export async function installRedisServer() {
  if (process.getuid?.() !== 0 || !existsSync('/etc/debian_version')) return undefined;
  const servedBefore = await redisAnswers(6379);
  const policy = '/usr/sbin/policy-rc.d'; // Debian's way to say: install, but do not start
  const ours = !existsSync(policy);
  /** @param {...string} args */
  const apt = (...args) =>
    spawnSync('apt-get', ['-o', 'DPkg::Lock::Timeout=120', ...args], {
      encoding: 'utf8',
      env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' },
    });
  console.error('No Redis found: installing the package redis-server ...');
  try {
    if (ours) writeFileSync(policy, '#!/bin/sh\nexit 101\n', { mode: 0o755 });
    apt('update');
    const install = apt('install', '-y', '--no-install-recommends', 'redis-server');
    if (install.status !== 0) console.error(install.error?.message ?? install.stderr.trim());
  } finally {
    if (ours) rmSync(policy, { force: true });
  }
  if (!servedBefore && (await redisAnswers(6379)))
    spawnSync('service', ['redis-server', 'stop'], { stdio: 'ignore' });
  return findRedisServer();
}
