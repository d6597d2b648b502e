import { closeSync, openSync, readFileSync, writeSync } from 'node:fs';

/** A lease that was granted, as the history names it. */
export interface Granted {
  readonly key: string;
  readonly generation: number;
  readonly owner: string;
}

/** What a fault did beyond its time: where to look for it, and what may be gone afterwards. */
export interface FaultFacts {
  readonly id: number;
  readonly kind: string;
  readonly phase: 'begin' | 'end';
  /** Others were at work at the same time: its recovery is not its own. */
  readonly alone: boolean;
  /** The lease store may have lost or changed data. */
  readonly loses: boolean;
  readonly target?: string;
}

/** How an attempt to write ended: `none` promises that nothing of it remains. */
export type Outcome = 'ok' | 'none' | 'unknown';

/** Every kind of step. Steps with `sent` are noted when their answer came. */
export type Step =
  /** A leased call begins, got its leases, read the newest state of a key, and ended ('ok' or the code of an error). */
  | { e: 'call'; call: string; kind: string; keys: string[]; waitMs: number }
  | { e: 'enter'; call: string; grants: Granted[] }
  | ({ e: 'read'; call: string; seq: number } & Granted)
  | { e: 'end'; call: string; outcome: string; late: boolean }
  /** One fenced write. */
  | {
      e: 'write';
      call: string;
      attempt: string;
      grants: Granted[];
      operation?: string;
      amount?: number;
      /** Sent after its call had ended. */
      late?: boolean;
    }
  | {
      e: 'done';
      attempt: string;
      outcome: Outcome;
      code?: string;
      /** Whether the body ran; false where a receipt answered. */
      ran?: boolean;
      /** The result: the place of the write in the key's order. */
      seq?: number;
      /** What the fence named where it refused. */
      current?: number;
    }
  /** The lease store's side, as the worker saw it. */
  | {
      e: 'acquire';
      sent: number;
      key: string;
      owner: string;
      floor: number;
      generation?: number;
      remainingMs?: number;
      failed?: string;
    }
  | {
      e: 'renew';
      sent: number;
      key: string;
      owner: string;
      answer?: boolean;
      failed?: string;
      /** Sent once more by the campaign itself. */
      again?: boolean;
    }
  | { e: 'releasing'; key: string; owner: string; hold: boolean }
  | { e: 'released'; sent: number; key: string; owner: string; held: boolean; successor?: Granted }
  /** The database's side: an activation was sent, and answered (`ahead`: the fence's generation where it refused). */
  | ({ e: 'activating' } & Granted)
  | ({ e: 'activated'; sent: number; ahead?: number } & Granted)
  /** A lease was renewed by a stranger, or released, or looked at. */
  | { e: 'intruder'; what: 'renew' | 'release'; key: string; owner: string; obeyed: boolean }
  | { e: 'probe'; key: string; owner: string; generation: number; remainingMs: number }
  | ({ e: 'fault' } & FaultFacts)
  /** A worker process is ready; ended; or heard of an error that nobody caught. */
  | { e: 'ready' }
  | { e: 'exit'; worker: string; expected: boolean; how: string }
  | { e: 'crash'; error: string }
  /** From here on there are no faults: everybody must get everything. */
  | { e: 'calm' };

/** A step: when (monotonic, ms; one clock for all processes of a machine) and in which process. */
export type HistoryEvent = Step & { t: number; who: string };

/** The steps of one kind. */
export type EventOf<E extends Step['e']> = Extract<Step, { e: E }> & { t: number; who: string };

/** Now, by the monotonic clock of the machine, ms. */
export function now(): number {
  return Number(process.hrtime.bigint() / 1000n) / 1000;
}

/** The history of one process: a line for each step, written at once, so that it survives a SIGKILL. */
export class HistoryFile {
  private readonly file: number;

  constructor(
    path: string,
    private readonly who: string,
  ) {
    this.file = openSync(path, 'a');
  }

  note(step: Step): void {
    writeSync(this.file, `${JSON.stringify({ t: now(), who: this.who, ...step })}\n`);
  }

  close(): void {
    closeSync(this.file);
  }
}

/** All steps of all processes, in the order of time. A last line that was cut off by a SIGKILL is left out. */
export function readHistory(paths: readonly string[]): HistoryEvent[] {
  const events: HistoryEvent[] = [];
  for (const path of paths) {
    for (const line of readFileSync(path, 'utf8').split('\n')) {
      if (line.endsWith('}')) events.push(JSON.parse(line) as HistoryEvent);
    }
  }
  return events.sort((a, b) => a.t - b.t);
}
