import { type EntityManager, QueryFailedError } from 'typeorm';
import { type Clock, systemClock } from '../core/clock.js';
import {
  CommitUnknownError,
  FenceBypassError,
  FencingConfigError,
  FencingError,
  StaleGenerationError,
  WriteRolledBackError,
} from '../core/errors.js';
import type { IsolationLevel, WriteAuthority } from '../core/fence.js';
import type { Grant } from '../core/lease-store.js';
import { within } from '../core/timing.js';
import {
  driverErrorOf,
  isConnectionLoss,
  isDatabaseError,
  type PgClient,
  type PgQueryRunner,
  sqlStateOf,
} from './driver.js';
import { beginError, bodyError, protectedError } from './failures.js';
import { type FencingSql, STALE_SQLSTATE } from './sql.js';
import { Statements } from './statements.js';
import { controlsTransaction } from './transaction-control.js';

/** How long the answer to a ROLLBACK is waited for before the connection is thrown away, ms. */
const ROLLBACK_MS = 2_000;
/** How long the answer to a COMMIT is waited for, ms: a synchronous replica may be slow, a dead socket never answers. */
const COMMIT_MS = 60_000;
/** PostgreSQL's time settings are 32-bit. */
const LARGEST_SETTING_MS = 2 ** 31 - 1;

const ENDS_WITH_METHOD = 'The transaction ends with the method; return or throw.';

/** `closing`: the body is done, COMMIT is not sent yet. `committing`: it is sent, and its outcome not known. */
type Phase = 'beginning' | 'open' | 'closing' | 'committing' | 'committed' | 'rolling back' | 'over';

/**
 * One transaction under a set of grants: the guard is its first statement, it is tied to its leases while it is open, and it
 * counts as accepted only when the server said COMMIT.
 */
export class GuardedTransaction {
  private phase: Phase = 'beginning';
  private client: PgClient | undefined;
  /** Set once the guard was sent together with BEGIN. */
  private guarded = false;
  /** Set once the guard has passed. */
  private opened = false;
  /** Why nothing more may be sent, once the leases have ended. */
  private endReason: Error | undefined;
  /** What the connection itself reported, before TypeORM hides it behind "already released". */
  private connectionError: Error | undefined;
  private lostCommit = false;
  /** The idle limit that the server was given last, ms. It runs anew from each statement. */
  private idleLimitMs = 0;
  /** By the clock, when the server has ended a session that never sees the COMMIT. */
  private endsBy = -Infinity;
  private readonly statements: Statements;
  private readonly stops: (() => void)[] = [];

  constructor(
    readonly runner: PgQueryRunner,
    readonly authority: WriteAuthority,
    private readonly sql: FencingSql,
    readonly isolation: IsolationLevel | undefined,
    private readonly clock: Clock = systemClock,
  ) {
    this.statements = new Statements(this.key);
  }

  get manager(): EntityManager {
    return this.runner.manager;
  }

  get isOver(): boolean {
    return this.phase === 'over' || this.phase === 'committed';
  }

  /** COMMIT was sent, and its outcome is not known. */
  get isUnknown(): boolean {
    return this.lostCommit;
  }

  /** After this many ms the server has ended a session that never saw the COMMIT. */
  get outlivesMs(): number {
    return Math.max(0, this.endsBy - this.clock.now());
  }

  private get key(): string {
    return this.authority.grants[0]!.key;
  }

  /** Whether every one of `grants` is guarded here. */
  guards(grants: readonly Grant[]): boolean {
    return grants.every((grant) =>
      this.authority.grants.some(
        ({ owner, generation }) => owner === grant.owner && generation === grant.generation,
      ),
    );
  }

  /**
   * Takes a connection, begins, and guards, in one message to the server.
   * @throws StaleGenerationError, the reason the lease ended, or StoreUnavailableError
   */
  async begin(): Promise<void> {
    this.stops.push(this.authority.onEnd((reason) => this.end(reason)));
    this.client = await this.unlessEnded(this.runner.connect() as Promise<PgClient>);
    // The wait for a connection may have been long.
    const reason = this.authority.ended() ?? this.endReason;
    if (reason) throw reason;
    this.attach(this.client);
    this.intercept(this.client);
    await this.runner.startTransaction(this.isolation);
    if (!this.guarded) {
      throw new FencingConfigError(
        'The installed TypeORM begins a transaction in a way that cannot be guarded.',
      );
    }
    this.open();
  }

