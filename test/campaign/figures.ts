import { type Evidence, Files } from './evidence.js';
import { recoveries } from './rules-of-recovery.js';

/** What was done and what came of it, in numbers. */
export interface Figures {
  readonly seconds: number;
  readonly steps: number;
  readonly calls: Record<string, number>;
  readonly callsEnded: Record<string, number>;
  readonly writes: { sent: number; accepted: number; unknown: number; refused: Record<string, number> };
  readonly operations: { sent: number; effects: number; answeredByReceipt: number };
  readonly grants: number;
  readonly activationsRefused: number;
  readonly renewals: number;
  readonly faults: Record<string, FaultFigures>;
  readonly pairs: { count: number; longestRecoveryMs: number };
}

export interface FaultFigures {
  count: number;
  /** How often it was alone, so that its recovery could be measured. */
  alone: number;
  longestRecoveryMs: number;
}

export function figuresOf(evidence: Evidence, ranMs: number): Figures {
  const files = new Files(evidence);
  const attempts = [...files.attempts.values()];
  const accepted = attempts.filter(({ done }) => done?.outcome === 'ok');
  const operations = attempts.filter(({ operation }) => operation !== undefined);
  const faults: Record<string, FaultFigures> = {};
  const begun = files.events('fault').filter(({ phase }) => phase === 'begin');
  for (const { kind, alone } of begun) {
    const figures = (faults[kind] ??= { count: 0, alone: 0, longestRecoveryMs: 0 });
    figures.count += 1;
    if (alone) figures.alone += 1;
  }
  const pairs = { count: begun.filter(({ alone }) => !alone).length / 2, longestRecoveryMs: 0 };
  for (const { fault, ms } of recoveries(files)) {
    const figures = fault.alone ? faults[fault.kind]! : pairs;
    figures.longestRecoveryMs = Math.max(figures.longestRecoveryMs, Math.round(ms));
  }
  return {
    seconds: Math.round(ranMs / 1000),
    steps: evidence.events.length,
    calls: countBy(files.events('call'), ({ kind }) => kind),
    callsEnded: countBy(files.events('end'), ({ outcome }) => outcome),
    writes: {
      sent: attempts.length,
      accepted: accepted.length,
      unknown: attempts.filter(({ done }) => !done || done.outcome === 'unknown').length,
      refused: countBy(
        attempts.filter(({ done }) => done?.outcome === 'none'),
        ({ done }) => done!.code ?? '?',
      ),
    },
    operations: {
      sent: operations.length,
      effects: evidence.tables.receipts.length,
      answeredByReceipt: operations.filter(({ done }) => done?.outcome === 'ok' && !done.ran).length,
    },
    grants: files.events('acquire').filter(({ generation }) => generation !== undefined).length,
    activationsRefused: files.events('activated').filter(({ ahead }) => ahead !== undefined).length,
    renewals: files.events('renew').filter(({ answer }) => answer === true).length,
    faults: Object.fromEntries(Object.entries(faults).sort(([a], [b]) => (a < b ? -1 : 1))),
    pairs,
  };
}

function countBy<T>(list: readonly T[], by: (one: T) => string): Record<string, number> {
  const counts = new Map<string, number>();
  for (const one of list) counts.set(by(one), (counts.get(by(one)) ?? 0) + 1);
  return Object.fromEntries([...counts].sort(([, a], [, b]) => b - a));
}
