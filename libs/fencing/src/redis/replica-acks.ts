import { FencingConfigError, StoreUnavailableError } from '../core/errors.js';
import type { AcquireAnswer, ReleaseAnswer, StoreFinding } from '../core/lease-store.js';
import { checkMs, checkNames, show } from '../core/options.js';
import { isCluster, type RedisClient, type RedisClusterClient } from './redis-client.js';

/** When a grant counts as given: once so many replicas have it. */
export interface ReplicasOptions {
  /** How many replicas must confirm a grant. Whole number, 1 or more. */
  min: number;
  /**
   * How long to wait for them, ms. Redis holds up the whole connection meanwhile, renewals too: far below a third of the smallest
   * `ttlMs`. Whole number, 1 or more.
   * @default 100
   */
  timeoutMs?: number;
}

/** @throws FencingConfigError naming the option */
export function checkReplicas(
  replicas: ReplicasOptions | undefined,
  client?: RedisClient | RedisClusterClient,
): Required<ReplicasOptions> | undefined {
  if (replicas === undefined) return undefined;
  // It sends a command without a key to any of its nodes.
  if (client && isCluster(client))
    throw new FencingConfigError(
      'redisLeases replicas: WAIT does not work through a Cluster client. Leave replicas out; the fence keeps late writes out anyway.',
    );
  checkNames('redisLeases replicas', replicas, ['min', 'timeoutMs']);
  const { min, timeoutMs = 100 } = replicas;
  if (!Number.isInteger(min) || min < 1)
    throw new FencingConfigError(
      `redisLeases replicas: min must be a whole number, 1 or more, got ${show(min)}. Leave replicas out to wait for none.`,
    );
  checkMs('redisLeases replicas', 'timeoutMs', timeoutMs, 1);
  return { min, timeoutMs };
}

/** Waits until replicas have what was written. Grants that come together share one WAIT. */
export class ReplicaAcks {
  private running: Promise<unknown> = Promise.resolve();
  private next: Promise<void> | undefined;

  constructor(
    private readonly client: Pick<RedisClient, 'call'>,
    private readonly options: Required<ReplicasOptions>,
  ) {}

  /** Resolves once enough replicas have all that this connection wrote until now. @throws StoreUnavailableError */
  confirm(): Promise<void> {
    if (!this.next) {
      const sent = this.running.then(() => {
        this.next = undefined;
        return this.send();
      });
      this.next = sent;
      this.running = sent.catch(() => undefined);
    }
    return this.next;
  }

  /** A grant, once enough replicas have it; one that too few have is given back. @throws StoreUnavailableError */
  async ofGrant(answer: Promise<AcquireAnswer>, giveBack: () => unknown): Promise<AcquireAnswer> {
    const { granted } = await answer;
    if (!granted) return answer;
    try {
      await this.confirm();
    } catch (error) {
      await settled(giveBack);
      throw error;
    }
    return answer;
  }

  /** A successor that too few replicas know of gets nothing, and asks for itself. */
  async ofHandOver(answer: Promise<ReleaseAnswer>, giveBack: () => unknown): Promise<ReleaseAnswer> {
    const next = (await answer).successor;
    if (!next || !('generation' in next)) return answer;
    try {
      await this.confirm();
    } catch {
      await settled(giveBack);
      return { held: true };
    }
    return answer;
  }

  async check(): Promise<StoreFinding[]> {
    const { min } = this.options;
    const info = String(await this.client.call('INFO', 'replication').catch(() => ''));
    const connected = /^connected_slaves:(\d+)/m.exec(info)?.[1];
    if (connected === undefined || Number(connected) >= min) return [];
    return [
      {
        problem: `redisLeases waits for ${min} replicas (replicas.min), and ${connected} are connected.`,
        consequence: 'Every grant is refused as unavailable until enough of them are.',
        fix: 'Bring the replicas back, or set replicas.min to what there is.',
      },
    ];
  }

  private async send(): Promise<void> {
    const { min, timeoutMs } = this.options;
    let cause: unknown;
    const acks = await this.client.call('WAIT', String(min), String(timeoutMs)).catch((error: unknown) => {
      cause = error;
    });
    if (Number(acks) >= min) return;
    throw new StoreUnavailableError(
      'lease store',
      acks === undefined
        ? 'Redis did not say which replicas have the grant.'
        : `${Number(acks)} of ${min} replicas confirmed the grant within ${timeoutMs} ms; it was given back.`,
      { cause },
    );
  }
}

/** Whatever comes of it: what cannot be given back expires. */
async function settled(work: () => unknown): Promise<void> {
  await Promise.resolve(work()).catch(() => undefined);
}
