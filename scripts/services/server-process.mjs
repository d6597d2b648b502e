// A server as a child process: started, waited for, and ended together with this process however that ends.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';

/**
 * @typedef {object} Server
 * @property {number} pid
 * @property {() => boolean} running
 * @property {(signal?: NodeJS.Signals) => Promise<void>} stop ends the process and waits for its end; harmless twice
 */

/** Live servers of this process, each with what ends it at once. @type {Map<import('node:child_process').ChildProcess, () => void>} */
const live = new Map();

function endAll() {
  for (const end of live.values()) end();
}
process.on('exit', endAll);

/** For processes of our own (not for the insides of a Jest test): a signal that ends this process ends its servers too. */
export function endServersOnSignals() {
  for (const [signal, code] of /** @type {const} */ ([
    ['SIGINT', 130],
    ['SIGTERM', 143],
    ['SIGHUP', 129],
  ])) {
    process.once(signal, () => process.exit(code)); // runs the exit handlers
  }
}

/** @type {boolean | undefined} */
let hasSetpriv;

/**
 * On Linux the kernel itself signals a child whose parent is gone, SIGKILL of the parent included. `setpriv` asks for that
 * and then becomes the command, with the same process id.
 * @param {string} signal @param {string} command @param {string[]} args
 * @returns {[string, string[]]}
 */
export function dyingWithParent(signal, command, args) {
  hasSetpriv ??=
    process.platform === 'linux' &&
    spawnSync('setpriv', ['--pdeathsig', 'KILL', 'true'], { stdio: 'ignore' }).status === 0;
  return hasSetpriv
    ? ['setpriv', ['--pdeathsig', signal.replace('SIG', ''), command, ...args]]
    : [command, args];
}

/**
 * @param {string} name for messages
 * @param {string} command
 * @param {string[]} args
 * @param {object} how
 * @param {() => Promise<boolean>} how.ready polled until true
 * @param {NodeJS.Signals} how.stopSignal asks the server to end
 * @param {NodeJS.Signals} how.exitSignal ends it without waiting, when this process itself ends
 * @param {() => void} [how.afterwards] cleans up once it has ended
 * @param {import('node:child_process').SpawnOptions} [how.options]
 * @returns {Promise<Server>}
 */
export async function startServer(
  name,
  command,
  args,
  { ready, stopSignal, exitSignal, afterwards, options },
) {
  // A group of its own: Ctrl-C in a terminal reaches the application, which may still need its servers to close well.
  const child = spawn(...dyingWithParent(exitSignal, command, args), {
    ...options,
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const output = tail(child);
  const running = () => child.exitCode === null && child.signalCode === null && child.pid !== undefined;
  live.set(child, () => {
    if (running()) child.kill(exitSignal);
    afterwards?.();
  });
  let failure = '';
  child.once('error', (error) => (failure = error.message));

  /** @param {NodeJS.Signals} [signal] */
  const stop = async (signal = stopSignal) => {
    if (running()) {
      const gone = once(child, 'exit');
      child.kill('SIGCONT'); // a test may have stopped it
      child.kill(signal);
      const impatience = setTimeout(() => child.kill('SIGKILL'), 10_000);
      await gone;
      clearTimeout(impatience);
    }
    if (live.delete(child)) afterwards?.();
  };

  for (const end = Date.now() + 30_000; !(await ready());) {
    if (failure || !running() || Date.now() > end) {
      await stop('SIGKILL');
      throw new Error(`${name} did not start: ${failure}\n${output()}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return { pid: /** @type {number} */ (child.pid), running, stop };
}

/** The last lines a child printed. @param {import('node:child_process').ChildProcess} child */
function tail(child) {
  let text = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream?.on('data', (data) => (text = (text + String(data)).slice(-4000)));
  }
  return () => text.trim();
}
