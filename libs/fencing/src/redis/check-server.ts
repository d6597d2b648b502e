import { FencingConfigError } from '../core/errors.js';
import type { StoreFinding } from '../core/lease-store.js';

/** A connection to one server. */
interface Asking {
  call(command: string, ...args: string[]): Promise<unknown>;
}

/** What one server must be able to do. */
interface Needs {
  readonly version: readonly [major: number, minor: number];
  /** Why no older one. */
  readonly because: string;
  readonly isCluster: boolean;
  readonly script: string;
}

/**
 * Checks one server, and leaves the script with it.
 * @throws FencingConfigError where it cannot keep leases, or what the client rejects with
 */
export async function checkServer(server: Asking, needs: Needs): Promise<StoreFinding[]> {
  const info = String(await server.call('INFO', 'server'));
  const version = /redis_version:(\d+)\.(\d+)/.exec(info);
  const [major, minor] = needs.version;
  if (version && Number(version[1]) * 100 + Number(version[2]) < major * 100 + minor) {
    throw new FencingConfigError(
      `Redis ${version[1]}.${version[2]} is too old for leases: version ${major}.${minor} or newer is needed (${needs.because}).`,
    );
  }
  if (!needs.isCluster && /^redis_mode:cluster/m.test(info)) {
    throw new FencingConfigError(
      "This Redis is a node of a cluster, and the client is made for a single server. Give redisLeases a Cluster client: new Cluster([{ host, port }]) of 'ioredis'.",
    );
  }
  await server.call('SCRIPT', 'LOAD', needs.script).catch((error: unknown) => {
    if (!/NOPERM|unknown command/i.test(String((error as Error | undefined)?.message))) throw error;
    throw new FencingConfigError(
      'Redis does not allow this user to run scripts (SCRIPT, EVALSHA, EVAL); leases need them.',
      error,
    );
  });
  return checkEviction(server);
}

async function checkEviction(server: Asking): Promise<StoreFinding[]> {
  // Managed servers often forbid CONFIG; then there is nothing to find.
  const policy = await readSetting(server, 'maxmemory-policy');
  if (policy === undefined || policy === 'noeviction') return [];
  return [
    {
      problem: `Redis evicts keys when its memory is full (maxmemory-policy ${policy}).`,
      consequence:
        'A lease may vanish while its method runs: the method is then aborted as lost, and its later writes are refused.',
      fix: 'Set maxmemory-policy to noeviction, or give leases a Redis of their own.',
    },
  ];
}

/** `undefined` where the server does not tell. */
export async function readSetting(server: Asking, name: string): Promise<string | undefined> {
  const answer = await server.call('CONFIG', 'GET', name).catch(() => undefined);
  return Array.isArray(answer)
    ? (answer[1] as string | undefined)
    : Object.values((answer as object | undefined) ?? {}).map(String)[0];
}
