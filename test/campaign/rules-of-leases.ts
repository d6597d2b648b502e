import type { Finding, Rule } from './checker.js';
import { type Files, groupBy } from './evidence.js';
import type { EventOf, HistoryEvent } from './history.js';
import { certainHolds, type Hold, holdOver } from './holds.js';

/** Clocks of two processes, and a probe's own way to the store, ms. */
const MARGIN_MS = 50;
/** How long a call may take to give up beyond what it was told to wait: pauses, outages and a busy machine included, ms. */
const GIVE_UP_MS = 25_000;
/** How long after the end of its ttl a dead worker's lease may be seen: requests on their way when it died, ms. */
const LATE_MS = 3_000;

/** What the lease store did for whom, as everybody saw it. */
export const LEASE_RULES: readonly Rule[] = [
  {
    name: 'I5',
    title: 'renewals and releases by a non-owner change nothing, and a held key is granted to nobody else',
    find: (files) => {
      const holds = certainHolds(files);
      const findings: Finding[] = files
        .events('intruder')
        .filter(({ obeyed }) => obeyed)
        .map((event) => ({ what: `the store obeyed a stranger`, excerpt: files.excerpt([event]) }));
      for (const grant of grantsOf(files)) {
        const hold = holdOver(holds, grant.key, grant.sent, grant.t, (one) => one.owner !== grant.owner);
        if (hold)
          findings.push({
            what: `${grant.key} was granted while somebody else held it`,
            excerpt: files.excerpt([hold.proof, grant.event]),
          });
      }
      for (const renew of files.events('renew')) {
        const hold = renew.answer === false && ownHold(holds, renew);
        if (hold)
          findings.push({
            what: `a held lease of ${renew.key} was gone, and nobody had released it`,
            excerpt: files.excerpt([hold.proof, renew]),
          });
      }
      return findings;
    },
  },
  {
    name: 'I6',
    title: 'a request that is sent again changes nothing',
    find: (files) => {
      const holds = certainHolds(files);
      const findings: Finding[] = [];
      for (const acquire of files.events('acquire')) {
        const hold = acquire.failed === undefined ? ownHold(holds, acquire) : undefined;
        if (hold && acquire.floor < hold.generation && acquire.generation !== hold.generation)
          findings.push({
            what: `acquiring ${acquire.key} again gave another answer`,
            excerpt: files.excerpt([hold.proof, acquire]),
          });
      }
      const activated = new Map<string, EventOf<'activated'>>();
      for (const event of files.events('activated')) {
        const grant = `${event.key} ${event.owner} ${event.generation}`;
        const before = activated.get(grant);
        if (event.ahead === undefined) activated.set(grant, event);
        else if (before && event.ahead <= event.generation)
          findings.push({
            what: `activating ${event.key} again was refused without a newer grant`,
            excerpt: files.excerpt([before, event]),
          });
      }
      for (const [, rows] of groupBy(files.evidence.tables.log, ({ key, owner }) => `${key} ${owner}`)) {
        const other = rows.find(({ generation }) => generation !== rows[0]!.generation);
        if (other)
          findings.push({
            what: 'one owner wrote with two generations',
            excerpt: files.excerpt([rows[0], other]),
          });
      }
      return findings;
    },
  },
  {
    name: 'I8',
    title: 'a key is free within its ttl after a crash, and nothing is renewed after its call has ended',
    find: (files) => [...renewedLate(files), ...takenForEver(files)],
  },
  {
    name: 'I9',
    title: 'every caller gets its turn or its timeout, and in the end everybody gets everything',
    find: (files) => [...waitedLong(files), ...leftOut(files)],
  },
];

interface GrantSeen {
  readonly key: string;
  readonly owner: string;
  readonly sent: number;
  readonly t: number;
  readonly event: HistoryEvent;
}

/** Every grant that somebody was told of: by an acquisition, or by a release that named its successor. */
function grantsOf(files: Files): GrantSeen[] {
  return [
    ...files
      .events('acquire')
      .filter(({ generation }) => generation !== undefined)
      .map((event) => ({ key: event.key, owner: event.owner, sent: event.sent, t: event.t, event })),
    ...files
      .events('released')
      .filter(({ successor }) => successor)
      .map((event) => ({
        key: event.key,
        owner: event.successor!.owner,
        sent: event.sent,
        t: event.t,
        event,
      })),
  ];
}

