import type { Finding, Rule } from './checker.js';
import type { Files } from './evidence.js';
import type { EventOf } from './history.js';

/** No key may stay without an accepted write for longer than this after a fault has ended, ms. */
export const LONGEST_RECOVERY_MS = 30_000;

/** What a fault may cost: time, and nothing else. */
export const RECOVERY_RULES: readonly Rule[] = [
  {
    name: 'I7',
    title: 'whatever the store forgets, no generation is activated twice and no present holder is refused',
    find: (files) => [...activatedTwice(files), ...refusedHolders(files)],
  },
  {
    name: 'recovery',
    title: `after every fault every key is written again within ${LONGEST_RECOVERY_MS / 1000} s`,
    find: (files) =>
      recoveries(files)
        .filter(({ ms, ended }) => ms > LONGEST_RECOVERY_MS && (files.evidence.complete || ended))
        .map(({ fault, key, ms }) => ({
          what: `${key} was not written for ${Math.round(ms)} ms after "${fault.kind}"`,
          excerpt: files.excerpt([fault]),
        })),
  },
  {
    name: 'robustness',
    title: 'no worker ends by itself, and nothing goes uncaught',
    find: (files) => [
      ...files.events('crash').map((event) => ({ what: event.error, excerpt: files.excerpt([event]) })),
      ...files
        .events('exit')
        .filter(({ expected }) => !expected)
        .map((event) => ({ what: `a worker ended: ${event.how}`, excerpt: files.excerpt([event]) })),
      ...unexpectedErrors(files),
    ],
  },
];

function activatedTwice(files: Files): Finding[] {
  const owners = new Map<string, EventOf<'activated'>>();
  return files.events('activated').flatMap((event): Finding[] => {
    if (event.ahead !== undefined) return [];
    const grant = `${event.key} ${event.generation}`;
    const before = owners.get(grant);
    owners.set(grant, event);
    return before && before.owner !== event.owner
      ? [
          {
            what: `two owners activated generation ${event.generation}`,
            excerpt: files.excerpt([before, event]),
          },
        ]
      : [];
  });
}

/** A refusal as stale names a newer generation, and somebody has sent that one's activation before. */
function refusedHolders(files: Files): Finding[] {
  const sent = new Map<string, number>();
  for (const { key, generation, t } of files.events('activating')) {
    const grant = `${key} ${generation}`;
    sent.set(grant, Math.min(t, sent.get(grant) ?? Infinity));
  }
  const findings: Finding[] = [];
  for (const { done, grants } of files.attempts.values()) {
    if (done?.code !== 'STALE_GENERATION') continue;
    const newer = grants.some(
      ({ key, generation }) =>
        done.current !== undefined &&
        done.current > generation &&
        (sent.get(`${key} ${done.current}`) ?? Infinity) < done.t,
    );
    if (!newer)
      findings.push({
        what: 'a holder was refused although no newer grant was activated',
        excerpt: files.excerpt([done]),
      });
  }
  return findings;
}

export interface Recovery {
  readonly fault: EventOf<'fault'>;
  readonly key: string;
  readonly ms: number;
  /** Whether the key was written again at all. */
  readonly ended: boolean;
}

/** For every fault and key: from the end of the fault to the next accepted write. */
export function recoveries(files: Files): Recovery[] {
  const writes = new Map<string, number[]>(files.evidence.keys.map((key) => [key, []]));
  for (const done of files.events('done')) {
    if (done.outcome !== 'ok') continue;
    for (const { key } of files.attempts.get(done.attempt)?.grants ?? []) writes.get(key)?.push(done.t);
  }
  const last = files.evidence.events.at(-1)?.t ?? 0;
  return files
    .events('fault')
    .filter(({ phase }) => phase === 'end')
    .flatMap((fault) =>
      files.evidence.keys.map((key) => {
        const next = firstAfter(writes.get(key)!, fault.t);
        return { fault, key, ms: (next ?? last) - fault.t, ended: next !== undefined };
      }),
    );
}

function firstAfter(sorted: readonly number[], t: number): number | undefined {
  let low = 0;
  for (let high = sorted.length; low < high;) {
    const middle = (low + high) >> 1;
    if (sorted[middle]! <= t) low = middle + 1;
    else high = middle;
  }
  return sorted[low];
}

/** Every error is one of the package's, or the database's own in a statement of the worker. */
function unexpectedErrors(files: Files): Finding[] {
  const known =
    /^(ok|[A-Z]+(_[A-Z]+)*|SQL [0-9A-Z]{5}|SQL E[A-Z]+|QueryFailedError: .*|QueryRunner\w*Error: .*|Error: (Connection|connect|timeout|Query read timeout|Client).*)$/;
  return [...files.events('end'), ...files.events('done')].flatMap((event): Finding[] => {
    const code = event.e === 'end' ? event.outcome : event.code;
    return code === undefined || known.test(code)
      ? []
      : [{ what: `an error of no known kind: ${code}`, excerpt: files.excerpt([event]) }];
  });
}
