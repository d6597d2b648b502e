import type { Clock } from '../../core/clock.js';
import type { Timeouts } from '../../core/timeouts.js';
import type { RedisClusterClient, ScriptClient } from '../redis-client.js';
import { CLUSTER_STEPS } from '../scripts.js';
import { Script, type Step, StepSender } from '../step-sender.js';

export const CLUSTER_SCRIPT = new Script(CLUSTER_STEPS);
/** Leases whose slot was found moving are renewed one by one for this long, ms. */
const ONE_BY_ONE_MS = 10_000;

/** Sends the steps of one bucket of keys to the master of its slot. */
export class ClusterStepSender extends StepSender {
  private movingUntil = -Infinity;

  constructor(
    client: RedisClusterClient,
    private readonly clock: Clock,
    timeouts: Timeouts,
    onSilence: () => void,
  ) {
    super(new Noticing(client, timeouts, onSilence), CLUSTER_SCRIPT);
  }

  /**
   * While a slot moves its keys are at two nodes, and a request that names several is answered TRYAGAIN by both. Renewals name the
   * leases and nothing else, so one that is sent alone is served by the node that has it.
   */
  override async sendAll(steps: readonly Step[]): Promise<unknown[]> {
    if (this.clock.now() < this.movingUntil) return this.sendApart(steps);
    try {
      return await super.sendAll(steps);
    } catch (error) {
      if (!/\bTRYAGAIN\b/.test(String((error as Error | undefined)?.message))) throw error;
      this.movingUntil = this.clock.now() + ONE_BY_ONE_MS;
      return this.sendApart(steps);
    }
  }

  private sendApart(steps: readonly Step[]): Promise<unknown[]> {
    return Promise.all(
      steps.map(async ({ name, keys, args: [, ttlMs, ...owners] }) => {
        const alone = keys.map((key, i) =>
          super.sendAll([{ name, keys: [key], args: [1, ttlMs!, owners[i]!] }]),
        );
        return (await Promise.all(alone)).map(([answer]) => (answer as unknown[])[0]);
      }),
    );
  }
}

/** Tells of requests that have had no answer for long. */
class Noticing implements ScriptClient {
  constructor(
    private readonly client: ScriptClient,
    private readonly timeouts: Timeouts,
    private readonly onSilence: () => void,
  ) {}

  evalsha(sha: string, keyCount: number, ...args: (string | number)[]): Promise<unknown> {
    return this.watched(this.client.evalsha(sha, keyCount, ...args));
  }

  eval(script: string, keyCount: number, ...args: (string | number)[]): Promise<unknown> {
    return this.watched(this.client.eval(script, keyCount, ...args));
  }

  private watched(answer: Promise<unknown>): Promise<unknown> {
    this.timeouts.bound(
      answer,
      () => undefined,
      (error) => {
        if (error instanceof Silence) this.onSilence();
      },
    );
    return answer;
  }
}

/** What the timeouts make of a request without an answer. */
export class Silence extends Error {}
