import { randomUUID } from 'node:crypto';
import { BareFence } from './support/bare-fence.js';
import { forkWorker, type WorkerProcess } from './support/workers.js';

export interface Round {
  /** Of the lease, one for each sender. */
  readonly keys: readonly string[];
  readonly operation: string;
  readonly amount: number;
}
export type Answer = { n: number } | { error: string };

/** Field report 9: requests with one operation id, at the same time, in two processes. */
describe('twenty duplicates in two processes', () => {
  const SENDERS = 10;
  let database: BareFence;
  let workers: WorkerProcess[];

  beforeAll(async () => {
    database = await BareFence.open();
    await database.dataSource.query('DROP TABLE IF EXISTS duplicate_effect');
    await database.dataSource.query(
      'CREATE TABLE duplicate_effect (n serial PRIMARY KEY, operation text NOT NULL, amount int NOT NULL)',
    );
    const file = new URL('./operations-duplicates.worker.ts', import.meta.url);
    workers = [1, 2].map(() => forkWorker(file));
    await Promise.all(workers.map((worker) => worker.waitFor('ready')));
  });
  afterAll(async () => {
    for (const worker of workers) worker.send('round', null);
    await Promise.all(workers.map((worker) => worker.exited));
    await database.close();
  });

  const send = async (operation: string, amount: number, keyOf: (sender: number) => string) => {
    workers.forEach((worker, w) => {
      const keys = Array.from({ length: SENDERS }, (_, i) => keyOf(w * SENDERS + i));
      worker.send('round', { keys, operation, amount } satisfies Round);
    });
    const answers = await Promise.all(workers.map((worker) => worker.waitFor<Answer[]>('answers')));
    return answers.flat();
  };
  const effects = (operation: string): Promise<{ n: number; amount: number }[]> =>
    database.dataSource.query('SELECT n, amount FROM duplicate_effect WHERE operation = $1', [operation]);

  it.each([
    ['under one lease key', () => 'one'],
    ['under a lease of its own each: nothing but the receipt is between them', (i: number) => `own-${i}`],
  ])(
    'have one effect and one answer in each of fifty rounds, %s; another payload is refused',
    async (_, keyOf) => {
      const run = randomUUID();
      for (let round = 0; round < 50; round++) {
        const operation = `${run}/${round}`;
        const key = (sender: number) => `${run}-${keyOf(sender)}`;
        const answers = await send(operation, round, key);
        const stored = await effects(operation);
        expect(stored).toEqual([{ n: expect.any(Number), amount: round }]);
        expect(answers).toEqual(Array.from({ length: 2 * SENDERS }, () => ({ n: stored[0]!.n })));

        // Fewer of these: nothing races, so one for each process would do.
        if (round % 10 === 0) {
          const others = await send(operation, -1, key);
          expect(others).toEqual(
            Array.from({ length: 2 * SENDERS }, () => ({ error: 'OPERATION_CONFLICT' })),
          );
          expect(await effects(operation)).toEqual(stored);
        }
      }
    },
    120_000,
  );
});
