import { crc32 } from 'node:zlib';

/** Fixed for ever: the buckets of two versions in one deployment must be the same. */
export const BUCKETS = 64;

/** The bucket whose counter issues a key's generations. A fixed number of them, so that memory does not grow with keys. */
export function bucketOf(key: string): number {
  return crc32(key) % BUCKETS;
}
