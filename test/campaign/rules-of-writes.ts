import type { Finding, Rule } from './checker.js';
import { type Files, groupBy, isSettled, nameOf } from './evidence.js';
import type { LogRow } from './tables.js';

/** What the database says about writes, and what the workers were told about them. */
export const WRITE_RULES: readonly Rule[] = [
  {
    name: 'I1',
    title: 'generations of committed writes never go down, and none has two owners',
    find: (files) =>
      eachRow(files, (row, before) => {
        if (!before) return undefined;
        if (row.generation < before.generation)
          return [`an older generation wrote after a newer one`, before, row];
        if (row.generation === before.generation && row.owner !== before.owner)
          return [`two owners wrote with one generation`, before, row];
        return undefined;
      }),
  },
  {
    name: 'I2',
    title: 'after an activation has returned, no older grant writes',
    find: (files) => {
      const reads = groupBy(files.events('read'), ({ key }) => key);
      return [...files.rows].flatMap(([key, rows]) => {
        const inOrder = [...(reads.get(key) ?? [])].sort((a, b) => a.seq - b.seq);
        let next = 0;
        let newest: (typeof inOrder)[number] | undefined;
        return rows.flatMap((row): Finding[] => {
          // Reads of a state before this write, by owners whose activation had returned.
          for (; next < inOrder.length && inOrder[next]!.seq < row.seq; next++) {
            if (!newest || inOrder[next]!.generation > newest.generation) newest = inOrder[next];
          }
          if (!newest || newest.generation <= row.generation) return [];
          return [
            {
              what: `an older grant wrote ${key} after a newer one had been activated and had read`,
              excerpt: files.excerpt([newest, row]),
            },
          ];
        });
      });
    },
  },
  {
    name: 'I3',
    title: "between a grant's activation and its commit nobody else writes",
    find: (files) => {
      let owned: LogRow | undefined; // the first of the rows in a row that are this owner's
      return eachRow(files, (row, before) => {
        if (!before || !owned || before.owner !== row.owner || before.generation !== row.generation)
          owned = row;
        if (!before || owned.seq <= row.readSeq + 1) return undefined;
        return [`somebody else wrote between what this write had read and its commit`, before, row];
      });
    },
  },
  {
    name: 'I4',
    title: 'a refused write has no effect, and an unknown operation can be settled',
    find: (files) => {
      const findings: Finding[] = [];
      for (const [attempt, { done }] of files.attempts) {
        const [row] = files.rowsOfAttempt.get(attempt) ?? [];
        if (done?.outcome === 'none' && row)
          findings.push({ what: 'a write was refused and is there', excerpt: files.excerpt([row]) });
        if (done?.outcome === 'ok' && files.attempts.get(attempt)!.late)
          findings.push({
            what: 'a write of a call that had ended was accepted',
            excerpt: files.excerpt([row, done]),
          });
      }
      if (!files.evidence.complete) return findings;
      const settled = new Set<string>();
      for (const { operation, amount, done } of files.attempts.values())
        if (operation !== undefined && done && isSettled(done)) settled.add(nameOf(operation, amount));
      for (const attempt of files.attempts.values()) {
        if (attempt.operation === undefined || settled.has(nameOf(attempt.operation, attempt.amount)))
          continue;
        const { done, ...write } = attempt;
        findings.push({
          what: `nobody ever learned what became of operation ${attempt.operation}`,
          excerpt: files.excerpt([write, done]),
        });
      }
      return findings;
    },
  },
  {
    name: 'I10',
    title: "an operation's effect is there at most once, and everybody is told the same",
    find: (files) => {
      const findings: Finding[] = [];
      const effects = groupBy(
        files.evidence.tables.log.filter(({ operation }) => operation !== null),
        ({ operation }) => operation!,
      );
      for (const [id, rows] of effects) {
        if (rows.length > 1)
          findings.push({ what: `operation ${id} took effect twice`, excerpt: files.excerpt(rows) });
      }
      const receipts = new Map(files.evidence.tables.receipts.map((receipt) => [receipt.id, receipt]));
      for (const [id, [row]] of effects) {
        if (receipts.get(id)?.seq !== row!.seq)
          findings.push({
            what: `operation ${id} took effect without its receipt`,
            excerpt: files.excerpt([row]),
          });
      }
      for (const { id } of receipts.values())
        if (!effects.has(id))
          findings.push({ what: `operation ${id} has a receipt and no effect`, excerpt: [] });
      for (const { operation, amount = 0, done } of files.attempts.values()) {
        if (operation === undefined || done?.outcome !== 'ok') continue;
        const [row] = effects.get(operation) ?? [];
        if (row?.seq !== done.seq || row?.written !== (row?.read ?? 0) + amount)
          findings.push({
            what: `a sender of operation ${operation} was told something else than what happened`,
            excerpt: files.excerpt([row, done]),
          });
      }
      return findings;
    },
  },
  {
    name: 'effects',
    title: 'every accepted write is there once, and every value follows from the one before',
    find: (files) => [...accepted(files), ...chains(files), ...sums(files)],
  },
];

