/** One request to a lease store and its answer, as the one who asked has seen them. Times are monotonic, ms. */
export interface StoreEvent {
  /** An acquisition that was refused is no event; a renewal or release that was is one. */
  readonly what: 'granted' | 'renewed' | 'released';
  readonly accepted: boolean;
  readonly key: string;
  readonly owner: string;
  readonly sentAt: number;
  readonly answeredAt: number;
  /** Of a grant. */
  readonly generation?: number;
  /** Of a grant or a renewal, ms. */
  readonly ttlMs?: number;
}

/** Whole milliseconds of a store and clocks that drift apart: a lease may seem to end this much early, ms. */
const ROUNDING_MS = 5;

/** A grant, and the time in which its owner may have counted on it. */
interface Hold {
  readonly owner: string;
  readonly generation: number;
  readonly ttlMs: number;
  readonly sentAt: number;
  readonly answeredAt: number;
  until: number;
}

/**
 * What a history of requests that were answered breaks of the invariants that a lease store alone can break. Only what was
 * certain counts: the order of two requests is known where one was sent after the other was answered; a lease is certainly
 * held from the answer that granted it to the end of its ttl, counted from before the request, or to its release.
 *
 * ```ts
 * expect(breachesOf(events)).toEqual([]);
 * ```
 */
export function breachesOf(events: readonly StoreEvent[]): string[] {
  return [...new Set(events.map(({ key }) => key))].flatMap((key) =>
    breachesOfKey(events.filter((event) => event.key === key)),
  );
}

function breachesOfKey(events: readonly StoreEvent[]): string[] {
  const holds = events.filter(({ what }) => what === 'granted').map((event) => holdOf(event, events));
  const breaches: string[] = [];
  for (const a of holds) {
    for (const b of holds) {
      if (a === b) continue;
      if (a.owner !== b.owner && a.generation === b.generation)
        breaches.push(`I1: generation ${a.generation} was granted to ${a.owner} and to ${b.owner}`);
      if (
        a.answeredAt < b.sentAt &&
        (a.owner === b.owner ? b.generation < a.generation : b.generation <= a.generation)
      )
        breaches.push(`I1: ${b.generation} (${b.owner}) was granted after ${a.generation} (${a.owner})`);
      if (a.owner !== b.owner && a.answeredAt < b.answeredAt && b.answeredAt < Math.min(a.until, b.until))
        breaches.push(`exclusion: ${b.owner} was granted the key while ${a.owner} held it`);
      if (isRetry(a, b) && a.generation !== b.generation)
        breaches.push(`I6: ${a.owner} was granted ${a.generation} and ${b.generation} within one ttl`);
    }
  }
  for (const event of events) {
    if (event.what === 'granted' || !event.accepted) continue;
    const mine = holds.filter(({ owner, sentAt }) => owner === event.owner && sentAt < event.answeredAt);
    const newest = Math.max(0, ...mine.map(({ generation }) => generation));
    if (newest === 0) breaches.push(`I5: ${event.what} for ${event.owner}, who was never granted the key`);
    const other = holds.find(
      ({ owner, answeredAt, generation }) =>
        owner !== event.owner && answeredAt < event.sentAt && generation > newest,
    );
    if (other) breaches.push(`I5: ${event.what} for ${event.owner} after ${other.owner} was granted the key`);
    const end = events.find(
      ({ what, accepted, owner, answeredAt }) =>
        what === 'released' && accepted && owner === event.owner && answeredAt < event.sentAt,
    );
    if (end && !mine.some(({ answeredAt }) => answeredAt > end.sentAt))
      breaches.push(`I5: ${event.what} for ${event.owner} after its release`);
  }
  return [...new Set(breaches)];
}

function holdOf(grant: StoreEvent, events: readonly StoreEvent[]): Hold {
  const own = events.filter(({ owner, sentAt }) => owner === grant.owner && sentAt >= grant.sentAt);
  // Also one that was refused: its owner has stopped counting on the lease.
  const release = own.filter(({ what }) => what === 'released').map(({ sentAt }) => sentAt);
  // The same generation again means that the lease was there all the time; another one that it had ended.
  const grants = own.filter(({ what }) => what === 'granted');
  const grantedAnew = grants.some(({ generation }) => generation !== grant.generation);
  const confirmed = [
    ...grants.filter(({ generation }) => generation === grant.generation),
    ...own.filter(({ what, accepted }) => what === 'renewed' && accepted && !grantedAnew),
  ].map(({ sentAt, ttlMs }) => sentAt + ttlMs!);
  return {
    owner: grant.owner,
    generation: grant.generation!,
    ttlMs: grant.ttlMs!,
    sentAt: grant.sentAt,
    answeredAt: grant.answeredAt,
    until: Math.min(...release, Math.max(...confirmed) - ROUNDING_MS),
  };
}

/** Two requests of one owner that were both answered before the lease of either could end. */
function isRetry(a: Hold, b: Hold): boolean {
  const all = Math.max(a.answeredAt, b.answeredAt) - Math.min(a.sentAt, b.sentAt);
  return a.owner === b.owner && all < Math.min(a.ttlMs, b.ttlMs) - ROUNDING_MS;
}
