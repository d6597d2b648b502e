import type { Evidence } from '../checker.js';
import type { Granted, HistoryEvent, Step } from '../history.js';
import type { CellRow, FenceRow, LogRow, ReceiptRow } from '../tables.js';

export const TTL = 1_500;
const BALANCE = 100;
const KEYS = ['alpha', 'beta'];

/** A leased call in the story. */
export interface Told {
  readonly who: string;
  readonly call: string;
  readonly grants: Granted[];
  /** What it read under its lease. */
  readonly read: Map<string, CellRow>;
}

export interface WriteOptions {
  /** @default 'value', one more than was read; 'balance': moves 10 from the first key to the second */
  field?: 'value' | 'balance' | 'entry';
  operation?: string;
  amount?: number;
  late?: boolean;
  /** @default 'ok' */
  outcome?: 'ok' | 'none' | 'unknown' | 'no answer';
  code?: string;
  current?: number;
  /** How often the effect is in the tables. @default once where the outcome is ok */
  effects?: number;
  /** Whose name is on the rows. @default the call's own */
  as?: Partial<Granted>;
}

/** Writes the evidence of a campaign by hand: a true story, or one with a fault planted in it. */
export class Story {
  t = 1_000;
  private readonly events: HistoryEvent[] = [];
  private readonly log: LogRow[] = [];
  private readonly entries: string[] = [];
  private readonly receipts: ReceiptRow[] = [];
  private readonly fences = new Map<string, FenceRow>();
  private readonly cells = new Map<string, CellRow>(
    KEYS.map((key) => [key, { key, seq: 0, value: 0, balance: BALANCE }]),
  );
  private count = 0;
  private generation = 100;

  note(who: string, step: Step): void {
    this.t += 1;
    this.events.push({ t: this.t, who, ...step });
  }

  wait(ms: number): void {
    this.t += ms;
  }

  cell(key: string): CellRow {
    return this.cells.get(key)!;
  }

  /** A worker calls, is granted the keys, activates them and reads. */
  begin(
    who: string,
    keys: string[],
    { kind = 'modify', grant = {}, waitMs = 3_000, notesReads = true } = {},
  ): Told {
    const call = `${who}-${++this.count}`;
    this.note(who, { e: 'call', call, kind, keys, waitMs });
    const grants = keys.map((key) => {
      const one = { key, generation: (this.generation += 10), owner: `owner-${++this.count}`, ...grant };
      this.generation = Math.max(this.generation, one.generation);
      this.note(who, {
        e: 'acquire',
        sent: this.t,
        key,
        owner: one.owner,
        floor: 0,
        generation: one.generation,
      });
      this.activate(who, one);
      return one;
    });
    this.note(who, { e: 'enter', call, grants });
    const read = new Map(keys.map((key) => [key, this.cell(key)]));
    if (notesReads)
      for (const grant of grants)
        this.note(who, { e: 'read', call, ...grant, seq: read.get(grant.key)!.seq });
    return { who, call, grants, read };
  }

  activate(who: string, grant: Granted, ahead?: number): void {
    this.note(who, { e: 'activating', ...grant });
    this.note(who, { e: 'activated', sent: this.t - 1, ...grant, ahead });
    if (ahead === undefined) this.fences.set(grant.key, grant);
  }

  /** One fenced write of a call: what was sent, what is in the tables, what was answered. */
  write(told: Told, options: WriteOptions = {}): string {
    const { field = 'value', operation, amount, late, outcome = 'ok', code, current } = options;
    const attempt = `${told.call}.${++this.count}`;
    this.note(told.who, {
      e: 'write',
      call: told.call,
      attempt,
      grants: told.grants,
      operation,
      amount,
      late,
    });
    let seq: number | undefined;
    for (let times = options.effects ?? (outcome === 'ok' ? 1 : 0); times > 0; times--) {
      told.grants.forEach((grant, i) => {
        seq = this.commit(
          { ...grant, ...options.as },
          told,
          attempt,
          field,
          (i === 0 ? -1 : 1) * 10,
          operation,
          amount,
        );
      });
    }
    this.t += 1;
    if (outcome !== 'no answer')
      this.note(told.who, { e: 'done', attempt, outcome, code, ran: true, seq, current });
    return attempt;
  }

  /** A sender is told what an earlier one did. */
  receipt(told: Told, operation: string, amount: number, seq: number): void {
    const attempt = `${told.call}.${++this.count}`;
    this.note(told.who, { e: 'write', call: told.call, attempt, grants: told.grants, operation, amount });
    this.note(told.who, { e: 'done', attempt, outcome: 'ok', ran: false, seq });
  }

  /** The call ends and gives its keys back. */
  end(told: Told, outcome = 'ok'): void {
    for (const { key, owner } of told.grants) {
      this.note(told.who, { e: 'releasing', key, owner, hold: false });
      this.note(told.who, { e: 'released', sent: this.t - 1, key, owner, held: true });
    }
    this.note(told.who, { e: 'end', call: told.call, outcome, late: false });
  }

