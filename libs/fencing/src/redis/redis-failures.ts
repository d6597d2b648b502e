import { GenerationsExhaustedError, StoreUnavailableError } from '../core/errors.js';
import { isCluster, type RedisClient, type RedisClusterClient } from './redis-client.js';

/**
 * Failures that pass by themselves: a fail-over, a restart, a slot on the move. Redis 6 says inside a script where it failed
 * (`@user_script: 12: -READONLY …`).
 */
const PASSING =
  /(?:^|: -?)(READONLY|LOADING|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|MOVED|ASK|NOREPLICAS|BUSY|UNBLOCKED|NOSCRIPT)\b|\bnon local key\b/;
const DEMOTED = /(?:^|: -?)READONLY\b/;
/** At most one reconnection in this time, ms. */
const RECONNECT_EVERY_MS = 1_000;

/** Makes typed errors of what Redis and its client say, and leaves a master that says it is none any more. */
export class RedisFailures {
  private reconnectedAt = -Infinity;

  constructor(
    private readonly client: RedisClient | RedisClusterClient,
    private readonly ownsClient: boolean,
  ) {}

  /** Of a request. */
  of(error: unknown, key: string | undefined): StoreUnavailableError {
    const message = String((error as Error | undefined)?.message ?? error);
    const answered = (error as Error | undefined)?.name === 'ReplyError';
    if (DEMOTED.test(message)) this.leaveDemotedNode();
    return new StoreUnavailableError(
      'lease store',
      `Redis ${answered ? 'answered' : 'did not answer'}: ${message.split('\n')[0]}`,
      { key, cause: error, retryable: !answered || PASSING.test(message) },
    );
  }

  /** Of one step, whose request was answered. */
  ofStep(why: unknown, key: string): Error {
    if (why === 'exhausted') return new GenerationsExhaustedError(key);
    return this.of(Object.assign(new Error(String(why)), { name: 'ReplyError' }), key);
  }

  /** A demoted master keeps its connections. A Sentinel client finds the new one only when it connects anew. */
  private leaveDemotedNode(): void {
    const now = performance.now();
    // A Cluster client finds it by itself.
    if (isCluster(this.client)) return;
    if (
      (!this.ownsClient && !this.client.options?.sentinels) ||
      now - this.reconnectedAt < RECONNECT_EVERY_MS
    )
      return;
    this.reconnectedAt = now;
    this.client.disconnect(true);
  }
}
