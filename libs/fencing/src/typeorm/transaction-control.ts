/** What begins, ends or leaves a transaction; ROLLBACK TO and the savepoint commands stay inside it. */
const CONTROL =
  /^\s*(commit|end|abort|rollback(?!\s+((work|transaction)\s+)?to\b)|begin|start\s+transaction|prepare\s+transaction)\b/i;
/** Texts and comments of SQL, inside which a word or a semicolon means nothing; of a comment in slashes, its beginning. A name may have dollars. */
const QUOTED =
  /\be'(?:[^'\\]|\\[^]|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|(?<![\w$])\$(\w*)\$[^]*?\$\1\$|--[^\n\r]*|\/\*/gi;
const COMMENT_EDGE = /\/\*|\*\//g;
/** Cheap and often false: most statements need no closer look. */
const SUSPECT = /\b(commit|end|abort|rollback|begin|start|prepare)\b/i;

/** Whether `sql`, or one of several statements in it, would begin or end a transaction. */
export function controlsTransaction(sql: string): boolean {
  if (!SUSPECT.test(sql)) return false;
  return withoutQuoted(sql)
    .split(';')
    .some((statement) => CONTROL.test(statement));
}

function withoutQuoted(sql: string): string {
  let [bare, at] = ['', 0];
  QUOTED.lastIndex = 0;
  for (let quoted; (quoted = QUOTED.exec(sql)); QUOTED.lastIndex = at) {
    bare += `${sql.slice(at, quoted.index)} `;
    at = quoted[0] === '/*' ? endOfComment(sql, QUOTED.lastIndex) : QUOTED.lastIndex;
  }
  return bare + sql.slice(at);
}

/** PostgreSQL lets comments be inside comments. */
function endOfComment(sql: string, from: number): number {
  COMMENT_EDGE.lastIndex = from;
  let depth = 1;
  for (let edge; depth > 0; depth += edge[0] === '/*' ? 1 : -1) {
    edge = COMMENT_EDGE.exec(sql);
    if (!edge) return sql.length;
  }
  return COMMENT_EDGE.lastIndex;
}
