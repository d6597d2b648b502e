import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';

/**
 * What a newcomer types: the first example of the README becomes app.ts.
 * @param {string} readme
 * @param {string} app folder
 * @returns {string[]} what the first command of the README installs beside this package
 */
export function typeQuickStart(readme, app) {
  const section = readFileSync(readme, 'utf8')
    .split(/^## /m)
    .find((part) => part.startsWith('Quick start'));
  const command = /```sh\nnpm install (.+)\n```/.exec(section ?? '')?.[1];
  const code = /```ts\n([\s\S]*?)```/.exec(section ?? '')?.[1];
  if (!command || !code) throw new Error(`${readme}: the quick start has no command or no example.`);
  writeFileSync(path.join(app, 'app.ts'), code);
  return command.split(' ').filter((name) => name !== 'nestjs-fencing');
}
