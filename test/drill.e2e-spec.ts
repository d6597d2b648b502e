import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { text } from 'node:stream/consumers';
import { jest } from '@jest/globals';
import type { DrillRecord } from '../src/drill/events.js';

jest.setTimeout(300_000);

describe('npm run drill', () => {
  let running: ChildProcess | undefined;

  const drill = async (args: string[], env: NodeJS.ProcessEnv = {}) => {
    const child = spawn('npm', ['run', '--silent', 'drill', '--', ...args], {
      env: { ...process.env, ...env },
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    running = child;
    const [stdout, stderr, [code]] = await Promise.all([
      text(child.stdout),
      text(child.stderr),
      once(child, 'close') as Promise<[number | null]>,
    ]);
    running = undefined;
    return { code, stdout, stderr };
  };
  const claimsOf = ({ scenarios }: DrillRecord) =>
    scenarios.flatMap(({ id, claims }) => claims.map(({ text, holds }) => ({ id, text, holds })));

  afterEach(() => {
    if (running) process.kill(-running.pid!, 'SIGTERM');
  });

  it('holds every claim against real processes, signals and faults, and exits with 0', async () => {
    const { code, stdout, stderr } = await drill(['--json']);
    const record = JSON.parse(stdout) as DrillRecord;
    expect({ failed: claimsOf(record).filter(({ holds }) => !holds), stderr }).toEqual({
      failed: [],
      stderr: expect.any(String),
    });
    expect(record).toMatchObject({ drill: 'nestjs-fencing', fence: 'on', failed: 0 });
    expect(record.passed).toBe(claimsOf(record).length);
    expect(record.scenarios.map(({ id }) => id)).toEqual(['1a', '1b', '1c', '2', '3', '4', '5', '6']);
    expect(record.scenarios.flatMap(({ steps }) => steps).some(({ overwritten }) => overwritten)).toBe(false);
    expect(code).toBe(0);

    // What is easily taken for one another is apart, and the two owners are told apart by all of it.
    const { steps } = record.scenarios[0]!;
    const published = steps.find(({ who, accepted }) => who === 'B' && accepted)!;
    const refused = steps.find(({ who, refused }) => who === 'A' && refused)!;
    expect(published).toEqual({
      atMs: expect.any(Number),
      who: 'B',
      what: 'publishes',
      operation: 'publish-1a-B',
      owner: expect.any(String),
      generation: expect.any(Number),
      accepted: { entries: 4, totalCents: '1000' },
    });
    expect(refused).toMatchObject({ operation: 'publish-1a-A', refused: 'LEASE_LOST' });
    expect(refused.owner).not.toBe(published.owner);
    expect(refused.generation).toBeLessThan(published.generation!);
  });

  it('loses the newer report to the stale worker without the fence, and exits with 1', async () => {
    const { code, stdout, stderr } = await drill(['--without-fence', '--json']);
    const record = JSON.parse(stdout) as DrillRecord;
    expect(record).toMatchObject({ drill: 'nestjs-fencing', fence: 'off' });
    // Stopped inside its write, A does not look again before it writes: this is so on every machine.
    const scene = record.scenarios.find(({ id }) => id === '1c')!;
    const [published] = scene.steps.filter(({ who, accepted }) => who === 'B' && accepted);
    expect({ last: scene.steps.at(-1), stderr }).toMatchObject({
      last: { accepted: { entries: 3, totalCents: '600' }, overwritten: { entries: 4, totalCents: '1000' } },
    });
    expect(scene.steps.at(-1)!.generation).toBeLessThan(published!.generation!);
    expect(claimsOf(record)).toContainEqual({ id: '1c', text: "the report is B's", holds: false });
    expect(claimsOf(record)).toContainEqual({ id: '6', text: 'the effect is there once', holds: false });
    // What it shows is not that the drill broke down.
    expect(claimsOf(record).filter(({ text }) => text === 'the scenario runs to its end')).toEqual([]);
    expect(record.failed).toBeGreaterThan(0);
    expect(code).toBe(1);
  });

  it('says in one line what it needs where there is no Redis to break, and exits with 2', async () => {
    const { code, stdout, stderr } = await drill([], { REDIS_SERVER: '' });
    expect({ code, stdout }).toEqual({ code: 2, stdout: '' });
    expect(stderr).toMatch(/^The drill kills and restarts a Redis of its own\. No Redis found.*\n$/);
  });

  it('refuses an option that it does not know, and exits with 2', async () => {
    const { code, stdout, stderr } = await drill(['--without-fences']);
    expect({ code, stdout }).toEqual({ code: 2, stdout: '' });
    expect(stderr).toContain('usage: npm run drill');
  });
});
