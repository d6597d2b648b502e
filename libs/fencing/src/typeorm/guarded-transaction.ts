import type { Readable } from 'node:stream';
import { type EntityManager, QueryFailedError } from 'typeorm';
import { type Clock, systemClock } from '../core/clock.js';
import {
  CommitUnknownError,
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
  isDatabaseError,
  dataSourceOf,
  type PgClient,
  type PgQueryRunner,
  sqlStateOf,
} from './driver.js';
import { beginError, bodyError, protectedError } from './failures.js';
import { beginMessage, staleError } from './guard-message.js';
import { BEGUN, ENDED, hasAudience } from './quiet-transaction.js';
import { type FencingSql, STALE_SQLSTATE } from './sql.js';
import { gateRunner, type SendAsTypeOrm, type StatementGate } from './statement-gate.js';
import { notAwaited, Statements } from './statements.js';
import { ROLLBACK_MS, TransactionConnection } from './transaction-connection.js';

/** `closing`: the body is done, COMMIT is not sent yet. `committing`: it is sent, and its outcome not known. */
type Phase = 'beginning' | 'open' | 'closing' | 'committing' | 'committed' | 'rolling back' | 'over';

/**
 * One transaction under a set of grants: the guard is its first statement, it is tied to its leases while it is open, and it
 * counts as accepted only when the server said COMMIT.
 */
export class GuardedTransaction implements StatementGate {
  private phase: Phase = 'beginning';
  private connection: TransactionConnection | undefined;
  /** Set once the guard was sent together with BEGIN. */
  private guarded = false;
  private lostCommit = false;
  /** Whether nobody hears of its beginning and its end. */
  private readonly isQuiet: boolean;
  /** Ends the wait for a connection. */
  private stopWaiting: ((reason: Error) => void) | undefined;
  private readonly statements: Statements;
  private readonly stops: (() => void)[] = [];

  constructor(
    readonly runner: PgQueryRunner,
    readonly authority: WriteAuthority,
    private readonly sql: FencingSql,
    readonly isolation: IsolationLevel | undefined,
    private readonly clock: Clock = systemClock,
  ) {
    this.statements = new Statements(authority);
    this.isQuiet = !hasAudience(runner);
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
    return this.connection?.outlivesMs ?? 0;
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
    const client = await this.connect();
    this.attach(new TransactionConnection(client, this.authority, this.clock));
    // The wait for a connection may have been long.
    const reason = this.authority.ended() ?? this.statements.endReason;
    if (reason) throw reason;
    this.stops.push(gateRunner(this.runner, this, true));
    if (this.isQuiet) {
      // Before it is sent, as TypeORM has it: what fails is rolled back.
      Object.assign(this.runner, BEGUN);
      await this.sendBegin();
    } else {
      await this.runner.startTransaction(this.isolation);
    }
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
    const connection = this.connection ?? new TransactionConnection(client, this.authority, this.clock);
    for (const { key, generation, owner } of this.authority.grants) {
      const parameters = [key, generation, owner, String(connection.idleMs())];
      const guarded = (await this.runner.query(this.sql.guardQuietly, parameters)) as unknown[];
      if (guarded.length > 0) continue;
      const [fence] = (await this.runner.query(this.sql.readFence, [key])) as { generation: string }[];
      throw new StaleGenerationError(key, generation, fence && Number(fence.generation));
    }
    if (this.statements.isOpen) return;
    this.attach(connection);
    this.stops.push(
      gateRunner(this.runner, this, false),
      this.authority.onEnd((reason) => this.end(reason)),
    );
    this.open();
  }

  /**
   * Commits. Returns only when the server confirmed it.
   * @throws the reason the lease ended, WriteRolledBackError, CommitUnknownError, or the server's error
   */
  async commit(): Promise<void> {
    const reason = this.authority.ended() ?? this.statements.endReason;
    if (reason) throw reason;
    if (this.runner.transactionDepth > 1) throw notAwaited('A transaction inside this fenced write');
    this.phase = 'closing';
    try {
      if (this.isQuiet) {
        await this.sendCommit();
        Object.assign(this.runner, ENDED);
      } else {
        await this.runner.commitTransaction();
      }
      if (!this.isOver) throw notAwaited('A transaction inside this fenced write');
    } finally {
      // A subscriber may fail after the commit; the connection goes back all the same.
      if (this.isOver) await this.close();
    }
  }

