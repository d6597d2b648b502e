import {
  CommitUnknownError,
  FencingError,
  StaleGenerationError,
  StoreUnavailableError,
} from '../../libs/fencing/src/core/errors.js';
import type { OperationRequest } from '../../libs/fencing/src/core/fence.js';
import type { HeldLease } from '../../libs/fencing/src/core/lease.js';
import { type LeaseOptions, resolveLeaseOptions } from '../../libs/fencing/src/core/options.js';
import type { Application } from './application.js';
import type { Checker } from './checker.js';
import type { Tx } from './memory-fence.js';
import type { World } from './world.js';

export interface Job {
  readonly name: string;
  readonly keys: readonly string[];
  readonly options: LeaseOptions & { ttlMs: number; waitMs: number };
  /** The operation that its first write is. */
  readonly operation?: string;
  readonly abortAfterMs?: number;
  /** How much the body dawdles, as a part of the ttl. */
  readonly dawdles: number;
  readonly writes: number;
  readonly throws: boolean;
  readonly leavesWork: boolean;
}

/** What the body of a leased method may throw by itself. */
class BodyFailure extends Error {}

/** Runs one leased read-modify-write in an application. Answers whether it came to its end. */
export async function runJob(
  app: Application,
  job: Job,
  checker: Checker,
  onBody = () => {},
): Promise<boolean> {
  const { process, keeper } = app;
  const options = resolveLeaseOptions('the simulation', job.options);
  const startedAt = process.now();
  const pausedMs = process.pausedMs;
  const abort = job.abortAfterMs === undefined ? undefined : new AbortController();
  if (job.abortAfterMs !== undefined) process.setTimer(job.abortAfterMs, () => abort!.abort());
  checker.count('calls');
  checker.record(app.name, `calls ${job.name}`, { keys: job.keys, ...job.options, operation: job.operation });
  let began = false;
  try {
    await keeper.run(
      job.keys,
      options,
      async (leases) => {
        began = true;
        checker.count('bodies');
        checker.record(app.name, `${job.name} begins`, { generation: leases[0]!.generation });
        onBody();
        checker.demand(!app.isStopping, 'I8', () => `${job.name} begins although ${app.name} is stopping`);
        for (const lease of leases) {
          app.demandValid(lease);
          checker.demand(
            lease.remainingMs() >= options.ttlMs / 2,
            'validity',
            () => `${job.name} begins with ${lease.remainingMs()} ms left of ${options.ttlMs}`,
          );
        }
        await new Body(app, job, leases, checker).run();
      },
      { signal: abort?.signal },
    );
    checker.record(app.name, `${job.name} is done`);
    return began;
  } catch (error) {
    checker.record(app.name, `${job.name} ends: ${String(error)}`);
    if (!(error instanceof FencingError) && !(error instanceof BodyFailure))
      checker.violated('error', `${job.name} ends with ${String((error as Error).stack ?? error)}`);
    return false;
  } finally {
    const waitedMs = process.now() - startedAt;
    const bound = options.waitMs + 12 * app.storeTimeoutMs + 1_000 + 1.1 * (process.pausedMs - pausedMs);
    if (!began)
      checker.demand(
        waitedMs <= bound,
        'I9',
        () => `${job.name} got no turn and no timeout for ${waitedMs} ms`,
      );
  }
}

class Body {
  private readonly world: World;
  private readonly bases = new Map<string, number>();

  constructor(
    private readonly app: Application,
    private readonly job: Job,
    private readonly leases: readonly HeldLease[],
    private readonly checker: Checker,
  ) {
    this.world = app.process.world;
  }

  async run(): Promise<void> {
    const { app, job } = this;
    // Only what is read after the activation is sure to be current when it is written.
    if (job.options.activate !== 'write') {
      for (const key of job.keys) {
        const version = await app.fence.read(key).catch((error: Error) => {
          throw new BodyFailure(error.message);
        });
        this.bases.set(key, version);
      }
    }
    await this.dawdle();
    for (let n = 0; n < job.writes; n++) {
      const attempt = `${job.name}.${n}`;
      if (n > 0 || job.operation === undefined) await this.write(attempt);
      else await this.operate(attempt, job.operation);
      await this.dawdle();
    }
    if (job.throws) throw new BodyFailure('of the body');
    if (job.leavesWork) void this.lateWork();
  }

  /** An operation that was not accepted is sent again under the same lease, on top of the same reads. */
  private async operate(attempt: string, operation: string): Promise<void> {
    try {
      await this.write(attempt, operation);
    } catch (error) {
      if (!(error instanceof StoreUnavailableError) || this.leases.some((lease) => lease.ended()))
        throw error;
      this.checker.count('operations sent again');
      await this.write(`${attempt}.again`, operation);
    }
  }

  private async write(attempt: string, operation?: string): Promise<void> {
    const { app, job, checker } = this;
    const request: OperationRequest | undefined =
      operation === undefined ? undefined : { where: 'the simulation', id: operation, fingerprint: 'same' };
    let result: string;
    try {
      result = await app.writes.write('the simulation', { operation: request }, async (manager) => {
        const tx = manager as Tx;
        for (const key of job.keys) await tx.write(key, attempt, this.bases.get(key));
        if (this.world.random.chance(0.4)) await this.dawdle();
        return attempt;
      });
    } catch (error) {
      checker.record(app.name, `${attempt} fails: ${String(error)}`);
      checker.outcome(attempt, error instanceof CommitUnknownError ? 'unknown' : 'refused');
      if (error instanceof StaleGenerationError)
        checker.demand(
          this.leases.some((lease) => lease.key === error.key && lease.ended()),
          'validity',
          () => `${attempt} is stale and its lease lives on`,
        );
      throw error;
    }
    const isDuplicate = operation !== undefined && result !== attempt;
    checker.record(app.name, `${attempt} is ${isDuplicate ? `answered with ${result}` : 'accepted'}`);
    checker.outcome(attempt, isDuplicate ? 'duplicate' : 'accepted');
    if (operation !== undefined) checker.answered(operation, result);
    if (!isDuplicate) for (const [key, base] of this.bases) this.bases.set(key, base + 1);
  }

  /** Something that nobody awaits: it must not write under a lease that has ended. */
  private async lateWork(): Promise<void> {
    const { app, job, checker, world } = this;
    await app.process.wait(world.random.between(0, job.options.ttlMs));
    const attempt = `${job.name}.late`;
    const isAccepted = await app.writes
      .write('the simulation', {}, (manager) => (manager as Tx).write(job.keys[0]!, attempt, undefined))
      .then(
        () => true,
        () => false,
      );
    checker.demand(!isAccepted, 'released', () => `${attempt} was accepted after its call had ended`);
  }

  private async dawdle(): Promise<void> {
    const { ttlMs } = this.job.options;
    for (let left = this.world.random.between(0, this.job.dawdles); left > 0; left -= 0.3) {
      await this.app.process.wait(Math.min(left, 0.3) * ttlMs);
      for (const lease of this.leases) if (!lease.ended()) this.app.demandValid(lease);
    }
  }
}
