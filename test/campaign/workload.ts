import { AsyncLocalStorage } from 'node:async_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { Injectable } from '@nestjs/common';
import { InjectDataSource, InjectRepository } from '@nestjs/typeorm';
import {
  CommitUnknownError,
  CurrentLease,
  FencedWrite,
  FencingError,
  FencingService,
  type Lease,
  Leased,
  StaleGenerationError,
} from 'nestjs-fencing';
import { type DataSource, Repository } from 'typeorm';
import { Cell, Entry, LogEntry } from './entities.js';
import { HistoryFile } from './history.js';

/** How long a call stays where, ms. */
export interface Pace {
  /** Between reading and writing. */
  readonly before: number;
  /** Inside the transaction, doing nothing or in a statement. */
  readonly inside: number;
  readonly insideSql: boolean;
  /** After the last write. */
  readonly after: number;
}

/** A call as the history knows it, and what it has read. */
export interface CallNote {
  readonly call: string;
  readonly pace: Pace;
  readonly seen: Map<string, Cell>;
}

/** One write that the fenced method finds in its context, so that its arguments stay those of a real method. */
interface AttemptNote extends CallNote {
  readonly attempt: string;
  ran: boolean;
}

interface Written {
  seq: number;
}

const attempts = new AsyncLocalStorage<AttemptNote>();

/** The work of the campaign: every call reads under its lease and writes through a fenced method, on different paths. */
@Injectable()
export class Workload {
  private attemptCount = 0;
  private readonly cells: Repository<Cell>;
  private readonly entries: Repository<Entry>;
  private readonly logs: Repository<LogEntry>;

  constructor(
    @InjectRepository(Cell) cells: Repository<Cell>,
    @InjectRepository(Entry) entries: Repository<Entry>,
    @InjectRepository(LogEntry) logs: Repository<LogEntry>,
    @InjectDataSource() private readonly dataSource: DataSource,
    private readonly fencing: FencingService,
    private readonly history: HistoryFile,
  ) {
    [this.cells, this.entries, this.logs] = [cells, entries, logs];
  }

  // ------------------------------------------------------------------------------------------------------ leased calls

  /** Read, think, write what follows from what was read; `times` in a row. */
  @Leased((_note: CallNote, key: string) => key)
  async modify(note: CallNote, key: string, times: number, @CurrentLease() lease?: Lease): Promise<void> {
    await this.begin(note, [lease!]);
    for (let i = 0; i < times; i++) {
      await sleep(note.pace.before);
      await this.attempt(note, [lease!], {}, () => this.put(key, note.seen.get(key)!.value + 1, lease!));
    }
    await sleep(note.pace.after);
  }

  /** Two appends at once, in two transactions of one lease. */
  @Leased((_note: CallNote, key: string) => key, { onUncertain: 'withhold' })
  async append(note: CallNote, key: string, @CurrentLease() lease?: Lease): Promise<void> {
    // A listener that throws must be contained.
    lease!.signal.addEventListener('abort', () => {
      throw new Error('a listener of the application failed');
    });
    await this.begin(note, [lease!]);
    await sleep(note.pace.before);
    const both = [0, 1].map(() => this.attempt(note, [lease!], {}, () => this.add(key, lease!)));
    for (const one of await Promise.allSettled(both)) if (one.status === 'rejected') throw one.reason;
    await sleep(note.pace.after);
  }

  /** Moves an amount between two keys, in one transaction that both leases guard. */
  async transfer(note: CallNote, from: string, to: string, amount: number): Promise<void> {
    await this.fencing.run([from, to], { onUncertain: 'reconcile' }, async (...leases) => {
      await this.begin(note, leases);
      await sleep(note.pace.before);
      await this.attempt(note, leases, {}, () => this.move(leases, amount));
      await sleep(note.pace.after);
    });
  }

  /** An operation that any worker may send, any number of times. */
  @Leased((_note: CallNote, _id: string, key: string) => key, { onUncertain: 'stop' })
  async operate(
    note: CallNote,
    operation: string,
    key: string,
    amount: number,
    @CurrentLease() lease?: Lease,
  ): Promise<void> {
    await this.begin(note, [lease!]);
    await sleep(note.pace.before);
    await this.attempt(note, [lease!], { operation, amount }, () => this.deposit(operation, key, amount));
    await sleep(note.pace.after);
  }

  /** Work that nobody awaits: it comes after its call has ended, and must be refused. */
  @Leased((_note: CallNote, key: string) => key)
  async forget(
    note: CallNote,
    key: string,
    late: Promise<void>,
    @CurrentLease() lease?: Lease,
  ): Promise<{
    late: Promise<unknown>;
  }> {
    await this.begin(note, [lease!]);
    const forgotten = late.then(() =>
      this.attempt(note, [lease!], { late: true }, () =>
        this.put(key, note.seen.get(key)!.value + 1, lease!),
      ),
    );
    return { late: forgotten.catch(() => undefined) };
  }

  /** A last write of every key by every worker, when there are no more faults. */
  async last(note: CallNote, key: string, waitMs: number): Promise<void> {
    await this.fencing.run(key, { waitMs }, async (lease) => {
      await this.begin(note, [lease]);
      await this.attempt(note, [lease], {}, () => this.put(key, note.seen.get(key)!.value + 1, lease));
    });
  }

  // ----------------------------------------------------------------------------------------------------- fenced writes

