import { transactionOf, runInTransaction } from '../../libs/fencing/src/core/context.js';
import {
  CommitUnknownError,
  FencingError,
  StaleGenerationError,
  StoreUnavailableError,
} from '../../libs/fencing/src/core/errors.js';
import {
  type ActivationAnswer,
  type ActivationRequest,
  Fence,
  type FenceSnapshot,
  type WriteAuthority,
  type WriteOutcome,
  type WriteRequest,
} from '../../libs/fencing/src/core/fence.js';
import { sleep, within } from '../../libs/fencing/src/core/timing.js';
import { type Database, StaleGrant } from './database.js';
import type { Network } from './network.js';
import { DatabaseError, type Session, type Statement } from './session.js';
import type { VirtualProcess } from './world.js';

/** How long the answer to a statement is waited for, ms. */
const STATEMENT_MS = 1_000;

class ConnectionLost extends Error {}

/** How much longer than the idle limit of a lost session its end is waited for, and the pause between two tries, ms. */
const SETTLE_MARGIN_MS = 2_000;
const SETTLE_PAUSE_MS = 50;

/** A connection of one process to the database: statements and answers in order, until it breaks. */
export class Connection {
  private readonly session: Session;
  private readonly toServer: (() => void)[] = [];
  private readonly toClient: (() => void)[] = [];
  private readonly unanswered = new Set<(error: Error) => void>();
  private broken: Error | undefined;
  /** Half-open: nothing arrives any more, and nobody is told. */
  private isSilent = false;
  /** A statement was lost on its way; those after it are as well. */
  private isLost = false;

  constructor(
    private readonly process: VirtualProcess,
    private readonly database: Database,
    private readonly network: Network,
  ) {
    this.session = database.connect(process);
  }

  async send<T>(statement: Statement<T>, { lockMs = Infinity, waitMs = STATEMENT_MS } = {}): Promise<T> {
    if (this.broken) throw this.broken;
    const answer = new Promise<T>((resolve, reject) => {
      this.unanswered.add(reject);
      this.deliver(statement, lockMs).then(
        (value) => this.reply(reject, () => resolve(value)),
        (error: Error) => this.reply(reject, () => reject(error)),
      );
    });
    return within(this.process, waitMs, answer, () => new ConnectionLost('no answer'));
  }

  /** The client gives the connection back, or throws it away: what was sent already may still be executed. */
  close(error: Error = new ConnectionLost('closed')): void {
    if (this.broken) return;
    this.broken = error;
    this.unanswered.forEach((reject) => reject(error));
    if (!this.isSilent) this.database.host.arrive(this.network.delay(), () => this.session.hangUp());
  }

  private deliver<T>(statement: Statement<T>, lockMs: number): Promise<T> {
    const { random } = this.process.world;
    const { broken, lostRequest } = this.network.weather;
    const cut = this.database.host.isCutOff(this.process);
    if (cut || random.chance(lostRequest)) this.isSilent = true;
    const breaks = random.chance(broken);
    // A connection that breaks: the statement may have been sent already.
    this.isLost ||= (this.isSilent || breaks) && random.chance(0.5);
    const isSent = !this.isLost;
    return new Promise((resolve, reject) => {
      this.toServer.push(() => {
        if (isSent) this.session.execute(statement, lockMs).then(resolve, reject);
        if (breaks) this.session.hangUp();
      });
      this.database.host.arrive(this.network.delay(), () => this.toServer.shift()?.());
      if (!breaks) return;
      this.process.world.after(
        this.network.delay(),
        () => this.fail(new ConnectionLost('reset')),
        this.process,
      );
    });
  }

  private reply(pending: (error: Error) => void, act: () => void): void {
    if (this.isSilent) return;
    this.toClient.push(() => {
      this.unanswered.delete(pending);
      act();
    });
    this.process.world.after(
      this.network.delay(),
      () => !this.isSilent && this.toClient.shift()?.(),
      this.process,
    );
  }

  private fail(error: Error): void {
    this.broken ??= error;
    this.unanswered.forEach((reject) => reject(error));
  }
}

/** A transaction as the body of a fenced write uses it. */
export class Tx {
  endReason: Error | undefined;
  phase: 'open' | 'committing' | 'over' = 'open';
  /** COMMIT had no answer. */
  isUnknown = false;

  constructor(
    private readonly database: Database,
    private readonly connection: Connection,
    readonly authority: WriteAuthority,
  ) {}

  read(key: string): Promise<number> {
    return this.send(this.database.read(key));
  }

  write(key: string, attempt: string, base: number | undefined): Promise<void> {
    return this.send(this.database.write({ key, attempt, base }));
  }

  async send<T>(statement: Statement<T>): Promise<T> {
    if (this.endReason) throw this.endReason;
    return this.connection.send(statement);
  }

  /** The leases have ended: the connection is thrown away, unless the COMMIT is on its way. */
  readonly end = (reason: Error): void => {
    if (this.endReason || this.phase !== 'open') return;
    this.endReason = reason;
    this.connection.close(reason);
  };
}

/**
 * The fence of one process on the simulated database. It does what the fence on PostgreSQL does: see `TypeOrmFence` and
 * `GuardedTransaction`.
 */
export class MemoryFence extends Fence<Tx> {
  constructor(
    private readonly process: VirtualProcess,
    private readonly database: Database,
    private readonly network: Network,
  ) {
    super();
  }

  async check(): Promise<void> {}

