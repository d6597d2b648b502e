import { randomUUID } from 'node:crypto';
import type {
  Fence,
  Grant,
  OperationRequest,
  WriteAuthority,
  WriteOutcome,
  WriteRequest,
} from 'nestjs-fencing';
import { typeOrmFence, type TypeOrmFenceOptions } from 'nestjs-fencing/typeorm';
import { DataSource, type DataSourceOptions, type EntityManager } from 'typeorm';
import { eventually, Gate } from './gate.js';

export interface BareFenceOptions {
  /** @default the database of the test worker */
  url?: string;
  poolSize?: number;
  /** What the server calls its sessions. */
  name?: string;
  dataSource?: Partial<DataSourceOptions>;
  fence?: TypeOrmFenceOptions;
  /** Whether the tables are made and checked. @default true */
  check?: boolean;
}

/** The fence of one process of an application, without Nest and without a lease store: the test hands out the grants. */
export class BareFence {
  private constructor(
    readonly dataSource: DataSource,
    readonly fence: Fence<EntityManager>,
  ) {}

  static async open(options: BareFenceOptions = {}): Promise<BareFence> {
    const dataSource = new DataSource({
      type: 'postgres',
      url: options.url ?? process.env.DATABASE_URL,
      poolSize: options.poolSize ?? 5,
      applicationName: options.name,
      ...options.dataSource,
    } as DataSourceOptions);
    await dataSource.initialize();
    const source = typeOrmFence({ ensureSchema: true, ...options.fence });
    const bare = new BareFence(dataSource, source.create(dataSource));
    try {
      if (options.check ?? true) await bare.fence.check();
      return bare;
    } catch (error) {
      await bare.close();
      throw error;
    }
  }

  /** Activates a grant, and fails where it is refused. */
  async activate(grant: Grant, waitMs = 10_000): Promise<void> {
    const answer = await this.fence.activate({ ...grant, waitMs });
    if (!answer.activated) throw new Error(`not activated; the fence is at ${answer.generation}`);
  }

  /** A fenced write under these grants. */
  write<T>(
    by: WriteAuthority | Grant,
    body: (manager: EntityManager) => Promise<T>,
    options: Partial<WriteRequest<EntityManager, T>> = {},
  ): Promise<WriteOutcome<T>> {
    const authority = 'grants' in by ? by : new Authority(by);
    return this.fence.write({ authority, retries: 0, body, ...options });
  }

  /** Begins a fenced write; resolves once its guard has passed and its body runs. */
  async begin<T>(
    by: WriteAuthority | Grant,
    body: (manager: EntityManager) => Promise<T>,
    options: Partial<WriteRequest<EntityManager, T>> = {},
  ): Promise<{ outcome: Promise<WriteOutcome<T>> }> {
    const inside = new Gate();
    const outcome = this.write(
      by,
      (manager) => {
        inside.open();
        return body(manager);
      },
      options,
    );
    outcome.catch(() => undefined);
    await Promise.race([inside.wait(), outcome]);
    return { outcome };
  }

  /** Connections that are checked out of the pool now. */
  get checkedOut(): number {
    const { totalCount, idleCount } = this.pool;
    return totalCount - idleCount;
  }

  /** The pool of the `pg` driver. */
  get pool(): Pool {
    return poolOf(this.dataSource);
  }

  async close(): Promise<void> {
    await this.fence.close();
    await this.dataSource.destroy();
  }
}

export interface Pool {
  readonly totalCount: number;
  readonly idleCount: number;
  readonly waitingCount: number;
  on(event: 'acquire' | 'release', listener: () => void): unknown;
}

export function poolOf(dataSource: DataSource): Pool {
  return (dataSource.driver as unknown as { master: Pool }).master;
}

/** A grant for a key; the key is new, unless it is given. */
export function newGrant(generation = 1, key = `key-${randomUUID()}`): Grant {
  return { key, generation, owner: randomUUID() };
}

/** The grant of the next owner of the same key. */
export function successorOf({ key, generation }: Grant): Grant {
  return newGrant(generation + 1, key);
}

export function operation(id: string, fingerprint = 'payload'): OperationRequest {
  return { where: 'the test', id, fingerprint };
}

/** Leases as the fence sees them, moved by hand. */
export class Authority implements WriteAuthority {
  readonly grants: readonly Grant[];
  private reason: Error | undefined;
  private readonly endListeners = new Set<(reason: Error) => void>();
  private readonly renewListeners = new Set<() => void>();

  constructor(
    grants: Grant | readonly Grant[],
    public validMs = 30_000,
  ) {
    this.grants = Array.isArray(grants) ? (grants as readonly Grant[]) : [grants as Grant];
  }

  get listeners(): number {
    return this.endListeners.size + this.renewListeners.size;
  }

  remainingMs(): number {
    return this.reason ? 0 : this.validMs;
  }

  ended(): Error | undefined {
    return this.reason;
  }

  onEnd(listener: (reason: Error) => void): () => void {
    this.endListeners.add(listener);
    return () => this.endListeners.delete(listener);
  }

  onRenewed(listener: () => void): () => void {
    this.renewListeners.add(listener);
    return () => this.renewListeners.delete(listener);
  }

  /** The deadline passes, and no timer tells: the event loop was blocked. */
  expire(reason: Error): void {
    this.reason = reason;
  }

  end(reason: Error): void {
    this.expire(reason);
    [...this.endListeners].forEach((listener) => listener(reason));
  }

  renew(validMs = this.validMs): void {
    this.validMs = validMs;
    [...this.renewListeners].forEach((listener) => listener());
  }
}

/** Raises the fence in a transaction of its own, which stays open until it is ended. */
export async function holdFence({ dataSource }: BareFence, { key, generation, owner }: Grant) {
  const runner = dataSource.createQueryRunner();
  await runner.startTransaction();
  const raise = 'UPDATE fencing_fence SET generation = $2, owner = $3 WHERE key = $1';
  await runner.query(raise, [key, generation, owner]);
  return {
    commit: () => runner.commitTransaction().finally(() => runner.release()),
    rollback: () => runner.rollbackTransaction().finally(() => runner.release()),
  };
}

/** Resolves once a session called `name` waits for a lock of somebody else. */
export async function waitsForLock(dataSource: DataSource, name: string): Promise<void> {
  const waiting = `SELECT 1 FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'`;
  await eventually(async () => (await dataSource.query<unknown[]>(waiting, [name])).length > 0);
}
