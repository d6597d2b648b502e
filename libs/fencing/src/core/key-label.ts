import { createHash } from 'node:crypto';

/**
 * How a key is named in messages and logs: a short hash. Keys often carry personal data (a customer, an account), and logs
 * outlive what they describe; the same key always has the same label, so lines can be matched: `keyLabel('report:42')`
 * is `#e2aa4174bc`.
 */
export function keyLabel(key: string): string {
  return `#${createHash('sha256').update(key).digest('hex').slice(0, 10)}`;
}
