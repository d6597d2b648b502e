import type { EntityManager } from 'typeorm';
import { type Clock, systemClock } from '../core/clock.js';
import {
  CommitUnknownError,
  FenceBypassError,
  FencingConfigError,
  FencingError,
  StaleGenerationError,
  StoreUnavailableError,
  WriteRolledBackError,
} from '../core/errors.js';
import type { IsolationLevel, WriteAuthority } from '../core/fence.js';
import type { Grant } from '../core/lease-store.js';
import { within } from '../core/timing.js';
import { driverErrorOf, isConnectionLoss, isDatabaseError, type PgClient, type PgQueryRunner, sqlStateOf } from './driver.js';
import { type FencingSql, STALE_SQLSTATE } from './sql.js';

/** Statements that would end or leave the transaction from inside the body. */
const TRANSACTION_CONTROL = /^\s*(commit|end|abort|rollback(?!\s+(work\s+|transaction\s+)?to\b)|begin|start\s+transaction|prepare\s+transaction)\b/i;
/** How long the answer to a ROLLBACK is waited for before the connection is thrown away, ms. */
const ROLLBACK_MS = 2_000;
/** How long the answer to a COMMIT is waited for, ms: a synchronous replica may be slow, a dead socket never answers. */
const COMMIT_MS = 60_000;

/** PostgreSQL's time settings are 32-bit. */
const LARGEST_SETTING_MS = 2 ** 31 - 1;

type Phase = 'beginning' | 'open' | 'committing' | 'committed' | 'rolling back' | 'over';

/**
 * One transaction under a set of grants: the guard is its first statement, it is tied to its leases while it is open, and it
 * counts as accepted only when the server said COMMIT.
 */
export class GuardedTransaction {
  private phase: Phase = 'beginning';
  private client!: PgClient;
  /** Why nothing more may be sent, once the leases have ended. */
  private endReason: Error | undefined;
  /** What the connection itself reported, before TypeORM hides it behind "already released". */
  private connectionError: Error | undefined;
  /** The first statement that failed: the cause of a later rollback. */
  private failure: unknown;
  private touching: Promise<unknown> | undefined;
  private running = 0;
  private readonly stops: (() => void)[] = [];
  /** Joined writes that need a savepoint run one after the other: savepoints of one connection must nest. */
  private savepoints: Promise<unknown> = Promise.resolve();

  constructor(
    readonly runner: PgQueryRunner,
    readonly authority: WriteAuthority,
    private readonly sql: FencingSql,
    readonly isolation: IsolationLevel | undefined,
    private readonly clock: Clock = systemClock,
  ) {}

  get manager(): EntityManager {
    return this.runner.manager;
  }

  get isOver(): boolean {
    return this.phase === 'over' || this.phase === 'committed';
  }

  private get key(): string {
    return this.authority.grants[0]!.key;
  }

  /** Whether every one of `grants` is guarded here. */
  guards(grants: readonly Grant[]): boolean {
    return grants.every((grant) => this.authority.grants.some(({ owner, generation }) => owner === grant.owner && generation === grant.generation));
  }

  /**
   * Takes a connection, begins, and guards, in one message to the server.
   * @throws StaleGenerationError, the reason the lease ended, or StoreUnavailableError
   */
  async begin(): Promise<void> {
    this.stops.push(this.authority.onEnd((reason) => this.end(reason)));
    const connected = this.runner.connect() as Promise<PgClient>;
    this.client = await this.unlessEnded(connected);
    this.attach();
    this.intercept();
    await this.runner.startTransaction(this.isolation);
    this.phase = 'open';
    this.stops.push(this.authority.onRenewed(() => this.touch()));
  }

  /**
   * Guards inside a transaction that the application opened on the runner. Refusing leaves that transaction usable.
   * @throws StaleGenerationError
   */
  async guardInside(): Promise<void> {
    this.client = (await this.runner.connect()) as PgClient;
    for (const { key, generation, owner } of this.authority.grants) {
      const guarded = (await this.runner.query(this.sql.guardQuietly, [key, generation, owner, String(this.idleMs())])) as unknown[];
      if (guarded.length > 0) continue;
      const [fence] = (await this.runner.query(this.sql.readFence, [key])) as { generation: string }[];
      throw new StaleGenerationError(key, generation, fence && Number(fence.generation));
    }
    if (this.phase !== 'beginning') return;
    this.attach();
    this.intercept();
    this.phase = 'open';
    this.stops.push(this.authority.onEnd((reason) => this.end(reason)), this.authority.onRenewed(() => this.touch()));
  }

