import { WriteRolledBackError } from '../core/errors.js';
import { driverErrorOf, type PgClient, sqlStateOf } from './driver.js';

/** What is under way on the connection of a transaction. */
export class Statements {
  /** Set when COMMIT or ROLLBACK goes out: what came after it would run outside the transaction. */
  isSealed = false;
  /** The first statement that failed: the cause of a later rollback. */
  failure: unknown;
  private running = 0;
  private onIdle: (() => void) | undefined;
  private touching: Promise<unknown> | undefined;
  /** A touch that came while a statement was running. */
  private due: (() => void) | undefined;

  /** @param key of the lease, for errors */
  constructor(private readonly key: string) {}

  async send(query: () => Promise<unknown>): Promise<unknown> {
    this.running += 1;
    try {
      if (this.touching) await this.touching;
      return await query();
    } catch (error) {
      if (sqlStateOf(error) === '25P02') {
        throw new WriteRolledBackError(this.key, driverErrorOf(this.failure ?? error));
      }
      this.failure ??= error;
      throw error;
    } finally {
      this.running -= 1;
      if (this.running === 0) {
        this.onIdle?.();
        this.due?.();
      }
    }
  }

  /** Nothing may be sent from now on; resolves when what was sent before has its answer. */
  async seal(): Promise<void> {
    this.isSealed = true;
    if (this.running > 0) await new Promise<void>((resolve) => (this.onIdle = resolve));
    if (this.touching) await this.touching;
  }

  /** Sends `query` between two statements, from which the server's idle limit then runs anew: now, or after the present one. */
  touch(client: PgClient, query: () => Promise<unknown>): void {
    this.due = undefined;
    if (this.isSealed || this.touching) return;
    if (this.running > 0 || client.readyForQuery === false) {
      this.due = () => this.touch(client, query);
      return;
    }
    this.touching = query()
      // The transaction may have failed; the next statement of the body says so.
      .catch(() => undefined)
      .finally(() => (this.touching = undefined));
  }
}
