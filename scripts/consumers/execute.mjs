import { spawn } from 'node:child_process';

/** A consumer that hangs, or an installation that does, ends here. */
const LONGEST_MS = 300_000;

/**
 * Runs a command to its end, without blocking this process: servers of ours write into its pipes.
 * @param {string} command
 * @param {readonly string[]} args
 * @param {string} cwd
 * @param {Record<string, string>} [env] in addition to this process's own
 * @returns {Promise<{ code: number | null, stdout: string, output: string }>} output: both streams
 */
export function execute(command, args, cwd, env = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, {
      cwd,
      env: { ...process.env, NO_COLOR: '1', ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
      timeout: LONGEST_MS,
      shell: process.platform === 'win32' && command === 'npm',
    });
    let [stdout, output] = ['', ''];
    child.stdout.on('data', (chunk) => {
      stdout += chunk;
      output += chunk;
    });
    child.stderr.on('data', (chunk) => (output += chunk));
    child.on('error', reject);
    child.on('close', (code) => resolve({ code, stdout, output }));
  });
}