/** Asks about every row and the one before it; the answer names what is wrong and who was involved. */
function eachRow(
  files: Files,
  ask: (row: LogRow, before: LogRow | undefined) => [string, ...LogRow[]] | undefined,
): Finding[] {
  const findings: Finding[] = [];
  for (const [key, rows] of files.rows) {
    rows.forEach((row, i) => {
      const [what, ...involved] = ask(row, rows[i - 1]) ?? [];
      if (what !== undefined) findings.push({ what: `${key}: ${what}`, excerpt: files.excerpt(involved) });
    });
  }
  return findings;
}

function accepted(files: Files): Finding[] {
  const findings: Finding[] = [];
  const entries = groupBy(files.evidence.tables.entries, (attempt) => attempt);
  const effects = new Set(files.evidence.tables.log.map(({ operation }) => operation));
  for (const [attempt, { grants, done, operation }] of files.attempts) {
    const rows = files.rowsOfAttempt.get(attempt) ?? [];
    // Its commit was lost and did not happen, and another sender was first to send it again: I10 looks at what it was told.
    const byAnother = operation !== undefined && rows.length === 0 && effects.has(operation);
    const expected = done?.outcome === 'ok' ? (done.ran && !byAnother ? grants.length : 0) : undefined;
    const keys = new Set(rows.map(({ key }) => key));
    if (expected !== undefined && keys.size < expected)
      findings.push({ what: 'an accepted write is lost', excerpt: files.excerpt([done, ...rows]) });
    if (rows.length > keys.size || (expected !== undefined && keys.size > expected))
      findings.push({ what: 'a write is there twice', excerpt: files.excerpt(rows) });
    if (keys.size > 0 && keys.size < grants.length)
      findings.push({ what: 'half of a write is there', excerpt: files.excerpt(rows) });
    const appended = entries.get(attempt)?.length ?? 0;
    if (appended !== rows.filter(({ field }) => field === 'entry').length)
      findings.push({ what: `an append left ${appended} entries`, excerpt: files.excerpt(rows) });
  }
  // While the campaign runs, the tables are a little younger than the history.
  for (const [attempt, [row]] of files.evidence.complete ? files.rowsOfAttempt : [])
    if (!files.attempts.has(attempt))
      findings.push({ what: 'a write that nobody sent', excerpt: files.excerpt([row]) });
  return findings;
}

/** Every write of a field was computed from what the write before it had left. */
function chains(files: Files): Finding[] {
  const findings: Finding[] = [];
  const { cells, log } = files.evidence.tables;
  const left = new Map<string, { value: number; row?: LogRow }>();
  for (const { key } of cells) {
    left.set(`${key} value`, { value: 0 });
    left.set(`${key} balance`, { value: files.evidence.balance });
  }
  const next = new Map<string, number>();
  for (const row of log) {
    const seq = (next.get(row.key) ?? 0) + 1;
    next.set(row.key, row.seq);
    if (row.seq !== seq)
      findings.push({ what: `write [${seq}] of ${row.key} is missing`, excerpt: files.excerpt([row]) });
    if (row.written === null) continue;
    const field = `${row.key} ${row.field}`;
    const before = left.get(field);
    if (before && before.value !== row.read)
      findings.push({
        what: `lost update: ${field} was ${before.value}, and this write had read ${row.read}`,
        excerpt: files.excerpt([before.row, row]),
      });
    left.set(field, { value: row.written, row });
  }
  for (const { key, seq, value, balance } of cells) {
    for (const [name, is] of Object.entries({ value, balance })) {
      const last = left.get(`${key} ${name}`)!;
      if (is !== last.value)
        findings.push({
          what: `the ${name} of ${key} is ${is}, and its last write left ${last.value}`,
          excerpt: files.excerpt([last.row]),
        });
    }
    if (seq !== (next.get(key) ?? 0)) findings.push({ what: `${key} counts ${seq} writes`, excerpt: [] });
  }
  return findings;
}

/** Transfers move amounts; they make none. */
function sums(files: Files): Finding[] {
  const { tables, balance } = files.evidence;
  const sum = tables.cells.reduce((total, cell) => total + cell.balance, 0);
  return sum === balance * tables.cells.length
    ? []
    : [{ what: `the balances add up to ${sum}, not ${balance * tables.cells.length}`, excerpt: [] }];
}
