import type { Readable } from 'node:stream';
import { FenceBypassError, WriteRolledBackError } from '../core/errors.js';
import type { WriteAuthority } from '../core/fence.js';
import { driverErrorOf, isConnectionLoss, type PgClient, sqlStateOf } from './driver.js';
import { controlsTransaction } from './transaction-control.js';

const ENDS_WITH_METHOD = 'The transaction ends with the method; return or throw.';

/** What may still be sent in a transaction, and what is under way on its connection. */
export class Statements {
  /** Why nothing more may be sent: the leases have ended, or the transaction has without us. */
  endReason: Error | undefined;
  /** The first statement that failed: the cause of a later rollback. */
  failure: unknown;
  /** Of rows: the connection sends nothing else until they were read, or destroyed. */
  readonly streams: Readable[] = [];
  /** Set once the guard has passed. */
  private client: PgClient | undefined;
  /** Set when COMMIT or ROLLBACK goes out: what came after it would run outside the transaction. */
  private isSealed = false;
  private running = 0;
  private onIdle: (() => void) | undefined;
  private touching: Promise<unknown> | undefined;
  /** A touch that came while a statement was running. */
  private due: (() => void) | undefined;

  constructor(private readonly authority: WriteAuthority) {}

  /** The guard has passed. */
  open(client: PgClient): void {
    this.client = client;
  }

  get isOpen(): boolean {
    return this.client !== undefined;
  }

  /** @throws the error for a statement that came after the transaction had ended */
  assertOpen(): void {
    if (this.endReason) throw this.endReason;
    if (this.isSealed) throw this.tooLate();
  }

  tooLate(): Error {
    return this.authority.ended() ?? notAwaited('A statement');
  }

  /** @throws where `text` may not be sent in an open transaction */
  assertMaySend(text: string): void {
    this.assertOpen();
    if (!this.client) return;
    this.assertInTransaction(this.client);
    if (controlsTransaction(text)) {
      throw new FenceBypassError('A statement that ends the transaction', ENDS_WITH_METHOD);
    }
  }

  /**
   * Nothing may be sent from now on, and what was sent has its answer: COMMIT may go out.
   * @throws why it may not
   */
  async sealForCommit(connectionError: () => Error | undefined): Promise<void> {
    // COMMIT would wait behind it, and the next owner for that.
    if (this.streams.some((stream) => !stream.readableEnded && !stream.destroyed))
      throw notAwaited('A stream of rows');
    const pending = this.seal();
    if (pending) await pending;
    const reason = this.endReason ?? connectionError();
    if (reason) throw reason;
    // The body may have swallowed it, and the connection not have reported it yet.
    if (isConnectionLoss(this.failure)) throw this.failure;
    this.assertInTransaction(this.client!);
  }

  send(query: () => Promise<unknown>): Promise<unknown> {
    this.running += 1;
    const sent = this.touching ? this.touching.then(query) : query();
    return sent.then(this.onAnswer, this.onError);
  }

  /** Nothing may be sent from now on. Answers what to wait for where what was sent before has no answer yet. */
  seal(): Promise<unknown> | undefined {
    this.isSealed = true;
    this.streams.forEach((stream) => stream.destroy());
    if (this.running === 0) return this.touching;
    return new Promise<void>((resolve) => (this.onIdle = resolve)).then(() => this.touching);
  }

  /** Sends `query` between two statements, from which the server's idle limit then runs anew: now, or after the present one. */
  touch(query: () => Promise<unknown>): void {
    this.due = undefined;
    if (this.isSealed || this.touching) return;
    if (this.running > 0 || this.client!.readyForQuery === false) {
      this.due = () => this.touch(query);
      return;
    }
    this.touching = query()
      // The transaction may have failed; the next statement of the body says so.
      .catch(() => undefined)
      .finally(() => (this.touching = undefined));
  }

  /** Whatever ended it did so without us; what follows would run outside. */
  private assertInTransaction(client: PgClient): void {
    if (client.getTransactionStatus?.() !== 'I') return;
    throw (this.endReason = new FenceBypassError(
      'What follows the end of the transaction',
      ENDS_WITH_METHOD,
    ));
  }

  private readonly onAnswer = (answer: unknown): unknown => {
    this.answered();
    return answer;
  };

  private readonly onError = (error: unknown): never => {
    const reason =
      sqlStateOf(error) === '25P02'
        ? new WriteRolledBackError(this.authority.grants[0]!.key, driverErrorOf(this.failure ?? error))
        : error;
    if (reason === error) this.failure ??= error;
    this.answered();
    throw reason;
  };

  private answered(): void {
    this.running -= 1;
    if (this.running > 0) return;
    this.onIdle?.();
    this.due?.();
  }
}

export function notAwaited(what: string): FenceBypassError {
  return new FenceBypassError(`${what} that was not awaited before it ended`, 'Await it inside the method.');
}
