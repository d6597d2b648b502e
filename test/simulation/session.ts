import type { Grant } from '../../libs/fencing/src/core/lease-store.js';
import type { Database } from './database.js';
import type { VirtualProcess } from './world.js';

/** What a statement answers while it waits for a lock: it is tried again whenever a transaction has ended. */
export const BLOCKED = Symbol('blocked');
export type Statement<T> = (session: Session) => T | typeof BLOCKED;

/** The server ended the session, or refused a statement; a transaction that was open is rolled back. */
export class DatabaseError extends Error {}

export interface PendingWrite {
  readonly key: string;
  readonly attempt: string;
  readonly base: number | undefined;
}

export interface Transaction {
  readonly grants: readonly Grant[];
  readonly writes: PendingWrite[];
  readonly claims: string[];
  readonly results: Map<string, string>;
  idleMs: number;
}

/** One backend of the database: runs the statements of one connection, one after the other. */
export class Session {
  readonly locks = new Set<string>();
  transaction: Transaction | undefined;
  private readonly queue: { run: () => void; fail: (error: Error) => void }[] = [];
  private isBusy = false;
  private isOver = false;
  private stopWaiting: (() => void) | undefined;
  private cancelIdle: (() => void) | undefined;

  constructor(
    private readonly database: Database,
    readonly client: VirtualProcess,
  ) {}

  /** Runs a statement; one that waits for a lock longer than `lockMs` fails. */
  execute<T>(statement: Statement<T>, lockMs = Infinity): Promise<T> {
    return new Promise((resolve, reject) => {
      if (this.isOver) return reject(new DatabaseError('the session is over'));
      const attempt = (): boolean => {
        try {
          const answer = statement(this);
          if (answer === BLOCKED) return false;
          resolve(answer);
        } catch (error) {
          const failure = error as Error;
          this.end();
          reject(failure);
        }
        return true;
      };
      const run = (): void => {
        if (attempt()) return this.next();
        const done = (): void => {
          stop();
          cancel();
          this.stopWaiting = undefined;
        };
        const stop = this.database.whenUnlocked(() => {
          if (!attempt()) return;
          done();
          this.next();
        });
        const cancel =
          lockMs === Infinity
            ? () => undefined
            : this.database.world.after(lockMs, () => {
                done();
                this.end();
                reject(new DatabaseError('lock timeout'));
                this.next();
              });
        this.stopWaiting = () => {
          done();
          reject(new DatabaseError('terminated'));
        };
      };
      this.queue.push({ run, fail: reject });
      this.pump();
    });
  }

  begin(transaction: Transaction): void {
    this.transaction = transaction;
  }

  open(): Transaction {
    if (!this.transaction) throw new DatabaseError('there is no transaction');
    return this.transaction;
  }

  /** The transaction is over: what was committed is visible already, anything else is gone. */
  end(): void {
    const { transaction, database } = this;
    if (!transaction) return;
    this.transaction = undefined;
    this.locks.clear();
    for (const id of transaction.claims) {
      if (database.receipts.get(id)?.by === this) database.receipts.delete(id);
    }
    // After the statement that ended it.
    queueMicrotask(() => database.unlocked());
  }

  /** The client is gone. A statement that waits for a lock is not disturbed by that: it goes on, as in PostgreSQL. */
  hangUp(): void {
    if (this.isOver) return;
    this.queue.splice(0).forEach(({ fail }) => fail(new DatabaseError('the client is gone')));
    if (!this.stopWaiting) this.terminate('the client is gone');
    else this.queue.push({ run: () => this.terminate('the client is gone'), fail: () => undefined });
  }

  /** The server ends the session. */
  terminate(why: string): void {
    if (this.isOver) return;
    this.isOver = true;
    this.database.sessions.delete(this);
    this.cancelIdle?.();
    this.stopWaiting?.();
    this.queue.splice(0).forEach(({ fail }) => fail(new DatabaseError(why)));
    if (this.transaction) this.database.checker.record('db', `rolls back: ${why}`);
    this.end();
  }

  private next(): void {
    this.isBusy = false;
    this.pump();
  }

  private pump(): void {
    if (this.isBusy) return;
    this.cancelIdle?.();
    const statement = this.queue.shift();
    if (statement) {
      this.isBusy = true;
      statement.run();
    } else if (this.transaction && this.database.plant !== 'no idle limit') {
      this.cancelIdle = this.database.world.after(this.transaction.idleMs, () => {
        this.database.checker.count('idle limits');
        this.terminate('idle in transaction');
      });
    }
  }
}
