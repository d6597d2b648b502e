import type { FencingEvent, GrantFacts } from '../core/events.js';

/*
 * What the board remembers of the events it has heard. All of it is bounded; times are ms since 1970.
 */

/** Something that happened under a grant. */
export interface Mark {
  readonly at: number;
  readonly kind: 'accepted' | 'stale' | 'refused' | 'unknown' | 'duplicate' | 'healed';
  /** The error's code. */
  readonly code?: string;
  /** What the fence named instead. */
  readonly current?: number;
}

/** A grant, from its activation to its end. */
export interface Track {
  readonly key: string;
  readonly owner: string;
  readonly generation: number;
  readonly from: number;
  readonly ttlMs: number;
  readonly activated: boolean;
  readonly waitedMs: number;
  validUntil: number;
  renewals: number;
  accepted: number;
  refused: number;
  doubtfulSince?: number;
  readonly doubts: [from: number, to: number][];
  to?: number;
  /** `released`, or why it was lost. */
  end?: string;
  readonly marks: Mark[];
}

/** A key that an operator took away. */
export interface Revoked {
  readonly at: number;
  readonly generation?: number;
  readonly by?: string;
  readonly reason?: string;
}

export interface KeyHistory {
  readonly tracks: Track[];
  readonly revoked: Revoked[];
  /** Until when each caller that found the key taken will wait. */
  readonly waiters: number[];
}

/** A refused write. */
export interface Refusal extends Mark, GrantFacts {}

/** How much is kept. */
export const KEPT = {
  keys: 1_000,
  live: 50_000,
  tracks: 12,
  marks: 60,
  doubts: 10,
  revoked: 6,
  waiters: 1_000,
  refusals: 100,
};

export class BoardLog {
  /** Grows with everything that would change a view. */
  version = 0;
  /** Those that hold a lease, the longest first; by owner, since a late one may still believe that it holds the key. */
  readonly live = new Map<string, Track>();
  /** Newest last. */
  readonly refusals: Refusal[] = [];
  readonly totals = { granted: 0, accepted: 0, refused: 0, lost: 0, unknown: 0 };
  /** The last time that each of them did not answer. */
  readonly silent = new Map<'lease store' | 'database', number>();
  /** The least recently heard of first. */
  private readonly keys = new Map<string, KeyHistory>();

  history(key: string): KeyHistory | undefined {
    return this.keys.get(key);
  }

  /** How many callers wait for the key, as far as events tell. */
  waiting(key: string, now: number): number {
    return this.keys.get(key)?.waiters.filter((until) => until > now).length ?? 0;
  }

  revoked(key: string, revoked: Revoked): void {
    keep(this.touch(key).revoked, revoked, KEPT.revoked);
    this.version++;
  }

  hear(event: FencingEvent | undefined): void {
    // What came over a message bus: JSON has no dates, and it may be anything.
    const at = new Date(event?.at ?? NaN).getTime();
    if (!event || Number.isNaN(at) || !isAboutKey(event)) return;
    this.version++;
    switch (event.name) {
      case 'lease.contended':
        return keep(this.touch(event.key).waiters, at + event.waitMs, KEPT.waiters);
      case 'lease.busy':
        return void this.touch(event.key).waiters.shift();
      case 'lease.acquired':
        return this.begin(event, at);
      case 'lease.renewed':
        return this.renew(event, at);
      case 'lease.uncertain': {
        const track = this.track(event);
        track.doubtfulSince ??= at;
        return;
      }
      case 'lease.lost':
      case 'lease.released':
        return this.end(event, at, event.name === 'lease.lost' ? event.reason : 'released');
      case 'write.accepted':
        this.totals.accepted++;
        this.track(event).accepted++;
        return this.mark(event, { at, kind: 'accepted' });
      case 'write.stale':
        return this.refuse(event, { at, kind: 'stale', code: 'STALE_GENERATION', current: event.current });
      case 'write.refused':
        return this.refuse(event, { at, kind: 'refused', code: event.code });
      case 'write.unknown':
        this.totals.unknown++;
        return this.mark(event, { at, kind: 'unknown', code: 'COMMIT_UNKNOWN' });
      case 'operation.duplicate':
        return this.mark(event, { at, kind: 'duplicate' });
      case 'store.healed':
        return this.mark(event, { at, kind: 'healed' });
      case 'store.unavailable':
        this.silent.set(event.store, at);
    }
  }

