import { describe, expect, it } from '@jest/globals';
import { Checker, type Invariant } from './checker.js';
import { type Plant, PLANTS } from './plants.js';
import { type RunResult, simulate } from './simulate.js';
import { World } from './world.js';

/** Seeds that every test run goes through; `npm run simulate` goes through as many others as it has time for. */
const BLOCKS = [1, 51, 101, 151, 201];
const BLOCK = 50;
/** A planted mistake must be found within as many seeds; most are found within ten. */
const MOST_SEEDS = 1_500;

/** What to print of a run that should not have failed. */
async function replay({ seed, violations }: RunResult): Promise<string> {
  const { history } = await simulate(seed, { isRecording: true });
  const says = violations.map(({ invariant, says }) => `${invariant}: ${says}`);
  return [...history.slice(-60), ...says, `npm run simulate -- --seed ${seed} --runs 1`].join('\n');
}

describe('the core, simulated', () => {
  it.each(BLOCKS)(
    'keeps every promise whatever goes wrong, and heals by itself (50 seeds from %i)',
    async (from) => {
      for (let seed = from; seed < from + BLOCK; seed++) {
        const result = await simulate(seed);
        if (result.violations.length > 0) throw new Error(await replay(result));
      }
    },
  );

  it('is decided by its seed alone: the same seed gives the same history, another seed another', async () => {
    const [first, again, other] = [
      await simulate(7, { isRecording: true }),
      await simulate(7, { isRecording: true }),
      await simulate(8, { isRecording: true }),
    ];
    expect(first.history.length).toBeGreaterThan(50);
    expect(again.history).toEqual(first.history);
    expect(again.fingerprint).toBe(first.fingerprint);
    expect(other.fingerprint).not.toBe(first.fingerprint);
  });

  it('does not depend on being watched: a replay takes the same steps', async () => {
    const [seen, unseen] = [await simulate(9, { isRecording: true }), await simulate(9)];
    expect(seen.fingerprint).toBe(unseen.fingerprint);
  });

  it('puts the core to the test: stale writes are refused, commits are lost, duplicates are answered', async () => {
    const totals: Record<string, number> = {};
    for (let seed = 1; seed <= BLOCK; seed++) {
      const { counts } = await simulate(seed);
      for (const [name, count] of Object.entries(counts)) totals[name] = (totals[name] ?? 0) + count;
    }
    for (const name of [
      'commits',
      'refused',
      'unknown',
      'duplicate',
      'crashes',
      'idle limits',
      'lost commits found',
      'lost commits that were none',
      'operations sent again',
      'store loses everything',
    ])
      expect([name, totals[name]]).toEqual([name, expect.any(Number)]);
  });
});

describe('the checker of the simulation', () => {
  it.each(Object.keys(PLANTS) as Plant[])(
    'finds %s',
    async (plant) => {
      const expected: readonly Invariant[] = PLANTS[plant];
      const found = new Set<Invariant>();
      for (let seed = 1; seed <= MOST_SEEDS && !expected.some((invariant) => found.has(invariant)); seed++) {
        for (const { invariant } of (await simulate(seed, { plant })).violations) found.add(invariant);
      }
      expect(expected.filter((invariant) => found.has(invariant))).not.toEqual([]);
    },
    300_000,
  );

  const write = { attempt: 'w1', key: 'a', owner: 'A', generation: 1, base: undefined };
  const histories: Record<string, [Invariant, (checker: Checker) => void]> = {
    'an older generation after a newer one': [
      'I1',
      (checker) => {
        checker.committed({ ...write, owner: 'B', generation: 2 });
        checker.committed(write);
      },
    ],
    'two owners under one generation': [
      'I1',
      (checker) => {
        checker.committed(write);
        checker.committed({ ...write, owner: 'B' });
      },
    ],
    'a write of an older grant after an activation': [
      'I2',
      (checker) => {
        checker.activationReturned('a', 2);
        checker.committed(write);
      },
    ],
    "another owner's write between an activation and its commit": [
      'I3',
      (checker) => {
        checker.activated('a', 'B');
        checker.committed(write);
        checker.committed({ ...write, owner: 'B', generation: 2, base: 1 });
      },
    ],
    'a write over a version that was never read': [
      'I3',
      (checker) => {
        checker.committed(write);
        checker.committed({ ...write, base: 0 });
      },
    ],
    'a refused write that had been committed': [
      'I4',
      (checker) => {
        checker.committed(write);
        checker.outcome('w1', 'refused');
      },
    ],
    'a write that is committed after it was refused': [
      'I4',
      (checker) => {
        checker.outcome('w1', 'refused');
        checker.committed(write);
      },
    ],
    'an accepted write that was not committed': ['I4', (checker) => checker.outcome('w1', 'accepted')],
    'an operation that is done twice': [
      'I10',
      (checker) => {
        checker.effect('op', 'first');
        checker.effect('op', 'second');
      },
    ],
    'an operation that is answered with what it did not do': [
      'I10',
      (checker) => {
        checker.effect('op', 'first');
        checker.answered('op', 'second');
      },
    ],
  };

  it.each(Object.entries(histories))('rejects a history with %s', (_, [invariant, happens]) => {
    const checker = new Checker(new World(1), false);
    happens(checker);
    expect(checker.violations.map((violation) => violation.invariant)).toEqual([invariant]);
  });

  it('accepts a history in which owners take turns', () => {
    const checker = new Checker(new World(1), true);
    checker.activated('a', 'A');
    checker.activationReturned('a', 1);
    checker.committed({ ...write, base: 0 });
    checker.outcome('w1', 'accepted');
    checker.activated('a', 'B');
    checker.activationReturned('a', 2);
    checker.committed({ ...write, attempt: 'w2', owner: 'B', generation: 2, base: 1 });
    expect(checker.violations).toEqual([]);
  });
});