  /** Through an injected repository. */
  @FencedWrite()
  async put(key: string, value: number, lease: Lease): Promise<Written> {
    const note = await this.inside();
    const { value: read } = note.seen.get(key)!;
    const seq = await this.bump(key, 'value = $2', value);
    await this.logs.insert({ ...this.logOf(note, lease), seq, field: 'value', read, written: value });
    note.seen.set(key, { ...note.seen.get(key)!, value });
    return { seq };
  }

  /** Through an entity and the manager, at another isolation level. */
  @FencedWrite({ isolation: 'REPEATABLE READ', retries: 3 })
  async add(key: string, lease: Lease): Promise<Written> {
    const note = await this.inside();
    await this.entries.save({ key, attempt: note.attempt });
    const seq = await this.bump(key, 'value = value');
    await this.dataSource.manager.insert(LogEntry, {
      ...this.logOf(note, lease),
      seq,
      field: 'entry',
      read: null,
      written: null,
    });
    return { seq };
  }

  /** Two keys, a nested fenced write for each. */
  @FencedWrite()
  async move(leases: Lease[], amount: number): Promise<Written> {
    await this.inside();
    const [from, to] = leases as [Lease, Lease];
    const first = from.key < to.key ? () => this.change(from, -amount) : () => this.change(to, amount);
    const second = from.key < to.key ? () => this.change(to, amount) : () => this.change(from, -amount);
    await first();
    return second();
  }

  @FencedWrite()
  async change(lease: Lease, amount: number): Promise<Written> {
    const note = attempts.getStore()!;
    const read = note.seen.get(lease.key)!.balance;
    const seq = await this.bump(lease.key, 'balance = $2', read + amount);
    await this.logs
      .createQueryBuilder()
      .insert()
      .values({ ...this.logOf(note, lease), seq, field: 'balance', read, written: read + amount })
      .execute();
    return { seq };
  }

  /** Reads in its own transaction, serializable. */
  @FencedWrite({ operation: (operation: string) => operation, isolation: 'SERIALIZABLE', retries: 5 })
  async deposit(
    operation: string,
    key: string,
    amount: number,
    @CurrentLease() lease?: Lease,
  ): Promise<Written> {
    const note = await this.inside();
    const { value } = await this.cells.findOneByOrFail({ key });
    const seq = await this.bump(key, 'value = $2', value + amount);
    await this.logs.insert({
      ...this.logOf(note, lease!),
      seq,
      field: 'value',
      read: value,
      written: value + amount,
      operation,
    });
    return { seq };
  }

  // ------------------------------------------------------------------------------------------------------------- parts

  /** Reads the newest state under the leases. */
  private async begin(note: CallNote, leases: readonly Lease[]): Promise<void> {
    const grants = leases.map(grantOf);
    this.history.note({ e: 'enter', call: note.call, grants });
    for (const grant of grants) {
      const cell = await this.cells.findOneByOrFail({ key: grant.key });
      this.history.note({ e: 'read', call: note.call, ...grant, seq: cell.seq });
      note.seen.set(grant.key, cell);
    }
  }

  private async attempt(
    note: CallNote,
    leases: readonly Lease[],
    facts: { operation?: string; amount?: number; late?: boolean },
    write: () => Promise<Written>,
  ): Promise<void> {
    const attempt = `${note.call}.${++this.attemptCount}`;
    const context: AttemptNote = { ...note, attempt, ran: false };
    this.history.note({ e: 'write', call: note.call, attempt, grants: leases.map(grantOf), ...facts });
    try {
      const { seq } = await attempts.run(context, write);
      this.history.note({ e: 'done', attempt, outcome: 'ok', ran: context.ran, seq });
    } catch (error) {
      this.history.note({
        e: 'done',
        attempt,
        outcome: error instanceof CommitUnknownError ? 'unknown' : 'none',
        code: codeOf(error),
        ran: context.ran,
        current: error instanceof StaleGenerationError ? error.currentGeneration : undefined,
      });
      throw error;
    }
  }

  private async inside(): Promise<AttemptNote> {
    const note = attempts.getStore()!;
    const isFirstRun = !note.ran;
    note.ran = true;
    const { inside, insideSql } = note.pace;
    if (inside > 0 && isFirstRun) {
      if (insideSql) await this.dataSource.query('SELECT pg_sleep($1)', [inside / 1000]);
      else await sleep(inside);
    }
    return note;
  }

  private async bump(key: string, change: string, value?: number): Promise<number> {
    const [rows] = await this.cells.query<[{ seq: number }[], number]>(
      `UPDATE campaign_cell SET seq = seq + 1, ${change} WHERE key = $1 RETURNING seq`,
      value === undefined ? [key] : [key, value],
    );
    return rows[0]!.seq;
  }

  private logOf(note: AttemptNote, { key, generation, owner }: Lease) {
    return { key, generation, owner, attempt: note.attempt, readSeq: note.seen.get(key)!.seq };
  }
}

function grantOf({ key, generation, owner }: Lease) {
  return { key, generation, owner };
}

/** What kind of error it was; those that are neither of the package nor of the database say so themselves. */
export function codeOf(error: unknown): string {
  if (error instanceof FencingError) return error.code;
  const { code, driverError, name, message } = error as Error & {
    code?: unknown;
    driverError?: { code?: unknown };
  };
  const state = driverError?.code ?? code;
  if (typeof state === 'string') return `SQL ${state}`;
  return `${name}: ${message}`.slice(0, 160);
}
