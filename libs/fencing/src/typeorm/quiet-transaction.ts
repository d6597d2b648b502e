import { dataSourceOf, type PgQueryRunner } from './driver.js';

/**
 * What TypeORM's query runner notes of its transaction, for transactions whose events nobody hears: to tell nobody of four
 * events makes up a third of the promises of a short one. The boot check looks whether it notes just this.
 */
export const BEGUN = { isTransactionActive: true, transactionDepth: 1 };
export const ENDED = { isTransactionActive: false, transactionDepth: 0 };

/** Whether somebody hears, or sees, how a runner begins and commits: a subscriber, or whoever replaced these methods of it. */
export function hasAudience(runner: PgQueryRunner): boolean {
  return (
    dataSourceOf(runner)?.subscribers.length !== 0 ||
    Object.hasOwn(runner, 'startTransaction') ||
    Object.hasOwn(runner, 'commitTransaction')
  );
}

/** @returns the methods that note something else; the runner's statements must go nowhere */
export async function strayNotes(runner: PgQueryRunner): Promise<string[]> {
  if (hasAudience(runner)) return [];
  const before = { ...runner };
  const notes = (expected: object) =>
    JSON.stringify(changesOf(before, runner)) ===
    JSON.stringify(changesOf(before, { ...before, ...expected }));
  await runner.startTransaction();
  const begins = notes(BEGUN);
  await runner.commitTransaction();
  return [
    ...(begins ? [] : ['QueryRunner.startTransaction']),
    ...(notes(ENDED) ? [] : ['QueryRunner.commitTransaction']),
  ];
}

function changesOf(before: object, after: object): [string, unknown][] {
  const old = before as Record<string, unknown>;
  return Object.entries(after)
    .filter(([name, value]) => old[name] !== value)
    .sort(([a], [b]) => (a < b ? -1 : 1));
}