  /** Rolls back and gives the connection back; a connection that does not confirm it is thrown away. */
  async rollback(): Promise<void> {
    if (this.isOver || !this.connection) {
      // Nothing was begun, or it has ended; a connection that is still on its way is given back when it comes.
      this.stopAll();
      this.phase = 'over';
      return;
    }
    const unknown = this.phase === 'committing';
    this.phase = 'rolling back';
    try {
      const { error } = this.connection;
      if (unknown || error) throw error ?? new Error('the state of the transaction is unknown');
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
    this.statements.assertOpen();
    if (this.isOver) throw this.statements.tooLate();
  }

  /** What the caller gets for `error`; one that cannot be looked at is not ours. */
  explain(error: unknown): unknown {
    try {
      return this.explained(error);
    } catch {
      return error;
    }
  }

  private explained(error: unknown): unknown {
    if (error instanceof FencingError) return error;
    if (sqlStateOf(error) === STALE_SQLSTATE) return staleError(this.authority.grants, error);
    const refused = protectedError(this.key, error);
    if (refused) return refused;
    if (this.statements.endReason && isDatabaseError(error)) return this.statements.endReason;
    if (!this.connection || (!this.statements.isOpen && isDatabaseError(error)))
      return beginError(this.key, error);
    return bodyError(this.key, error, this.connection.error);
  }

  // ------------------------------------------------------------------------------------------------------- statements

  /** BEGIN becomes "begin and guard", the answer to COMMIT is looked at, and ROLLBACK waits for what was sent before it. */
  control(text: string, send: SendAsTypeOrm): Promise<unknown> | undefined {
    switch (this.phase) {
      case 'beginning':
        if (text === 'START TRANSACTION') return this.sendBegin();
        // The level is part of the message.
        return text.startsWith('SET TRANSACTION ISOLATION LEVEL') ? Promise.resolve() : undefined;
      case 'closing':
        return text === 'COMMIT' ? this.sendCommit() : undefined;
      case 'rolling back':
        return text === 'ROLLBACK' ? this.sendRollback(send) : undefined;
      default:
        return undefined;
    }
  }

  assertMaySend(text: string): void {
    this.assertOpen();
    this.statements.assertMaySend(text);
  }

  statement(send: () => Promise<unknown>): Promise<unknown> {
    return this.statements.send(send);
  }

  opened(stream: Readable): void {
    this.statements.streams.push(stream);
  }

  private sendBegin(): Promise<unknown> {
    this.guarded = true;
    const { runner, authority, isolation } = this;
    const { client } = this.connection!;
    const message = beginMessage(this.sql, client, authority, isolation, this.connection!.idleMs());
    // What TypeORM does with a statement, without its events of statements.
    const logger = dataSourceOf(runner)?.logger;
    logger?.logQuery(message, undefined, runner);
    return client.query(message).catch((error: Error) => {
      logger?.logQueryError(error, message, undefined, runner);
      throw new QueryFailedError(message, undefined, error);
    });
  }

  private async sendCommit(): Promise<void> {
    const connection = this.connection!;
    await this.statements.sealForCommit(() => connection.error);
    this.phase = 'committing';
    const answer = await connection.commit();
    switch (answer.outcome) {
      case 'committed':
        this.phase = 'committed';
        return;
      case 'unknown':
        this.lostCommit = true;
        throw new CommitUnknownError(this.key, answer.error);
      case 'rolled back':
        this.phase = 'rolling back';
        throw new WriteRolledBackError(this.key, driverErrorOf(this.statements.failure));
      case 'refused':
        this.phase = 'rolling back';
        // As TypeORM would have it.
        throw new QueryFailedError('COMMIT', undefined, answer.error as Error);
    }
  }

  private async sendRollback(send: SendAsTypeOrm): Promise<unknown> {
    await this.statements.seal();
    return send('ROLLBACK');
  }

  // ------------------------------------------------------------------------------------------------ tied to its leases

  private open(): void {
    this.statements.open(this.connection!.client);
    this.phase = 'open';
    this.stops.push(this.authority.onRenewed(() => this.touch()));
  }

  /** The leases have ended: the server must not keep the successor waiting for this transaction. */
  private end(reason: Error): void {
    if (this.statements.endReason || this.phase === 'committing' || this.isOver) return;
    this.statements.endReason = reason;
    this.stopWaiting?.(reason);
    if (this.connection) void this.throwAway(reason);
  }

  /** A renewed lease: the server's idle limit, which runs from the last statement, is moved on. */
  private touch(): void {
    if (this.phase !== 'open') return;
    const connection = this.connection!;
    this.statements.touch(() => connection.client.query(this.sql.touch, [String(connection.idleMs())]));
  }

  // -------------------------------------------------------------------------------------------------------- connection

  /** The wait for a connection ends with the lease; one that comes after all goes straight back. */
  private connect(): Promise<PgClient> {
    return new Promise((resolve, reject) => {
      this.stopWaiting = reject;
      (this.runner.connect() as Promise<PgClient>).then((client) => {
        this.stopWaiting = undefined;
        if (this.statements.endReason) void this.runner.release();
        else resolve(client);
      }, reject);
    });
  }

  private attach(connection: TransactionConnection): void {
    this.connection = connection;
    connection.attach();
    this.stops.push(() => connection.detach());
  }

  private stopAll(): void {
    this.stops.splice(0).forEach((stop) => stop());
  }

  private close(): Promise<void> {
    this.stopAll();
    if (this.phase !== 'committed') this.phase = 'over';
    return this.runner.release();
  }

  private async throwAway(error: Error): Promise<void> {
    this.stopAll();
    this.phase = 'over';
    await this.runner.releasePostgresConnection(error);
  }
}
