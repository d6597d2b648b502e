// One scenario in a process of its own, with servers of its own: node --expose-gc scenario.mjs <name> [quick]
import { startPostgres, startRedis } from '../../scripts/services.mjs';

/**
 * @typedef {object} Context
 * @property {boolean} quick
 * @property {() => ReturnType<typeof startRedis>} redis starts one that keeps nothing on disk
 * @property {(fsync: boolean) => ReturnType<typeof startPostgres>} postgres starts one
 * @property {(line: string) => void} log
 */
/** @typedef {(context: Context) => Promise<import('./rows.mjs').Row[]>} Measure */

const [name, mode] = process.argv.slice(2);
/** @type {{ stop(): Promise<void> }[]} */
const servers = [];

/** @template {{ stop(): Promise<void> }} S @param {Promise<S>} starting */
async function started(starting) {
  const server = await starting;
  servers.push(server);
  return server;
}

/** @type {Context} */
const context = {
  quick: mode === 'quick',
  redis: () => started(startRedis()),
  postgres: (fsync) =>
    started(
      startPostgres({
        settings: {
          max_connections: 50,
          shared_buffers: '128MB',
          ...(fsync && { fsync: 'on', full_page_writes: 'on' }),
        },
      }),
    ),
  log: (line) => console.error(`  ${line}`),
};

try {
  const { measure } = await import(`../scenarios/${name}.mjs`);
  const rows = await /** @type {Measure} */ (measure)(context);
  process.send?.(rows);
  if (!process.send) console.log(rows);
} finally {
  await Promise.all(servers.map((server) => server.stop()));
}
process.disconnect?.();
