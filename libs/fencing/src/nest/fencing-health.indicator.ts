import { systemClock } from '../core/clock.js';
import { checkMs, checkNames } from '../core/options.js';
import { Probe, type Trouble } from '../core/probe.js';
import type { FencingRuntime } from './fencing.runtime.js';

/** Names nothing that an application leases. */
const PROBE_KEY = 'nestjs-fencing/health';

/**
 * `up`: leases are granted and writes are fenced. `degraded`: the lease store does not answer, and what runs here still holds leases
 * that are valid. `down`: the database does not answer, or the lease store does not and nothing is held.
 */
export type FencingHealthStatus = 'up' | 'degraded' | 'down';

/** What is reported, in the form that `@nestjs/terminus` 12 reads. (11 knows no `degraded`: it leaves that out, and answers 200.) */
export interface FencingHealth {
  readonly status: FencingHealthStatus;
  /** `up`, or why not: a code such as `ECONNREFUSED`, or that there was no answer in time. */
  readonly leaseStore: string;
  /** The same of the database; missing where there is no fence. */
  readonly database?: string;
  /** Leases that this process holds, and that are valid now. */
  readonly heldLeases: number;
  /** How long the last of them stays valid without the lease store, ms. */
  readonly validForMs: number;
}

/**
 * A health indicator for `@nestjs/terminus`, and for any other health check. `FencingModule` provides it:
 *
 * ```ts
 * this.health.check([() => this.fencing.isHealthy()])
 * ```
 */
export class FencingHealthIndicator {
  private readonly leaseStore: Probe;
  private readonly database: Probe;

  /** @internal */
  constructor(private readonly runtime: FencingRuntime) {
    const { hasFence } = runtime;
    this.leaseStore = new Probe(systemClock, async () => (await this.parts()).store.inspect(PROBE_KEY));
    this.database = new Probe(systemClock, async () =>
      hasFence ? (await this.parts()).fence!.inspect(PROBE_KEY) : undefined,
    );
  }

  /**
   * Asks the lease store and the database one small question each, at the same time. It always answers: what is silent for
   * `timeoutMs` counts as down. Checks that overlap share their questions, so that none pile up at a server that is stuck.
   * @param name the name in the report
   * @param options `timeoutMs`: whole number, 1 or more (default 1 000)
   * @throws FencingConfigError where an option is wrong
   */
  async isHealthy<Name extends string = 'fencing'>(
    name: Name = 'fencing' as Name,
    options: { timeoutMs?: number } = {},
  ): Promise<Record<Name, FencingHealth>> {
    const where = 'FencingHealthIndicator.isHealthy';
    checkNames(where, options, ['timeoutMs']);
    const { timeoutMs = 1_000 } = options;
    checkMs(where, 'timeoutMs', timeoutMs, 1);
    const [leaseStore, database] = await Promise.all([
      this.leaseStore.trouble(timeoutMs),
      this.database.trouble(timeoutMs),
    ]);
    return { [name]: this.report(leaseStore, database) } as Record<Name, FencingHealth>;
  }

  private report(leaseStore: Trouble, database: Trouble): FencingHealth {
    const held = (this.runtime.running?.keeper.heldLeases ?? []).filter((lease) => !lease.ended());
    const status: FencingHealthStatus = database
      ? 'down'
      : !leaseStore
        ? 'up'
        : held.length > 0
          ? 'degraded'
          : 'down';
    return {
      status,
      leaseStore: leaseStore ?? 'up',
      ...(this.runtime.hasFence ? { database: database ?? 'up' } : {}),
      heldLeases: held.length,
      validForMs: Math.round(Math.max(0, ...held.map((lease) => lease.remainingMs()))),
    };
  }

  private async parts() {
    return this.runtime.running ?? (await this.runtime.start());
  }
}
