import type { KeyReport } from '../nest/fencing.service.js';
import type { BoardLog, Mark, Refusal, Revoked, Track } from './board-log.js';

/** What a visitor looks at. */
export interface ViewRequest {
  /** Only keys that contain this, whatever the case. */
  readonly search: string;
  readonly show: 'all' | 'doubtful' | 'waited';
  readonly page: number;
  /** Shown in detail. */
  readonly key?: string;
}

/** Rows of one page of leases, and of refusals: with those of the time line's table, at most 60 in the page. */
const PAGE = 25;
const REFUSALS = 10;

export interface LeaseRow {
  readonly key: string;
  readonly owner: string;
  readonly generation: number;
  readonly heldMs: number;
  readonly remainingMs: number;
  readonly ttlMs: number;
  readonly doubtful: boolean;
  readonly waiting: number;
  readonly accepted: number;
  readonly refused: number;
}

/** Why a write was refused, as far as it is known here. */
export interface Cause {
  readonly generation?: number;
  readonly owner?: string;
  readonly at?: number;
  readonly revoked?: Revoked;
}

export interface KeyView {
  readonly key: string;
  readonly waiting: number;
  readonly tracks: readonly Track[];
  readonly revoked: readonly Revoked[];
  /** What the stores say, for leases of any process. */
  readonly asked?: Asked;
}

/** What was heard of a key when the stores were asked. */
export interface Asked {
  readonly at: number;
  readonly report?: KeyReport;
  readonly problem?: string;
}

export interface View {
  readonly at: number;
  readonly pid: number;
  readonly instance: string;
  readonly totals: BoardLog['totals'] & { live: number };
  readonly silent: Partial<Record<'lease store' | 'database', number>>;
  readonly page: number;
  readonly pages: number;
  /** How many leases the search leaves. */
  readonly found: number;
  readonly leases: readonly LeaseRow[];
  readonly refusals: readonly (Refusal & { cause: Cause })[];
  readonly key?: KeyView;
}

/** @param query as it came in the address */
export function readViewRequest(query: Readonly<Record<string, unknown>>): ViewRequest {
  const text = (name: string) => (typeof query[name] === 'string' ? query[name] : '').slice(0, 1_024);
  const page = Number(text('page') || 0);
  const show = text('show');
  return {
    search: text('search').toLowerCase(),
    show: show === 'doubtful' || show === 'waited' ? show : 'all',
    page: Number.isSafeInteger(page) && page >= 0 ? page : 0,
    key: text('key') || undefined,
  };
}

export function viewOf(
  log: BoardLog,
  instance: string,
  request: ViewRequest,
  asked: Asked | undefined,
  now = Date.now(),
): View {
  const { search, show, key } = request;
  const all = search === '' && show === 'all';
  const rows: Track[] = [];
  let found = 0;
  const first = request.page * PAGE;
  for (const track of log.live.values()) {
    // Of another process that died, or whose events do not come any more.
    if (track.validUntil + track.ttlMs < now) {
      log.live.delete(track.owner);
      continue;
    }
    if (!all && !matches(log, track, request, now)) continue;
    if (found >= first && rows.length < PAGE) rows.push(track);
    found++;
    if (all && rows.length === PAGE) {
      found = log.live.size;
      break;
    }
  }
  const history = key === undefined ? undefined : log.history(key);
  return {
    at: now,
    pid: process.pid,
    instance,
    totals: { ...log.totals, live: log.live.size },
    silent: Object.fromEntries(log.silent),
    page: request.page,
    pages: Math.max(1, Math.ceil(found / PAGE)),
    found,
    leases: rows.map((track) => rowOf(log, track, now)),
    refusals: log.refusals
      .slice(-REFUSALS)
      .reverse()
      .map((refusal) => ({ ...refusal, cause: causeOf(log, refusal) })),
    key:
      key === undefined
        ? undefined
        : {
            key,
            waiting: log.waiting(key, now),
            tracks: history?.tracks ?? [],
            revoked: history?.revoked ?? [],
            asked,
          },
  };
}

function matches(log: BoardLog, track: Track, { search, show }: ViewRequest, now: number): boolean {
  if (show === 'doubtful' && track.doubtfulSince === undefined) return false;
  if (show === 'waited' && log.waiting(track.key, now) === 0) return false;
  return track.key.toLowerCase().includes(search);
}

function rowOf(log: BoardLog, track: Track, now: number): LeaseRow {
  const { key, owner, generation, ttlMs, accepted, refused } = track;
  return {
    key,
    owner,
    generation,
    heldMs: now - track.from,
    remainingMs: Math.max(0, track.validUntil - now),
    ttlMs,
    doubtful: track.doubtfulSince !== undefined,
    waiting: log.waiting(key, now),
    accepted,
    refused,
  };
}

/** The grant, or the revocation, that a refused write had to give way to. */
function causeOf(
  log: BoardLog,
  { key, generation, current }: Mark & Pick<Track, 'key' | 'generation'>,
): Cause {
  const history = log.history(key);
  const revoked = history?.revoked.find((one) => one.generation !== undefined && one.generation === current);
  if (revoked) return { generation: current, at: revoked.at, revoked };
  // A write that was refused before the database was asked names nobody: the next grant after its own is who came.
  const newer = history?.tracks
    .filter((track) => (current === undefined ? track.generation > generation : track.generation === current))
    .sort((a, b) => a.generation - b.generation)[0];
  if (newer) return { generation: newer.generation, owner: newer.owner, at: newer.from };
  return { generation: current };
}
