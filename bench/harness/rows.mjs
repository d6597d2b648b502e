// One row of the result: a measure of ours beside its reference, and what it must show.
import { median, quantile } from './stats.mjs';

/**
 * @typedef {object} Target
 * @property {number} [atLeast]
 * @property {number} [atMost]
 * @property {'ratio' | 'ours'} [of] what is held against it; the ratio by default
 * @property {string} [text] how to print it, where the number alone reads badly
 */

/**
 * @typedef {object} Row
 * @property {string} id
 * @property {string} title
 * @property {string} unit
 * @property {number} ours
 * @property {number | null} reference
 * @property {string | null} referenceName
 * @property {number | null} ratio ours / reference: the median over the rounds
 * @property {[number, number] | null} spread of the ratio: its quartiles over the rounds
 * @property {string | null} target
 * @property {boolean} ok
 */

/**
 * @param {object} of
 * @param {string} of.id
 * @param {string} of.title
 * @param {string} of.unit
 * @param {readonly number[]} of.ours one sample per round
 * @param {readonly number[]} [of.reference] the sample of the same rounds
 * @param {string} [of.referenceName]
 * @param {Target} [of.target]
 * @returns {Row}
 */
export function row({ id, title, unit, ours, reference, referenceName, target }) {
  const ratios = reference && ours.map((one, i) => one / /** @type {number} */ (reference[i]));
  const ratio = ratios ? median(ratios) : null;
  const value = target?.of === 'ours' ? median(ours) : (ratio ?? median(ours));
  return {
    id,
    title,
    unit,
    ours: median(ours),
    reference: reference ? median(reference) : null,
    referenceName: referenceName ?? null,
    ratio,
    spread: ratios && ratios.length > 1 ? [quantile(ratios, 0.25), quantile(ratios, 0.75)] : null,
    target: target ? targetText(target) : null,
    ok: !target || (value >= (target.atLeast ?? -Infinity) && value <= (target.atMost ?? Infinity)),
  };
}

/** @param {Target} target */
function targetText({ atLeast, atMost, of, text }) {
  if (text) return text;
  const times = of === 'ours' ? '' : ' ×';
  if (atLeast !== undefined && atMost !== undefined) return `${atLeast} to ${atMost}${times}`;
  if (atLeast !== undefined) return `≥ ${atLeast}${times}`;
  return `≤ ${fraction(/** @type {number} */ (atMost))}${times}`;
}

/** @param {number} value */
function fraction(value) {
  const inverse = 1 / value;
  return value < 1 && Math.abs(inverse - Math.round(inverse)) < 1e-9
    ? `1/${Math.round(inverse)}`
    : String(value);
}