function ownHold(
  holds: Map<string, Hold[]>,
  { key, owner, sent, t }: GrantSeen | EventOf<'renew'> | EventOf<'acquire'>,
) {
  return holdOver(holds, key, sent, t, (hold) => hold.owner === owner);
}

function renewedLate(files: Files): Finding[] {
  const ended = new Map(files.events('end').map((event) => [event.call, event]));
  const over = new Map<string, EventOf<'end'>>();
  for (const { call, grants } of files.events('enter')) {
    const end = ended.get(call);
    if (end) for (const { owner } of grants) over.set(owner, end);
  }
  return files
    .events('renew')
    .filter(({ owner, sent, again }) => !again && sent > (over.get(owner)?.t ?? Infinity))
    .map((renew) => ({
      what: `a lease of ${renew.key} was renewed after its call had ended`,
      excerpt: files.excerpt([over.get(renew.owner), renew]),
    }));
}

function takenForEver(files: Files): Finding[] {
  const { ttlMs } = files.evidence;
  const findings: Finding[] = [];
  // The last sign of life of each owner: what it asked, and the end of the process that it lived in.
  const alive = new Map<string, { who: string; t: number }>();
  for (const kind of ['acquire', 'renew', 'releasing'] as const)
    for (const { owner, who, t } of files.events(kind))
      alive.set(owner, { who, t: Math.max(t, alive.get(owner)?.t ?? 0) });
  for (const { successor, who, t } of files.events('released'))
    if (successor) alive.set(successor.owner, { who, t });
  const exits = new Map(files.events('exit').map((event) => [event.worker, event]));
  for (const probe of files.events('probe')) {
    if (probe.remainingMs < 0 || probe.remainingMs > ttlMs + MARGIN_MS)
      findings.push({
        what: `a lease of ${probe.key} does not expire in time`,
        excerpt: files.excerpt([probe]),
      });
    const last = alive.get(probe.owner);
    const exit = last && exits.get(last.who);
    if (exit && probe.t > Math.max(last.t, exit.t) + ttlMs + LATE_MS && !faultDuring(files, exit.t, probe.t))
      findings.push({
        what: `a dead worker still holds ${probe.key}`,
        excerpt: files.excerpt([exit, probe]),
      });
  }
  return findings;
}

/** A fault on a link holds requests back and lets them go later. */
function faultDuring(files: Files, from: number, to: number): boolean {
  return files.events('fault').some(({ t }) => t > from && t < to);
}

function waitedLong(files: Files): Finding[] {
  const entered = new Map(files.events('enter').map((event) => [event.call, event]));
  const ended = new Map(files.events('end').map((event) => [event.call, event]));
  const exited = new Map(files.events('exit').map((event) => [event.worker, event.t]));
  const last = files.evidence.events.at(-1)?.t ?? 0;
  return files.events('call').flatMap((call): Finding[] => {
    const turn = entered.get(call.call) ?? ended.get(call.call);
    const until = turn?.t ?? Math.min(exited.get(call.who) ?? Infinity, last);
    return until - call.t <= call.waitMs + GIVE_UP_MS
      ? []
      : [
          {
            what: `a call waited ${Math.round(until - call.t)} ms where it was to wait ${call.waitMs} ms`,
            excerpt: files.excerpt([call, turn]),
          },
        ];
  });
}

function leftOut(files: Files): Finding[] {
  if (!files.evidence.complete) return [];
  const calm = files.events('calm')[0];
  const good = new Set(
    files
      .events('end')
      .filter(({ outcome }) => outcome === 'ok')
      .map(({ call }) => call),
  );
  const served = new Set(
    files
      .events('call')
      .filter(({ kind, call }) => kind === 'last' && good.has(call))
      .map(({ who, keys }) => `${who.split('.')[0]} ${keys[0]}`),
  );
  const workers = new Set(files.events('ready').map(({ who }) => who.split('.')[0]!));
  return [...workers].flatMap((worker) =>
    files.evidence.keys
      .filter((key) => !served.has(`${worker} ${key}`))
      .map((key) => ({
        what: `${worker} never got ${key} although there were no more faults`,
        excerpt: files.excerpt([calm]),
      })),
  );
}
