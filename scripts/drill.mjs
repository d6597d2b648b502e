// npm run drill: the operator's exercise (src/drill), on throw-away servers of its own: it breaks them.
//   --json            one JSON document instead of the table
//   --without-fence   the same with the guard off, which must fail
// Exits 0 when every claim holds, 1 when one does not, 2 when it cannot run here.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import {
  endServersOnSignals,
  findRedisServer,
  projectRoot,
  REDIS_HELP,
  startPostgres,
  startRedis,
} from './services.mjs';

const options = readOptions();
if (process.platform === 'win32') cannotRun('The drill stops processes with SIGSTOP, which Windows lacks.');
if (!findRedisServer()) cannotRun(`The drill kills and restarts a Redis of its own. ${REDIS_HELP}`);

endServersOnSignals();
process.setSourceMapsEnabled(true);
console.error('Building the drill and starting its servers ...');
let code = 1;
const postgres = startPostgres();
let redis = startRedis();
try {
  await Promise.all([build(), postgres, redis]);
  const entry = pathToFileURL(path.join(projectRoot, 'dist/drill/src/drill/main.js')).href;
  const { main } = /** @type {typeof import('../src/drill/main.js')} */ (await import(entry));
  code = await main(
    {
      databaseUrl: (await postgres).url,
      redisUrl: (await redis).url,
      killRedis: async () => (await redis).stop('SIGKILL'),
      startEmptyRedis: async () => {
        const { port } = await redis;
        redis = startRedis({ port });
        await redis;
      },
    },
    options,
  );
} catch (error) {
  console.error(error instanceof Error ? error.stack : error);
} finally {
  for (const server of await Promise.allSettled([postgres, redis])) {
    if (server.status === 'fulfilled') await server.value.stop();
  }
}
process.exit(code);

/** Into a folder of its own: a running `npm start` keeps what it runs from. Standard output is the drill's alone. */
async function build() {
  const nest = [
    'node_modules/@nestjs/cli/bin/nest.js',
    'build',
    'reference-app',
    '-p',
    'tsconfig.drill.json',
  ];
  const child = spawn(process.execPath, nest, { cwd: projectRoot, stdio: ['ignore', 2, 2] });
  const [exit] = await once(child, 'exit');
  if (exit !== 0) throw new Error('The drill could not be built.');
}

function readOptions() {
  try {
    const { values } = parseArgs({
      options: {
        json: { type: 'boolean', default: false },
        'without-fence': { type: 'boolean', default: false },
      },
    });
    return { json: values.json ?? false, withoutFence: values['without-fence'] ?? false };
  } catch (error) {
    return cannotRun(
      `${/** @type {Error} */ (error).message}\nusage: npm run drill [-- --json] [--without-fence]`,
    );
  }
}

/** @param {string} why @returns {never} */
function cannotRun(why) {
  console.error(why);
  return process.exit(2);
}
