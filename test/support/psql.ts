import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';

export interface PsqlOutcome {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** The psql of this machine, if it has one; the packages that bring a server to run tests on do not bring it. */
export const psqlPath: string | undefined = (() => {
  const folders = [process.env.PG_BIN ?? '', ...(process.env.PATH ?? '').split(path.delimiter)];
  const debian = '/usr/lib/postgresql';
  if (existsSync(debian))
    folders.push(...readdirSync(debian).map((version) => path.join(debian, version, 'bin')));
  return folders.map((folder) => path.join(folder, 'psql')).find((file) => existsSync(file));
})();

/** Sends a script to psql, as an operator would type it; it stops at the first error. */
export async function psql(url: string, script: string): Promise<PsqlOutcome> {
  const flags = ['-X', '-q', '-t', '-A', '-v', 'ON_ERROR_STOP=1', '-v', 'VERBOSITY=verbose', '-d', url];
  const child = spawn(psqlPath!, flags, { stdio: 'pipe' });
  let stdout = '';
  let stderr = '';
  child.stdout.on('data', (data) => (stdout += String(data)));
  child.stderr.on('data', (data) => (stderr += String(data)));
  // It may have stopped at an error before it has read everything.
  child.stdin.on('error', () => undefined);
  child.stdin.end(script);
  const [code] = (await once(child, 'close')) as [number | null];
  return { code, stdout: stdout.trim(), stderr: stderr.trim() };
}
