import { type Evidence, Files } from './evidence.js';
import { LEASE_RULES } from './rules-of-leases.js';
import { RECOVERY_RULES } from './rules-of-recovery.js';
import { WRITE_RULES } from './rules-of-writes.js';

export type { Evidence } from './evidence.js';
export { openOperations } from './evidence.js';

/** Something that must not be, with the steps that show it. */
export interface Finding {
  readonly what: string;
  readonly excerpt: readonly string[];
}

/** One thing that is decided: an invariant of the design, or what users would call lost, doubled or stuck. */
export interface Rule {
  readonly name: string;
  readonly title: string;
  find(files: Files): Finding[];
}

export interface Verdict {
  readonly rules: readonly { name: string; title: string; findings: readonly Finding[] }[];
  readonly passed: number;
  readonly failed: number;
}

export const RULES: readonly Rule[] = [...WRITE_RULES, ...LEASE_RULES, ...RECOVERY_RULES];

/** Judges a campaign by its history and the tables that it left. Nothing else goes in: the same evidence, the same verdict. */
export function check(evidence: Evidence): Verdict {
  const files = new Files(evidence);
  const rules = RULES.map((rule) => ({ name: rule.name, title: rule.title, findings: rule.find(files) }));
  const failed = rules.filter(({ findings }) => findings.length > 0).length;
  return { rules, passed: rules.length - failed, failed };
}

/** The findings of a rule with the shortest proof, which are the easiest to follow. */
export function shortest(findings: readonly Finding[], count: number): Finding[] {
  return [...findings].sort((a, b) => a.excerpt.length - b.excerpt.length).slice(0, count);
}
