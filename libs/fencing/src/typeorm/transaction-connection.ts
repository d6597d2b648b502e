import type { Clock } from '../core/clock.js';
import type { WriteAuthority } from '../core/fence.js';
import { within } from '../core/timing.js';
import { type PgClient, sqlStateOf } from './driver.js';

/** How long the answer to a COMMIT is waited for, ms: a synchronous replica may be slow, a dead socket never answers. */
const COMMIT_MS = 60_000;
/** How long the answer to a ROLLBACK is waited for before the connection is thrown away, ms. */
export const ROLLBACK_MS = 2_000;
/** PostgreSQL's time settings are 32-bit. */
const LARGEST_SETTING_MS = 2 ** 31 - 1;

/** A time setting for the server: a whole number, and never 0, which would mean "no limit". */
export function settingMs(ms: number): number {
  return Math.min(LARGEST_SETTING_MS, Math.max(1, Math.ceil(ms)));
}

/** `rolled back`: the server answered COMMIT with ROLLBACK. `refused`: with an error. `unknown`: there was no answer. */
export type CommitOutcome =
  | { readonly outcome: 'committed' | 'rolled back' }
  | { readonly outcome: 'refused' | 'unknown'; readonly error: unknown };

const COMMITTED: CommitOutcome = { outcome: 'committed' };
const ROLLED_BACK: CommitOutcome = { outcome: 'rolled back' };

/** The connection of one guarded transaction: what it reported, how long the server lets it be idle, what became of its COMMIT. */
export class TransactionConnection {
  /** What the connection itself reported, before TypeORM hides it behind "already released". */
  error: Error | undefined;
  /** The idle limit that the server was given last, ms. It runs anew from each statement. */
  private idleLimitMs = 0;
  /** By the clock, when the server has ended a session that never sees the COMMIT. */
  private endsBy = -Infinity;
  private readonly onError = (error: Error): void => {
    this.error ??= error;
  };

  constructor(
    readonly client: PgClient,
    private readonly authority: WriteAuthority,
    private readonly clock: Clock,
  ) {}

  attach(): void {
    this.client.on('error', this.onError);
  }

  detach(): void {
    this.client.removeListener('error', this.onError);
  }

  /** The idle limit for the server now: what is left of the leases. */
  idleMs(): number {
    return (this.idleLimitMs = settingMs(this.authority.remainingMs()));
  }

  /** After this many ms the server has ended a session that never saw the COMMIT. */
  get outlivesMs(): number {
    return Math.max(0, this.endsBy - this.clock.now());
  }

  /** Sends COMMIT. Never rejects. */
  commit(): Promise<CommitOutcome> {
    this.endsBy = this.clock.now() + this.idleLimitMs;
    return new Promise((resolve) => {
      const failed = async (error: unknown): Promise<void> => {
        cancel();
        resolve({ outcome: (await this.wasRefused(error)) ? 'refused' : 'unknown', error });
      };
      const cancel = this.clock.setTimer(COMMIT_MS, () => void failed(new Error('no answer to COMMIT')));
      this.client.query('COMMIT').then(({ command }) => {
        cancel();
        resolve(command === 'COMMIT' ? COMMITTED : ROLLED_BACK);
      }, failed);
    });
  }

  /**
   * An error in answer to COMMIT means that the transaction was rolled back, if the session goes on after it (its severity is
   * no help: the server translates it). So does the idle limit, which ends a session before it reads the COMMIT. Anything
   * else leaves it open.
   */
  private async wasRefused(error: unknown): Promise<boolean> {
    const state = sqlStateOf(error);
    if (state === undefined || state === '25P03') return state === '25P03';
    const sent = this.client.query('ROLLBACK');
    return within(this.clock, ROLLBACK_MS, sent, () => new Error('no answer')).then(
      () => true,
      () => false,
    );
  }
}