  /** A fault, and the write of every key that follows it. */
  fault(kind: string, { loses = false, recovered = true } = {}): void {
    const id = ++this.count;
    this.note('nemesis', { e: 'fault', id, kind, phase: 'begin', alone: true, loses });
    this.note('nemesis', { e: 'fault', id, kind, phase: 'end', alone: true, loses });
    if (recovered) this.everyKey('w0');
  }

  everyKey(who: string, kind = 'modify'): void {
    for (const key of KEYS) {
      const told = this.begin(who, [key], { kind });
      this.write(told);
      this.end(told);
    }
  }

  evidence(): Evidence {
    const tables = {
      log: [...this.log].sort((a, b) => (a.key === b.key ? a.seq - b.seq : a.key < b.key ? -1 : 1)),
      cells: [...this.cells.values()],
      entries: this.entries,
      receipts: this.receipts,
      fences: [...this.fences.values()],
    };
    return { events: this.events, tables, complete: true, keys: KEYS, ttlMs: TTL, balance: BALANCE };
  }

  /** For what no writer could do: changes the tables themselves. */
  tamper(
    change: (tables: {
      log: LogRow[];
      cells: Map<string, CellRow>;
      entries: string[];
      receipts: ReceiptRow[];
    }) => void,
  ): void {
    change({ log: this.log, cells: this.cells, entries: this.entries, receipts: this.receipts });
  }

  private commit(
    by: Granted,
    told: Told,
    attempt: string,
    field: 'value' | 'balance' | 'entry',
    move: number,
    operation?: string,
    amount = 1,
  ): number {
    const { key, generation, owner } = by;
    const cell = this.cell(key);
    const seq = cell.seq + 1;
    const read = field === 'entry' ? null : told.read.get(key)![field];
    const written = read === null ? null : read + (field === 'value' ? amount : move);
    this.log.push({
      key,
      seq,
      attempt,
      generation,
      owner,
      readSeq: told.read.get(key)!.seq,
      field,
      read,
      written,
      operation: operation ?? null,
    });
    if (field === 'entry') this.entries.push(attempt);
    if (operation !== undefined && !this.receipts.some(({ id }) => id === operation))
      this.receipts.push({ id: operation, seq, generation, owner });
    this.cells.set(key, { ...cell, seq, ...(written !== null && { [field]: written }) });
    if (written !== null) told.read.set(key, { ...told.read.get(key)!, [field]: written });
    return seq;
  }
}

/** Two workers, all kinds of work, a fault, and a calm end: nothing in it is wrong. */
export function trueStory(chapter?: (story: Story) => void, ending?: (story: Story) => void): Story {
  const story = new Story();
  for (const who of ['w0', 'w1']) story.note(who, { e: 'ready' });
  story.everyKey('w0');
  const transfer = story.begin('w1', ['alpha', 'beta'], { kind: 'transfer' });
  story.write(transfer, { field: 'balance' });
  story.end(transfer);
  const append = story.begin('w0', ['alpha'], { kind: 'append' });
  story.write(append, { field: 'entry' });
  story.write(append, { field: 'entry' });
  story.end(append);
  const first = story.begin('w0', ['beta'], { kind: 'operate' });
  story.write(first, { operation: 'op-1', amount: 5 });
  story.end(first);
  const { seq } = story.cell('beta');
  const second = story.begin('w1', ['beta'], { kind: 'operate' });
  story.receipt(second, 'op-1', 5, seq);
  story.end(second);
  // A commit whose answer was lost, and its operation sent again.
  const lost = story.begin('w0', ['alpha'], { kind: 'operate' });
  story.write(lost, { operation: 'op-2', amount: 3, outcome: 'unknown', code: 'COMMIT_UNKNOWN', effects: 1 });
  story.end(lost, 'COMMIT_UNKNOWN');
  const again = story.begin('w1', ['alpha'], { kind: 'operate' });
  story.receipt(again, 'op-2', 3, story.cell('alpha').seq);
  story.end(again);
  // A writer that was overtaken, and is refused.
  const late = story.begin('w0', ['alpha']);
  story.wait(2 * TTL);
  const next = story.begin('w1', ['alpha']);
  story.write(next);
  story.write(late, { outcome: 'none', code: 'STALE_GENERATION', current: next.grants[0]!.generation });
  story.end(next);
  story.end(late, 'STALE_GENERATION');
  story.fault('Redis flushed', { loses: true });
  chapter?.(story);
  story.note('nemesis', { e: 'calm' });
  for (const who of ['w0', 'w1']) {
    story.everyKey(who, 'last');
    story.note('nemesis', { e: 'exit', worker: who, expected: true, how: '0' });
  }
  ending?.(story);
  return story;
}
