import type { EventOf, Granted, HistoryEvent, Step } from './history.js';
import type { OpenOperation } from './settings.js';
import type { LogRow, Tables } from './tables.js';

/** All that is known of a campaign. */
export interface Evidence {
  readonly events: readonly HistoryEvent[];
  readonly tables: Tables;
  /** Whether it ended in calm; a campaign that still runs is not asked for what is only due at the end. */
  readonly complete: boolean;
  readonly keys: readonly string[];
  readonly ttlMs: number;
  /** What every key began with. */
  readonly balance: number;
}

/** An attempt to write, with its end where it had one. */
export interface Attempt extends EventOf<'write'> {
  readonly done?: EventOf<'done'>;
}

/** The evidence, looked through once. */
export class Files {
  readonly attempts = new Map<string, Attempt>();
  /** Per key, in the order of their commits. */
  readonly rows: ReadonlyMap<string, readonly LogRow[]>;
  readonly rowsOfAttempt: ReadonlyMap<string, readonly LogRow[]>;
  private readonly byKind = new Map<Step['e'], HistoryEvent[]>();

  constructor(readonly evidence: Evidence) {
    for (const event of evidence.events) push(this.byKind, event.e, event);
    const done = new Map(this.events('done').map((event) => [event.attempt, event]));
    for (const write of this.events('write'))
      this.attempts.set(write.attempt, { ...write, done: done.get(write.attempt) });
    this.rows = groupBy(evidence.tables.log, ({ key }) => key);
    this.rowsOfAttempt = groupBy(evidence.tables.log, ({ attempt }) => attempt);
  }

  events<E extends Step['e']>(kind: E): EventOf<E>[] {
    return (this.byKind.get(kind) ?? []) as EventOf<E>[];
  }

  /** Steps and rows as lines, in the order of time. */
  excerpt(parts: readonly (HistoryEvent | LogRow | undefined)[]): string[] {
    const lines = new Map<string, number>();
    for (const part of parts) {
      if (!part) continue;
      if ('e' in part) {
        lines.set(lineOf(part), part.t);
        continue;
      }
      const attempt = this.attempts.get(part.attempt);
      if (attempt) lines.set(lineOf({ ...attempt, done: undefined } as HistoryEvent), attempt.t);
      if (attempt?.done) lines.set(lineOf(attempt.done), attempt.done.t);
      // Where nobody saw it end: after its beginning.
      lines.set(
        `${' '.repeat(13)} database ${lineOfRow(part)}`,
        (attempt?.done?.t ?? attempt?.t ?? 0) - 0.0005,
      );
    }
    return [...lines].sort(([, a], [, b]) => a - b).map(([line]) => line);
  }
}

/** Operations that somebody sent and nobody knows the fate of. */
export function openOperations(events: readonly HistoryEvent[]): OpenOperation[] {
  const open = new Map<string, OpenOperation>();
  const writes = new Map<string, EventOf<'write'>>();
  for (const event of events) {
    if (event.e === 'write' && event.operation !== undefined) {
      writes.set(event.attempt, event);
      const { operation: id, amount = 0, grants } = event;
      open.set(nameOf(id, amount), { id, amount, key: grants[0]!.key });
    }
  }
  for (const event of events) {
    const write = event.e === 'done' && isSettled(event) ? writes.get(event.attempt) : undefined;
    if (write) open.delete(nameOf(write.operation!, write.amount));
  }
  return [...open.values()];
}

/** Whether the end of an attempt tells what became of its operation: accepted, or refused for good. */
export function isSettled(done: EventOf<'done'>): boolean {
  return done.outcome === 'ok' || done.code === 'OPERATION_CONFLICT';
}

export const nameOf = (operation: string, amount = 0): string => `${operation} ${amount}`;

export function groupBy<T>(list: readonly T[], by: (one: T) => string): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const one of list) push(groups, by(one), one);
  return groups;
}

function push<K, V>(map: Map<K, V[]>, key: K, value: V): void {
  const list = map.get(key);
  if (list) list.push(value);
  else map.set(key, [value]);
}

// ---------------------------------------------------------------------------------------------------------- as text

const short = (owner: string): string => owner.slice(0, 8);
const granted = ({ key, generation, owner }: Granted): string => `${key} #${generation} ${short(owner)}`;

function lineOfRow(row: LogRow): string {
  const change = row.read === null ? row.field : `${row.field} ${row.read} -> ${row.written}`;
  return `committed ${row.key} [${row.seq}] ${change}, by ${row.attempt} #${row.generation} ${short(row.owner)}, which had read [${row.readSeq}]`;
}

function lineOf(event: HistoryEvent): string {
  const { t, who, e, ...facts } = event as unknown as Record<string, unknown> & {
    t: number;
    who: string;
    e: string;
  };
  const text = Object.entries(facts)
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => `${name}=${textOf(name, value)}`)
    .join(' ');
  return `${t.toFixed(1).padStart(13)} ${who.padEnd(8)} ${e} ${text}`;
}

function textOf(name: string, value: unknown): string {
  if (name === 'grants') return `[${(value as Granted[]).map(granted).join(', ')}]`;
  if (name === 'owner') return short(String(value));
  if (name === 'sent') return (value as number).toFixed(1);
  return typeof value === 'string' ? value : JSON.stringify(value);
}