  /**
   * Commits. Returns only when the server confirmed it.
   * @throws the reason the lease ended, WriteRolledBackError, CommitUnknownError, or the server's error
   */
  async commit(): Promise<void> {
    const reason = this.authority.ended() ?? this.endReason;
    if (reason) throw reason;
    this.phase = 'committing';
    try {
      await this.runner.commitTransaction();
    } finally {
      // A subscriber may fail after the commit; the connection goes back all the same.
      if (this.isOver) await this.close();
    }
  }

  /** Rolls back and gives the connection back; a connection that does not confirm it is thrown away. */
  async rollback(): Promise<void> {
    if (this.isOver || !this.client) {
      // Nothing was begun, or it has ended; a connection that is still on its way is given back when it comes.
      this.stopAll();
      this.phase = 'over';
      return;
    }
    const unknown = this.phase === 'committing';
    this.phase = 'rolling back';
    try {
      if (unknown || this.connectionError) throw this.connectionError ?? new Error('the state of the transaction is unknown');
      const undone = (async () => {
        while (this.runner.isTransactionActive) await this.runner.rollbackTransaction();
      })();
      await within(this.clock, ROLLBACK_MS, undone, () => new Error('no answer to ROLLBACK'));
      await this.close();
    } catch (error) {
      await this.throwAway(error as Error);
    }
  }

  /** The application ended its own transaction, which this one was part of. */
  detach(): void {
    this.stopAll();
    this.phase = 'over';
  }

