import assert from 'node:assert/strict';

/**
 * What a contract needs of a test runner: Jest, Vitest and `node:test` have it. Assertions are those of `node:assert`, so
 * `expect` is not used; it may be handed over all the same.
 */
export interface ContractTools {
  describe: (title: string, body: () => void) => unknown;
  /** `timeoutMs`: how long the test may take; `node:test` has no such limit and ignores it. */
  it: (title: string, body: () => Promise<void>, timeoutMs?: number) => unknown;
  readonly expect?: unknown;
}

/** How long one test of a contract may take, ms: on a busy machine, with a server behind it. */
export const TEST_TIMEOUT_MS = 60_000;

/** Asks until the answer is truthy, and returns it. */
export async function eventually<T>(
  what: string,
  condition: () => Promise<T> | T,
  timeoutMs = 15_000,
): Promise<T> {
  const end = performance.now() + timeoutMs;
  for (;;) {
    const answer = await condition();
    if (answer) return answer;
    if (performance.now() > end) assert.fail(`not within ${timeoutMs} ms: ${what}`);
    await sleep(5);
  }
}

export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Numbers from 0 to 1, the same for the same seed. */
export function randomFrom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
