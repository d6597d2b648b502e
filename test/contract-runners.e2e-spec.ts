import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { text } from 'node:stream/consumers';
import { describe, expect, it } from '@jest/globals';

const loader = new URL('support/swc-loader.mjs', import.meta.url).href;
const fixture = fileURLToPath(new URL('contract/node-test.fixture.ts', import.meta.url));

/** Runs the contract by `node:test` in a process of its own. */
async function run(...args: string[]): Promise<{ code: number; output: string }> {
  const child = spawn(process.execPath, ['--import', loader, '--test-reporter=tap', fixture, ...args], {
    env: { ...process.env, NODE_OPTIONS: '', NODE_TEST_CONTEXT: '' },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [output, [code]] = await Promise.all([text(child.stdout), once(child, 'exit') as Promise<[number]>]);
  return { code, output };
}

describe('the contract of lease stores under node:test', () => {
  it('passes with a store that is right, and fails with one that is not', async () => {
    const [right, wrong] = await Promise.all([run(), run('ReleaseByKey')]);
    expect(right).toMatchObject({ code: 0, output: expect.stringMatching(/^# fail 0$/m) });
    expect(right.output).toMatch(/^# pass [1-9]\d+$/m);
    expect(wrong).toMatchObject({ code: 1, output: expect.stringMatching(/not ok \d+ - I5: release by a/) });
  });
});
