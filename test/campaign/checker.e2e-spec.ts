import { describe, expect, it } from '@jest/globals';
import { check, RULES, type Verdict } from './checker.js';
import { PLANTED } from './planted/histories.js';
import { trueStory } from './planted/story.js';
import { fencingStatements } from './tables.js';

const broken = (verdict: Verdict) =>
  verdict.rules.filter(({ findings }) => findings.length > 0).map(({ name }) => name);

describe("the campaign's checker", () => {
  it('finds nothing in a history in which all is well', () => {
    const verdict = check(trueStory().evidence());
    expect(verdict.rules.flatMap(({ findings }) => findings)).toEqual([]);
    expect(verdict).toMatchObject({ passed: RULES.length, failed: 0 });
  });

  it.each(PLANTED)('rejects a history in which $name', ({ breaks, says, chapter, ending }) => {
    const verdict = check(trueStory(chapter, ending).evidence());
    expect(new Set(broken(verdict))).toEqual(new Set(breaks));
    const rule = verdict.rules.find(({ name }) => name === breaks[0])!;
    expect(rule.findings.map(({ what }) => what)).toContainEqual(expect.stringContaining(says));
  });

  it('has a planted history for every rule', () => {
    expect(new Set(PLANTED.map(({ breaks }) => breaks[0]))).toEqual(new Set(RULES.map(({ name }) => name)));
  });

  it('has, for every rule, a planted history that no other rule rejects', () => {
    const alone = PLANTED.filter(({ breaks }) => new Set(breaks).size === 1).map(({ breaks }) => breaks[0]!);
    expect(RULES.map(({ name }) => name).filter((name) => !alone.includes(name))).toEqual([]);
  });

  it('shows the steps that prove a finding, in the order of time', () => {
    const { chapter } = PLANTED.find(({ breaks }) => breaks[0] === 'I2')!;
    const { rules } = check(trueStory(chapter).evidence());
    const [finding] = rules.find(({ name }) => name === 'I2')!.findings;
    expect(finding!.excerpt).toEqual([
      expect.stringMatching(/ w1 +read .*key=alpha/),
      expect.stringMatching(/ w0 +write .*grants=\[alpha #\d+ owner-/),
      expect.stringMatching(/database committed alpha \[\d+\] entry, by w0-/),
      expect.stringMatching(/ w0 +done .*outcome=ok/),
    ]);
  });

  it('does not ask a campaign that still runs for what is due at its end', () => {
    const { events, ...rest } = trueStory().evidence();
    const beforeCalm = events.slice(
      0,
      events.findIndex(({ e }) => e === 'calm'),
    );
    const attempts = new Set(beforeCalm.map((event) => (event.e === 'write' ? event.attempt : '')));
    const log = rest.tables.log.filter(({ attempt }) => attempts.has(attempt));
    const last = (key: string) => log.filter((row) => row.key === key);
    const cells = rest.tables.cells.map((cell) => ({
      ...cell,
      seq: last(cell.key).at(-1)!.seq,
      value: last(cell.key).findLast(({ field }) => field === 'value')!.written!,
    }));
    const tables = { ...rest.tables, log, cells };
    const evidence = { ...rest, events: beforeCalm, tables };
    expect(broken(check({ ...evidence, complete: false }))).toEqual([]);
    expect(broken(check({ ...evidence, complete: true }))).toEqual(['I9']);
  });
});

describe("the campaign's controls", () => {
  const original = fencingStatements();

  it.each([
    ['fence', 2],
    ['activation', 2],
    ['guard-lock', 1],
  ] as const)('without %s, exactly that part of the SQL is another', (without, changed) => {
    const broken = fencingStatements(without);
    expect(broken).toHaveLength(original.length);
    expect(broken.filter((statement, i) => statement !== original[i])).toHaveLength(changed);
  });
});
