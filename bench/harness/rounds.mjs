// Rounds of all contenders, interleaved: whatever disturbs the machine disturbs all of them.
import { median } from './stats.mjs';

/**
 * One warm-up of each contender, then `rounds` rounds of all of them, each round in another order.
 * @template C, S
 * @param {readonly C[]} contenders
 * @param {number} rounds
 * @param {(contender: C, warmUp: boolean) => Promise<S>} measure
 * @returns {Promise<Map<C, S[]>>} the samples of each, one per round
 */
export async function interleaved(contenders, rounds, measure) {
  const samples = new Map(contenders.map((contender) => [contender, /** @type {S[]} */ ([])]));
  for (const contender of contenders) await measure(contender, true);
  for (let round = 0; round < rounds; round++) {
    const order = contenders.map((_, i) => contenders[(i + round) % contenders.length]);
    if (round % 2 === 1) order.reverse();
    for (const contender of /** @type {C[]} */ (order)) {
      samples.get(contender)?.push(await measure(contender, false));
    }
  }
  return samples;
}

/**
 * The contender whose median is the best.
 * @template C
 * @param {readonly C[]} contenders
 * @param {(contender: C) => readonly number[]} samplesOf
 * @param {'highest' | 'lowest'} best
 * @returns {C}
 */
export function bestOf(contenders, samplesOf, best) {
  const sign = best === 'highest' ? -1 : 1;
  const [first] = [...contenders].sort((a, b) => sign * (median(samplesOf(a)) - median(samplesOf(b))));
  return /** @type {C} */ (first);
}
