import type { Files } from './evidence.js';
import type { HistoryEvent } from './history.js';

/** A time in which an owner held a key for certain, whatever was on its way. */
export interface Hold {
  readonly key: string;
  readonly owner: string;
  readonly generation: number;
  readonly from: number;
  readonly until: number;
  /** The answer that proves it. */
  readonly proof: HistoryEvent;
}

/**
 * Per key, by their beginning: from an answer that confirmed the owner until the ttl after the request was sent, cut short
 * where the owner began to release, or the store may have lost something.
 */
export function certainHolds(files: Files): Map<string, Hold[]> {
  const cached = holdsOf.get(files);
  if (cached) return cached;
  const { ttlMs } = files.evidence;
  const releasing = new Map<string, number>();
  for (const { owner, t } of files.events('releasing'))
    releasing.set(owner, Math.min(t, releasing.get(owner) ?? Infinity));
  const losses = lossesOf(files);

  const holds = new Map<string, Hold[]>();
  const generations = new Map<string, number>();
  const add = (key: string, owner: string, sent: number, proof: HistoryEvent) => {
    let until = Math.min(sent + ttlMs, releasing.get(owner) ?? Infinity);
    for (const loss of losses) if (sent < loss.end && loss.begin < until) until = Math.min(until, loss.begin);
    if (until <= proof.t) return;
    const list = holds.get(key) ?? [];
    holds.set(key, list);
    list.push({ key, owner, generation: generations.get(owner) ?? 0, from: proof.t, until, proof });
  };
  for (const event of files.evidence.events) {
    if (event.e === 'acquire' && event.generation !== undefined) {
      generations.set(event.owner, event.generation);
      add(event.key, event.owner, event.sent, event);
    } else if (event.e === 'renew' && event.answer === true) {
      add(event.key, event.owner, event.sent, event);
    } else if (event.e === 'released' && event.successor) {
      generations.set(event.successor.owner, event.successor.generation);
      add(event.key, event.successor.owner, event.sent, event);
    }
  }
  holdsOf.set(files, holds);
  return holds;
}

const holdsOf = new WeakMap<Files, Map<string, Hold[]>>();

/** A hold that lasted all the time from `from` to `to`. */
export function holdOver(
  holds: Map<string, Hold[]>,
  key: string,
  from: number,
  to: number,
  fits: (hold: Hold) => boolean,
): Hold | undefined {
  const list = holds.get(key) ?? [];
  let low = 0;
  for (let high = list.length; low < high;) {
    const middle = (low + high) >> 1;
    if (list[middle]!.from < from) low = middle + 1;
    else high = middle;
  }
  // None lasts longer than a ttl, so a few before this place are enough.
  for (let i = low - 1; i >= 0 && i > low - 200; i--)
    if (list[i]!.until >= to && fits(list[i]!)) return list[i];
  return undefined;
}

function lossesOf(files: Files): { begin: number; end: number }[] {
  const begins = new Map<number, number>();
  const losses: { begin: number; end: number }[] = [];
  for (const fault of files.events('fault')) {
    if (!fault.loses) continue;
    if (fault.phase === 'begin') begins.set(fault.id, fault.t);
    else {
      losses.push({ begin: begins.get(fault.id)!, end: fault.t });
      begins.delete(fault.id);
    }
  }
  for (const begin of begins.values()) losses.push({ begin, end: Infinity });
  return losses;
}