  private begin(event: Extract<FencingEvent, { name: 'lease.acquired' }>, at: number): void {
    this.totals.granted++;
    const { key, owner, generation, ttlMs, waitedMs, activated } = event;
    const history = this.touch(key);
    if (waitedMs > 0) history.waiters.shift();
    const track = newTrack({ key, owner, generation }, at, { ttlMs, waitedMs, activated });
    keep(history.tracks, track, KEPT.tracks);
    this.live.set(owner, track);
    if (this.live.size > KEPT.live) this.live.delete(this.live.keys().next().value!);
  }

  private renew(event: Extract<FencingEvent, { name: 'lease.renewed' }>, at: number): void {
    const track = this.track(event);
    track.renewals++;
    track.validUntil = at + track.ttlMs;
    endDoubt(track, at);
  }

  private end(event: GrantFacts, at: number, end: string): void {
    const track = this.track(event);
    endDoubt(track, at);
    // A lease that was lost is also released when its call ends: the loss is what counts.
    if (track.to === undefined) Object.assign(track, { to: at, end });
    if (end !== 'released') this.totals.lost++;
    this.live.delete(event.owner);
  }

  private refuse(event: GrantFacts, mark: Mark): void {
    this.totals.refused++;
    this.track(event).refused++;
    const { key, owner, generation } = event;
    keep(this.refusals, { ...mark, key, owner, generation }, KEPT.refusals);
    this.mark(event, mark);
  }

  private mark(event: GrantFacts, mark: Mark): void {
    keep(this.track(event).marks, mark, KEPT.marks);
  }

  /** The grant of an event. One that has been forgotten, or began before the board listened, begins with what is heard of it. */
  private track(facts: GrantFacts): Track {
    const live = this.live.get(facts.owner);
    if (live && live.generation === facts.generation) return live;
    const { tracks } = this.touch(facts.key);
    const known = tracks.find(({ owner }) => owner === facts.owner);
    if (known) return known;
    const track = newTrack(facts, Date.now(), { ttlMs: 0, waitedMs: 0, activated: true });
    keep(tracks, track, KEPT.tracks);
    return track;
  }

  private touch(key: string): KeyHistory {
    const known = this.keys.get(key);
    const history = known ?? { tracks: [], revoked: [], waiters: [] };
    if (known) this.keys.delete(key);
    this.keys.set(key, history);
    if (this.keys.size > KEPT.keys) this.keys.delete(this.keys.keys().next().value!);
    return history;
  }
}

function isAboutKey(event: FencingEvent): boolean {
  return (
    event.name === 'store.unavailable' || event.name === 'audit.dropped' || typeof event.key === 'string'
  );
}

function newTrack(
  { key, owner, generation }: GrantFacts,
  from: number,
  facts: Pick<Track, 'ttlMs' | 'waitedMs' | 'activated'>,
): Track {
  const validUntil = from + facts.ttlMs;
  return {
    key,
    owner,
    generation,
    from,
    ...facts,
    validUntil,
    renewals: 0,
    accepted: 0,
    refused: 0,
    doubts: [],
    marks: [],
  };
}

function endDoubt(track: Track, at: number): void {
  if (track.doubtfulSince === undefined) return;
  keep(track.doubts, [track.doubtfulSince, at], KEPT.doubts);
  track.doubtfulSince = undefined;
}

/** Appends, and drops the oldest. */
function keep<T>(list: T[], one: T, most: number): void {
  list.push(one);
  if (list.length > most) list.shift();
}