  /**
   * Guards inside a transaction that the application opened on the runner; again for each write, since a savepoint that was
   * undone took its lock with it. Refusing leaves that transaction usable.
   * @throws StaleGenerationError
   */
  async guardInside(): Promise<void> {
    const client = (await this.runner.connect()) as PgClient;
    for (const { key, generation, owner } of this.authority.grants) {
      const parameters = [key, generation, owner, String(this.idleMs())];
      const guarded = (await this.runner.query(this.sql.guardQuietly, parameters)) as unknown[];
      if (guarded.length > 0) continue;
      const [fence] = (await this.runner.query(this.sql.readFence, [key])) as { generation: string }[];
      throw new StaleGenerationError(key, generation, fence && Number(fence.generation));
    }
    if (this.opened) return;
    this.client = client;
    this.attach(client);
    this.intercept(client);
    this.stops.push(this.authority.onEnd((reason) => this.end(reason)));
    this.open();
  }

  /**
   * Commits. Returns only when the server confirmed it.
   * @throws the reason the lease ended, WriteRolledBackError, CommitUnknownError, or the server's error
   */
  async commit(): Promise<void> {
    const reason = this.authority.ended() ?? this.endReason;
    if (reason) throw reason;
    if (this.runner.transactionDepth > 1) throw notAwaited('A transaction inside this fenced write');
    this.phase = 'closing';
    try {
      await this.runner.commitTransaction();
      if (!this.isOver) throw notAwaited('A transaction inside this fenced write');
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
      if (unknown || this.connectionError)
        throw this.connectionError ?? new Error('the state of the transaction is unknown');
      if (this.runner.isTransactionActive) {
        // All of it, also where a transaction inside was left open.
        this.runner.transactionDepth = Math.min(this.runner.transactionDepth, 1);
        const undone = this.runner.rollbackTransaction();
        await within(this.clock, ROLLBACK_MS, undone, () => new Error('no answer to ROLLBACK'));
      }
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

  /** @throws the error for a statement that came after the transaction had ended */
  assertOpen(): void {
    if (this.endReason) throw this.endReason;
    if (this.isOver || this.statements.isSealed) throw this.authority.ended() ?? notAwaited('A statement');
  }

  /** What the caller gets for `error`. */
  explain(error: unknown): unknown {
    if (error instanceof FencingError) return error;
    if (sqlStateOf(error) === STALE_SQLSTATE) return this.staleError(error);
    const refused = protectedError(this.key, error);
    if (refused) return refused;
    if (this.endReason && isDatabaseError(error)) return this.endReason;
    if (!this.client || (!this.opened && isDatabaseError(error))) return beginError(this.key, error);
    return bodyError(this.key, error, this.connectionError);
  }

  // ----------------------------------------------------------------------------------------------------------- parts

  private open(): void {
    this.opened = true;
    this.phase = 'open';
    this.stops.push(this.authority.onRenewed(() => this.touch()));
  }

  private idleMs(): number {
    const remaining = Math.ceil(this.authority.remainingMs());
    return (this.idleLimitMs = Math.min(LARGEST_SETTING_MS, Math.max(1, remaining)));
  }

  private attach(client: PgClient): void {
    const onError = (error: Error): void => {
      this.connectionError ??= error;
    };
    client.on('error', onError);
    this.stops.push(() => client.removeListener('error', onError));
  }

  /**
   * Every statement of this transaction goes through here: the first becomes "begin and guard", the last is checked for its
   * command tag, and nothing gets past the end of the transaction.
   */
  private intercept(client: PgClient): void {
    const { runner } = this;
    const query = runner.query.bind(runner) as (...args: unknown[]) => Promise<unknown>;
    const stream = runner.stream.bind(runner);
    const release = runner.release.bind(runner);
    const isCallers = runner.isTransactionActive;

    runner.query = (async (text: string, parameters?: unknown[], structured?: true): Promise<unknown> => {
      if (this.phase === 'beginning' && text === 'START TRANSACTION') {
        this.guarded = true;
        return query(this.beginAndGuard(client));
      }
      if (this.phase === 'beginning' && text.startsWith('SET TRANSACTION ISOLATION LEVEL')) return undefined;
      if (this.phase === 'closing' && text === 'COMMIT') return this.sendCommit(client);
      if (this.phase === 'rolling back' && text === 'ROLLBACK') {
        await this.statements.seal();
        return query(text);
      }
      this.assertMaySend(text);
      return this.statements.send(() => query(text, parameters, structured));
    }) as typeof runner.query;

    runner.stream = async (text, ...rest) => {
      this.assertMaySend(text);
      return stream(text, ...rest);
    };
    if (!isCallers) {
      runner.release = () =>
        Promise.reject(
          new FenceBypassError('Releasing the connection', 'It is given back when the method ends.'),
        );
    }
    this.stops.push(() => Object.assign(runner, { query, stream, release }));
  }

  private assertMaySend(text: string): void {
    this.assertOpen();
    if (!this.opened) return;
    this.assertInTransaction();
    if (controlsTransaction(text)) {
      throw new FenceBypassError('A statement that ends the transaction', ENDS_WITH_METHOD);
    }
  }

  /** Whatever ended it did so without us; what follows would run outside. */
  private assertInTransaction(): void {
    if (this.client!.getTransactionStatus?.() !== 'I') return;
    throw (this.endReason = new FenceBypassError(
      'What follows the end of the transaction',
      ENDS_WITH_METHOD,
    ));
  }

  private beginAndGuard(client: PgClient): string {
    const level = this.isolation;
    const { grants } = this.authority;
    const all = Object.fromEntries(grants.map(({ key, generation }) => [key, generation]));
    const generations = client.escapeLiteral(JSON.stringify(all));
    const guards = grants.map(({ key, generation, owner }) =>
      this.sql.guardCall({
        key: client.escapeLiteral(key),
        generation,
        owner: client.escapeLiteral(owner),
        idleMs: this.idleMs(),
        generations,
      }),
    );
    return [`START TRANSACTION${level ? ` ISOLATION LEVEL ${level}` : ''}`, ...guards].join('; ');
  }

  private async sendCommit(client: PgClient): Promise<void> {
    await this.statements.seal();
    if (this.endReason) throw this.endReason;
    if (this.connectionError) throw this.connectionError;
    // The body may have swallowed it, and the connection not have reported it yet.
    const { failure } = this.statements;
    if (isConnectionLoss(failure)) throw failure;
    this.assertInTransaction();
    this.phase = 'committing';
    this.endsBy = this.clock.now() + this.idleLimitMs;
    let command: string;
    try {
      const sent = client.query('COMMIT');
      ({ command } = await within(this.clock, COMMIT_MS, sent, () => new Error('no answer to COMMIT')));
    } catch (error) {
      if (!(await this.wasRefused(client, error))) {
        this.lostCommit = true;
        throw new CommitUnknownError(this.key, error);
      }
      this.phase = 'rolling back';
      // As TypeORM would have it.
      throw new QueryFailedError('COMMIT', undefined, error as Error);
    }
    if (command !== 'COMMIT') {
      this.phase = 'rolling back';
      throw new WriteRolledBackError(this.key, driverErrorOf(failure));
    }
    this.phase = 'committed';
  }

  /**
   * An error in answer to COMMIT means that the transaction was rolled back, if the session goes on after it (its severity is
   * no help: the server translates it). So does the idle limit, which ends a session before it reads the COMMIT. Anything
   * else leaves it open.
   */
  private async wasRefused(client: PgClient, error: unknown): Promise<boolean> {
    const state = sqlStateOf(error);
    if (state === undefined || state === '25P03') return state === '25P03';
    const answer = within(this.clock, ROLLBACK_MS, client.query('ROLLBACK'), () => new Error('no answer'));
    return answer.then(
      () => true,
      () => false,
    );
  }

  /** The leases have ended: the server must not keep the successor waiting for this transaction. */
  private end(reason: Error): void {
    if (this.endReason || this.phase === 'committing' || this.isOver) return;
    this.endReason = reason;
    if (this.client) void this.throwAway(reason);
  }

  /** A renewed lease: the server's idle limit, which runs from the last statement, is moved on. */
  private touch(): void {
    const client = this.client!;
    if (this.phase !== 'open') return;
    this.statements.touch(client, () => client.query(this.sql.touch, [String(this.idleMs())]));
  }

  private async unlessEnded(work: Promise<PgClient>): Promise<PgClient> {
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

function notAwaited(what: string): FenceBypassError {
  return new FenceBypassError(`${what} that was not awaited before it ended`, 'Await it inside the method.');
}
