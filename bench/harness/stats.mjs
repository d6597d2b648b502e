// Numbers out of noisy samples.

/**
 * @param {readonly number[]} samples
 * @param {number} q 0 to 1
 */
export function quantile(samples, q) {
  if (samples.length === 0) return NaN;
  const sorted = [...samples].sort((a, b) => a - b);
  const at = (sorted.length - 1) * q;
  const below = Math.floor(at);
  const low = /** @type {number} */ (sorted[below]);
  const high = /** @type {number} */ (sorted[Math.min(below + 1, sorted.length - 1)]);
  return low + (high - low) * (at - below);
}

/** @param {readonly number[]} samples */
export const median = (samples) => quantile(samples, 0.5);

/** @param {readonly number[]} samples */
export const sum = (samples) => samples.reduce((total, one) => total + one, 0);

/**
 * Three significant digits, in plain notation.
 * @param {number} value
 */
export function short(value) {
  if (!Number.isFinite(value)) return '–';
  const digits =
    Number.isInteger(value) || Math.abs(value) >= 100
      ? 0
      : Math.abs(value) >= 10
        ? 1
        : Math.abs(value) >= 1
          ? 2
          : 3;
  return value.toFixed(digits).replace(/\B(?=(\d{3})+(?!\d)(?<!\.\d*))/g, ' ');
}

/** Monotonic time that all processes of this machine share, ms. */
export const monotonicMs = () => Number(process.hrtime.bigint()) / 1e6;
