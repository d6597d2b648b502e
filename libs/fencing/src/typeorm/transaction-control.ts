/** What begins, ends or leaves a transaction; ROLLBACK TO and the savepoint commands stay inside it. */
const CONTROL =
  /^\s*(commit|end|abort|rollback(?!\s+((work|transaction)\s+)?to\b)|begin|start\s+transaction|prepare\s+transaction)\b/i;
/** Texts and comments of SQL, inside which a word or a semicolon means nothing. A comment may have comments inside; a name may have dollars. */
const QUOTED =
  /\be'(?:[^'\\]|\\[^]|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|(?<![\w$])\$(\w*)\$[^]*?\$\1\$|--[^\n\r]*|\/\*(?:(?!\/\*|\*\/)[^]|\/\*(?:(?!\*\/)[^])*\*\/)*\*\//gi;
/** Cheap and often false: most statements need no closer look. */
const SUSPECT = /\b(commit|end|abort|rollback|begin|start|prepare)\b/i;

/** Whether `sql`, or one of several statements in it, would begin or end a transaction. */
export function controlsTransaction(sql: string): boolean {
  if (!SUSPECT.test(sql)) return false;
  return sql
    .replace(QUOTED, ' ')
    .split(';')
    .some((statement) => CONTROL.test(statement));
}