  async activate({ waitMs, ...grant }: ActivationRequest): Promise<ActivationAnswer> {
    const connection = this.connect();
    try {
      const ahead = await connection.send(this.database.activate(grant), {
        lockMs: waitMs,
        waitMs: waitMs + STATEMENT_MS,
      });
      if (ahead !== undefined) return { activated: false, generation: ahead };
      this.database.checker.activationReturned(grant.key, grant.generation);
      return { activated: true };
    } catch (error) {
      throw new StoreUnavailableError('database', `an activation failed (${String(error)}).`, {
        key: grant.key,
      });
    } finally {
      connection.close();
    }
  }

  async write<T>({ authority, operation, body }: WriteRequest<Tx, T>): Promise<WriteOutcome<T>> {
    const outer = transactionOf(this);
    if (outer instanceof Tx && outer.phase === 'open')
      return { result: await body(outer), duplicate: false, committed: false };
    const reason = authority.ended();
    if (reason) throw reason;
    const connection = this.connect();
    const tx = new Tx(this.database, connection, authority);
    const stops = [
      authority.onEnd(tx.end),
      authority.onRenewed(() => {
        if (tx.phase === 'open')
          connection.send(this.database.touch(idleMs(authority))).catch(() => undefined);
      }),
    ];
    let done: { readonly result: T; readonly duplicate: boolean } | undefined;
    try {
      await tx.send(this.database.begin(authority.grants, idleMs(authority)));
      const known = operation && (await tx.send(this.database.claim(operation.id)));
      const result = known ? (known.result as T) : await runInTransaction(this, tx, () => body(tx));
      if (operation && !known) await tx.send(this.database.recordResult(operation.id, String(result)));
      done = { result, duplicate: known !== undefined };
      await this.commit(tx, connection);
      return { ...done, committed: !known };
    } catch (error) {
      if (!operation || !done || !tx.isUnknown) throw explain(error, tx);
      connection.close();
      if (done.duplicate) return { ...done, committed: false };
      return await this.settle(operation.id, done.result, error as Error, authority);
    } finally {
      tx.phase = 'over';
      stops.forEach((stop) => stop());
      connection.close();
    }
  }

  /** A commit without an answer, of a write with an operation id: see `settleOperation`. */
  private async settle<T>(
    id: string,
    result: T,
    lost: Error,
    authority: WriteAuthority,
  ): Promise<WriteOutcome<T>> {
    const { checker } = this.database;
    const { key } = authority.grants[0]!;
    const until = this.process.now() + authority.remainingMs() + SETTLE_MARGIN_MS;
    for (;;) {
      const leftMs = Math.max(1, until - this.process.now());
      const connection = this.connect();
      try {
        const statement = this.database.settle(id);
        const receipt = await connection.send(statement, { lockMs: leftMs, waitMs: leftMs + STATEMENT_MS });
        checker.count(receipt ? 'lost commits found' : 'lost commits that were none');
        if (!receipt) throw new StoreUnavailableError('database', 'nothing was committed.', { key });
        const own = receipt.result === String(result);
        return { result: receipt.result as T, duplicate: !own, committed: own };
      } catch (error) {
        if (error instanceof StoreUnavailableError) throw error;
        if (this.process.now() + SETTLE_PAUSE_MS >= until) throw lost;
      } finally {
        connection.close();
      }
      await sleep(this.process, SETTLE_PAUSE_MS);
    }
  }

  inTransaction(): boolean {
    const tx = transactionOf(this);
    return tx instanceof Tx && tx.phase !== 'over';
  }

  async inspect(): Promise<FenceSnapshot | undefined> {
    return undefined;
  }

  async receipt(): Promise<undefined> {
    return undefined;
  }

  async pruneReceipts(): Promise<number> {
    return 0;
  }

  revoke(): never {
    throw new Error('not here');
  }

  async pruneAudit(): Promise<number> {
    return 0;
  }

  async close(): Promise<void> {}

  /** A plain query, outside any transaction. */
  async read(key: string): Promise<number> {
    const connection = this.connect();
    try {
      return await connection.send(this.database.read(key));
    } finally {
      connection.close();
    }
  }

  private async commit(tx: Tx, connection: Connection): Promise<void> {
    const reason = tx.authority.ended() ?? tx.endReason;
    if (reason) throw reason;
    tx.phase = 'committing';
    try {
      await connection.send(this.database.commit());
    } catch (error) {
      if (error instanceof DatabaseError) throw error;
      tx.isUnknown = true;
      if (this.database.plant !== 'a commit that is believed without an answer')
        throw new CommitUnknownError(tx.authority.grants[0]!.key, error);
    }
  }

  private connect(): Connection {
    return new Connection(this.process, this.database, this.network);
  }
}

function idleMs(authority: WriteAuthority): number {
  return Math.max(1, Math.ceil(authority.remainingMs()));
}

function explain(error: unknown, tx: Tx): unknown {
  const { key } = tx.authority.grants[0]!;
  if (error instanceof StaleGrant)
    return new StaleGenerationError(error.grant.key, error.grant.generation, error.current);
  if (error instanceof FencingError) return error;
  if (tx.endReason && (error instanceof ConnectionLost || error instanceof DatabaseError))
    return tx.endReason;
  if (error instanceof ConnectionLost || error instanceof DatabaseError)
    return new StoreUnavailableError('database', `a fenced write broke (${error.message}).`, { key });
  return error;
}
