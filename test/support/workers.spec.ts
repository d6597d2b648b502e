import { eventually } from './gate.js';
import { forkWorker, type WorkerProcess } from './workers.js';

describe('forkWorker', () => {
  let worker: WorkerProcess | undefined;
  const fork = (mode: string, env?: NodeJS.ProcessEnv) =>
    (worker = forkWorker(new URL('./workers.fixture.ts', import.meta.url), [mode], env));

  afterEach(async () => {
    await worker?.kill();
  });

  it('runs TypeScript with decorator metadata, talks both ways, and ends when its work is done', async () => {
    const worker = fork('echo', { FROM_TEST: 'yes' });
    worker.send('question', { text: 'ü', list: [1, null] });
    expect(await worker.waitFor('echo')).toEqual({ text: 'ü', list: [1, null] });
    expect(await worker.waitFor('metadata')).toEqual(['Dependency', 'Object']); // came earlier, read later
    expect(await worker.waitFor('environment')).toBe('yes');
    expect(await worker.exited).toEqual({ code: 0, signal: null });
    expect(worker.stderr).toContain('running as echo');
  });

  it('holds the worker at a gate', async () => {
    const worker = fork('gate');
    await worker.atGate('the gate');
    await expect(worker.waitFor('through', { timeoutMs: 50 })).rejects.toThrow(
      /no message 'through': none came in 50 ms/,
    );
    worker.openGate('the gate');
    await worker.waitFor('through');
    expect(await worker.exited).toEqual({ code: 0, signal: null });
  });

  it('freezes and continues the process', async () => {
    const worker = fork('count');
    await worker.waitFor('count');
    worker.pause();
    const drained = async () => {
      for (;;) await worker.waitFor('count', { timeoutMs: 100 });
    };
    await expect(drained()).rejects.toThrow('none came');
    worker.resume();
    await worker.waitFor('count');
    expect(await worker.kill()).toEqual({ code: null, signal: 'SIGKILL' });
  });

  it('can kill a frozen process', async () => {
    const worker = fork('count');
    await worker.waitFor('count');
    worker.pause();
    expect(await worker.kill()).toEqual({ code: null, signal: 'SIGKILL' });
  });

  it('says what the worker printed when it ends before its message', async () => {
    const worker = fork('throw');
    await expect(worker.waitFor('anything')).rejects.toThrow(
      /the worker has ended \(1\)[^]*broken on purpose[^]*workers\.fixture\.ts/,
    );
    await eventually(() => worker.stderr.includes('broken on purpose'));
  });
});
