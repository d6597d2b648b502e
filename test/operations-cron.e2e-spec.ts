import { randomUUID } from 'node:crypto';
import { BareFence } from './support/bare-fence.js';
import { forkWorker, type WorkerProcess } from './support/workers.js';

/** Field report 37: two pods with one cron job, and the clock of one is ahead by 400 ms. */
describe('a cron job of two pods whose clocks differ', () => {
  const TICKS = 12;
  let database: BareFence;
  let rows: { kind: string; tick: number; pods: string[] }[];
  const fired = new Set<number>();

  beforeAll(async () => {
    database = await BareFence.open();
    await database.dataSource.query('DROP TABLE IF EXISTS cron_run');
    await database.dataSource.query(
      'CREATE TABLE cron_run (id serial PRIMARY KEY, run text, pod text, kind text, tick int)',
    );
    const run = randomUUID();
    const file = new URL('./operations-cron.worker.ts', import.meta.url);
    const preload = new URL('./support/shifted-clock.mjs', import.meta.url).href;
    const pods = [
      forkWorker(file, ['on time', run]),
      forkWorker(file, ['ahead', run], { NODE_OPTIONS: `--import ${preload}`, CLOCK_SHIFT_MS: '400' }),
    ];
    const ticksOf = async (pod: WorkerProcess) => {
      for (let n = 0; n < TICKS; n++) fired.add(await pod.waitFor<number>('tick'));
      pod.send('stop');
      await pod.waitFor('stopped');
    };
    await Promise.all(pods.map(ticksOf));
    await Promise.all(pods.map((pod) => pod.exited));
    rows = await database.dataSource.query(
      'SELECT kind, tick, array_agg(pod ORDER BY pod) AS pods FROM cron_run WHERE run = $1 GROUP BY kind, tick ORDER BY tick',
      [run],
    );
  }, 60_000);
  afterAll(() => database.close());

  const of = (kind: string) => rows.filter((row) => row.kind === kind);

  it('runs once per tick with the tick as its operation id', () => {
    const once = of('once');
    expect(once.map(({ tick, pods }) => [tick, pods.length])).toEqual(once.map(({ tick }) => [tick, 1]));
    const ticks = once.map(({ tick }) => tick);
    expect(ticks).toEqual(expect.arrayContaining([...fired].sort()));
  });

  it('runs in both pods with a lease alone, which only keeps them apart', () => {
    expect(of('plain').filter(({ pods }) => pods.length === 2).length).toBeGreaterThan(0);
  });
});
