import { systemClock } from './clock.js';
import type { StoreFinding } from './lease-store.js';
import { within } from './timing.js';

/** `error`: leases or writes fail, or a promise of the package does not hold; `warning`: they will one day; `note`: good to know. */
export type Severity = 'error' | 'warning' | 'note';

/** Something to do about a server or the set-up: what, why and how. */
export interface Finding extends StoreFinding {
  /** What was looked at: `redis`, `postgres`, `clocks`, … */
  readonly about: string;
  readonly severity: Severity;
}

/** What is known of a server, or of the whole set-up. */
export interface Diagnosis {
  /** The worst first. */
  readonly findings: readonly Finding[];
  /** What was read, e.g. `redis.version`. */
  readonly facts: Readonly<Record<string, string | number | boolean>>;
}

/** What one server says of itself. */
export interface Examination extends Diagnosis {
  /** How far its wall clock is ahead of this process's, ms. */
  readonly clockAheadMs?: number;
}

/** A server that does not answer within this is down, ms. */
const ANSWER_WITHIN_MS = 10_000;
const ORDER: readonly Severity[] = ['error', 'warning', 'note'];
/** Clocks that are further apart than this are a finding, ms. */
const FAR_APART_MS = 5_000;

/** A lease store or a fence. One that knows more of its server than its check at boot has `diagnose` as well. */
export interface Examined {
  check(): Promise<readonly StoreFinding[] | void>;
  diagnose?(): Promise<Examination>;
}

/** What is to be said of a lease store or a fence. Never rejects: what fails is a finding. */
export async function examine(about: string, examined: Examined): Promise<Examination> {
  const silent = () => new Error(`${about}: no answer within ${ANSWER_WITHIN_MS} ms.`);
  const asked = examined.diagnose
    ? examined.diagnose()
    : examined.check().then((found) => ({ facts: {}, findings: asFindings(about, found ?? []) }));
  return within(systemClock, ANSWER_WITHIN_MS, asked, silent).catch((error: unknown) => ({
    facts: {},
    findings: [failedCheck(about, error)],
  }));
}

/** Findings of a check at boot, as those of a diagnosis. */
export function asFindings(about: string, findings: readonly StoreFinding[]): Finding[] {
  return findings.map((finding) => ({ about, severity: 'warning', ...finding }));
}

/** A check that could not be done, or that refused the set-up. */
export function failedCheck(about: string, error: unknown): Finding {
  const { message = String(error) } = (error ?? {}) as { message?: string };
  return {
    about,
    severity: 'error',
    problem: message,
    consequence: 'Calls that need it fail.',
    fix: 'See the message; then run this again.',
  };
}

/** Puts what the servers said together, and compares their clocks with each other and with this process. */
export function conclude(examined: Readonly<Record<string, Examination>>): Diagnosis {
  const findings = Object.values(examined).flatMap((one) => one.findings);
  const facts = Object.assign({}, ...Object.values(examined).map((one) => one.facts)) as Diagnosis['facts'];
  const clocks: [string, number][] = [['this process', 0]];
  for (const [name, { clockAheadMs }] of Object.entries(examined))
    if (clockAheadMs !== undefined) clocks.push([name, clockAheadMs]);
  clocks.sort((a, b) => a[1] - b[1]);
  const [slowest, fastest] = [clocks[0]!, clocks.at(-1)!];
  const apartMs = Math.round(fastest[1] - slowest[1]);
  const all = [
    ...findings,
    ...(apartMs > FAR_APART_MS ? [clocksApart(slowest[0], fastest[0], apartMs)] : []),
  ];
  all.sort((a, b) => ORDER.indexOf(a.severity) - ORDER.indexOf(b.severity));
  // Where no server told its clock there is nothing to compare.
  return { findings: all, facts: clocks.length > 1 ? { ...facts, 'clocks.apartMs': apartMs } : facts };
}

/** 0: nothing that needs doing; 1: warnings; 2: errors. */
export function exitCodeOf({ findings }: Diagnosis): 0 | 1 | 2 {
  if (findings.some(({ severity }) => severity === 'error')) return 2;
  return findings.some(({ severity }) => severity === 'warning') ? 1 : 0;
}

function clocksApart(slowest: string, fastest: string, apartMs: number): Finding {
  return {
    about: 'clocks',
    severity: 'warning',
    problem: `The clock of ${fastest} is ${apartMs} ms ahead of that of ${slowest}.`,
    consequence:
      'Leases and fenced writes stay right. Cron ticks of two machines differ by that much, times in receipts and the audit mislead, and a lease store ' +
      'that loses its data, or is moved to, needs the fence to catch up.',
    fix: 'Synchronise the clocks (chrony, systemd-timesyncd, or those of the provider).',
  };
}
