import type { Examination } from '../core/diagnosis.js';
import type { StoreFinding } from '../core/lease-store.js';
import type { Hearing, HintSource } from './hint-source.js';
import type { StepSender } from './step-sender.js';

/** What is behind a client: one Redis (also behind Sentinel), or a cluster of them. */
export interface RedisBackend {
  /** What sends the steps of one bucket of keys. Steps of buckets with the same sender may share a request. */
  senderOf(bucket: number): StepSender;
  hints(hearing: Hearing): HintSource;
  /** The value of a key (nil: none), and its remaining ms. */
  read(name: string): Promise<[value: string | null, remainingMs: number]>;
  /** @throws FencingConfigError, or what the client rejects with */
  check(): Promise<StoreFinding[]>;
  /** What each server says of itself. */
  diagnose(): Promise<Examination>;
}
