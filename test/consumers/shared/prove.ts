import assert from 'node:assert/strict';
import type { INestApplicationContext } from '@nestjs/common';
import { ReportsService } from './reports.js';
import { redis } from './setup.js';

/** A queue, a broker and a clock take their time; beyond this something is stuck. */
const LONGEST_MS = 20_000;
const customerId = 'c 1/ä';

/**
 * What the package promises, seen through one way into an application: a write is accepted and lands, two calls never overlap, and
 * the write of an owner that was superseded is refused.
 * @param fire starts one call of the leased handler for a customer, and neither waits for its end nor rejects
 * @param key the key that the handler takes for that customer
 */
export async function prove(
  app: INestApplicationContext,
  fire: (customerId: string) => void,
  key: string,
): Promise<void> {
  const reports = app.get(ReportsService, { strict: false });
  try {
    fire(customerId);
    await until(() => reports.outcomes.includes('accepted'), 'a first call is accepted');
    await until(async () => (await reports.totalOf(customerId)) !== undefined, 'its row is there');

    const before = reports.outcomes.length;
    reports.between = () => sleep(150);
    fire(customerId);
    fire(customerId);
    await until(() => reports.outcomes.length >= before + 2, 'two calls at once both end');
    assert.equal(reports.mostAtOnce, 1, 'calls overlapped');
    assert.deepEqual([...new Set(reports.outcomes)], ['accepted']);

    const total = await reports.totalOf(customerId);
    let isRevoked = false;
    reports.between = async () => {
      if (isRevoked) return sleep(LONGEST_MS); // no later call may write before the row was looked at
      isRevoked = true;
      await reports.fencing.revoke(key);
    };
    fire(customerId);
    await until(() => reports.outcomes.includes('STALE_GENERATION'), 'a superseded call is refused');
    assert.equal(await reports.totalOf(customerId), total, 'the refused write left something');
    assert.ok(reports.generations.every(Number.isSafeInteger));
    assert.deepEqual(
      reports.generations,
      [...new Set(reports.generations)].sort((a, b) => a - b),
      'generations repeat or go back',
    );
    console.log(`proved: ${reports.outcomes.join(', ')}`);
  } catch (error) {
    console.error(`outcomes: ${reports.outcomes.join(', ')}`);
    throw error;
  }
}

export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms).unref());
}

async function until(holds: () => boolean | Promise<boolean>, what: string): Promise<void> {
  for (const end = performance.now() + LONGEST_MS; !(await holds());) {
    assert.ok(performance.now() < end, `not within ${LONGEST_MS} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Runs a consumer; whatever it leaves open does not keep the process. */
export function run(main: () => Promise<void>): void {
  main().then(
    () => {
      redis.disconnect();
      process.exit(0);
    },
    (error: unknown) => {
      console.error(error);
      process.exit(1);
    },
  );
}