  /** Runs `work` in a savepoint: if it fails, only what it did is undone. */
  insideSavepoint<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.savepoints.then(async () => {
      await this.runner.startTransaction();
      try {
        const result = await work();
        await this.runner.commitTransaction();
        return result;
      } catch (error) {
        await this.runner.rollbackTransaction();
        throw error;
      }
    });
    this.savepoints = turn.catch(() => undefined);
    return turn;
  }

  /** @throws the error for a statement that came after the transaction had ended */
  assertOpen(): void {
    if (this.endReason) throw this.endReason;
    if (this.phase === 'over' || this.phase === 'committed') {
      throw (
        this.authority.ended() ??
        new FenceBypassError('A statement that was sent after its fenced write had ended', 'Await it inside the method.')
      );
    }
  }

  /** What the caller gets for `error`. */
  explain(error: unknown): unknown {
    if (error instanceof FencingError) return error;
    const state = sqlStateOf(error);
    if (state === STALE_SQLSTATE) return this.staleError(error);
    if (this.endReason && isDatabaseError(error)) return this.endReason;
    if (this.phase === 'beginning' && (state === '42883' || state === '42P01')) return notInstalled(driverErrorOf(error));
    if (isDatabaseError(error) && (this.connectionError || isConnectionLoss(error))) {
      const cause = sqlStateOf(this.connectionError) ? this.connectionError : isConnectionLoss(error) ? driverErrorOf(error) : (this.connectionError ?? error);
      return new StoreUnavailableError(
        'database',
        `the connection of a fenced write broke (${sqlStateOf(cause) ?? messageOf(cause)}); nothing of it was committed.`,
        { key: this.key, cause },
      );
    }
    return error;
  }

  // ----------------------------------------------------------------------------------------------------------- parts

  private idleMs(): number {
    return Math.min(LARGEST_SETTING_MS, Math.max(1, Math.ceil(this.authority.remainingMs())));
  }

  private attach(): void {
    const onError = (error: Error): void => {
      this.connectionError ??= error;
    };
    this.client.on('error', onError);
    this.stops.push(() => this.client.removeListener('error', onError));
  }

  /**
   * Every statement of this transaction goes through here: the first becomes "begin and guard", the last is checked for its
   * command tag, and in between nothing may end the transaction.
   */
  private intercept(): void {
    const { runner } = this;
    const query = runner.query;
    const callers = runner.isTransactionActive;
    runner.query = (async (text: string, parameters?: unknown[], structured?: true): Promise<unknown> => {
      if (this.phase === 'beginning' && text === 'START TRANSACTION') return query.call(runner, this.beginAndGuard());
      if (this.phase === 'beginning' && text.startsWith('SET TRANSACTION ISOLATION LEVEL')) return undefined;
      if (this.phase === 'committing' && text === 'COMMIT') return this.sendCommit();
      if (this.endReason) throw this.endReason;
      if (this.phase === 'open' && !callers && TRANSACTION_CONTROL.test(text)) {
        throw new FenceBypassError('A statement that ends the transaction', 'The transaction ends with the method; return or throw.');
      }
      if (this.touching) await this.touching;
      this.running += 1;
      try {
        return await (query as (...args: unknown[]) => Promise<unknown>).call(runner, text, parameters, structured);
      } catch (error) {
        if (sqlStateOf(error) === '25P02') throw new WriteRolledBackError(this.key, driverErrorOf(this.failure ?? error));
        this.failure ??= error;
        throw error;
      } finally {
        this.running -= 1;
      }
    }) as typeof query;
    this.stops.push(() => {
      runner.query = query;
    });
    if (callers) return;
    const release = runner.release;
    runner.release = () => Promise.reject(new FenceBypassError('Releasing the connection', 'It is given back when the method ends.'));
    this.stops.push(() => {
      runner.release = release;
    });
  }

  private beginAndGuard(): string {
    const level = this.isolation;
    const guards = this.authority.grants.map(({ key, generation, owner }) =>
      this.sql.guardCall({ key: this.client.escapeLiteral(key), generation, owner: this.client.escapeLiteral(owner), idleMs: this.idleMs() }),
    );
    return [`START TRANSACTION${level ? ` ISOLATION LEVEL ${level}` : ''}`, ...guards].join('; ');
  }

  private async sendCommit(): Promise<void> {
    if (this.touching) await this.touching;
    if (this.connectionError) throw this.connectionError;
    let command: string;
    try {
      const sent = this.client.query('COMMIT');
      ({ command } = await within(this.clock, COMMIT_MS, sent, () => new Error('no answer to COMMIT')));
    } catch (error) {
      // An ERROR in answer to COMMIT means that the transaction was rolled back; so does the idle limit, which ends a
      // session before it reads the COMMIT. Anything else leaves it open.
      const refused = (error as { severity?: string }).severity === 'ERROR' || sqlStateOf(error) === '25P03';
      if (!refused) throw new CommitUnknownError(this.key, error);
      this.phase = 'rolling back';
      throw error;
    }
    if (command !== 'COMMIT') {
      this.phase = 'rolling back';
      throw new WriteRolledBackError(this.key, driverErrorOf(this.failure));
    }
    this.phase = 'committed';
  }

  /** The leases have ended: the server must not keep the successor waiting for this transaction. */
  private end(reason: Error): void {
    if (this.endReason || this.phase === 'committing' || this.isOver) return;
    this.endReason = reason;
    if (this.client) void this.throwAway(reason);
  }

  /** A renewed lease: the server's idle limit, which runs from the last statement, is moved on. */
  private touch(): void {
    if (this.phase !== 'open' || this.running > 0 || this.touching || this.client.readyForQuery === false) return;
    this.touching = this.client
      .query(this.sql.touch, [String(this.idleMs())])
      // The transaction may have failed; the next statement of the body says so.
      .catch(() => undefined)
      .finally(() => (this.touching = undefined));
  }

  private async unlessEnded<T>(work: Promise<T>): Promise<T> {
    const ended = new Promise<never>((_, reject) => this.stops.push(this.authority.onEnd(reject)));
    try {
      return await Promise.race([work, ended]);
    } catch (error) {
      // A connection that comes after all goes straight back.
      void work.then(() => this.runner.release()).catch(() => undefined);
      throw error;
    }
  }

  private staleError(error: unknown): StaleGenerationError {
    const { detail, column } = driverErrorOf(error) as { detail?: string; column?: string };
    const current = detail === undefined || detail === 'none' ? undefined : Number(detail);
    const grant = this.authority.grants.find(({ owner }) => owner === column) ?? this.authority.grants[0]!;
    return new StaleGenerationError(grant.key, grant.generation, current, driverErrorOf(error));
  }

  private stopAll(): void {
    this.stops.splice(0).forEach((stop) => stop());
  }

  private async close(): Promise<void> {
    this.stopAll();
    await this.runner.release();
    if (this.phase !== 'committed') this.phase = 'over';
  }

  private async throwAway(error: Error): Promise<void> {
    this.stopAll();
    this.phase = 'over';
    await this.runner.releasePostgresConnection(error);
  }
}

export function notInstalled(cause?: unknown): FencingConfigError {
  return new FencingConfigError(
    'The tables of nestjs-fencing are missing in the database. Add fencingMigrations to the DataSource and run migrations, ' +
      'or use typeOrmFence({ ensureSchema: true }) in development.',
    cause,
  );
}

function messageOf(error: unknown): string {
  return String((error as Error | undefined)?.message ?? error);
}
