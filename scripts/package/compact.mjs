import { minify } from '@swc/core';
import ts from 'typescript';

/**
 * The code of an ES module without the white space that only readers need: names stay, and every statement and member keeps a
 * line of its own, so a stack trace still says where.
 * @param {string} text
 */
export async function compact(text) {
  const { code } = await minify(text, {
    module: true,
    compress: false,
    mangle: false,
    format: { comments: false },
  });
  const source = ts.createSourceFile('compact.js', code, ts.ScriptTarget.ES2022, false, ts.ScriptKind.JS);
  /** @type {Set<number>} */
  const starts = new Set();
  const visit = (/** @type {ts.Node} */ node) => {
    if (ts.isBlock(node) || ts.isSourceFile(node))
      for (const one of node.statements) starts.add(one.getStart(source));
    if (ts.isClassLike(node)) for (const one of node.members) starts.add(one.getStart(source));
    ts.forEachChild(node, visit);
  };
  visit(source);
  let out = '';
  let from = 0;
  for (const start of [...starts].sort((a, b) => a - b)) {
    out += start === 0 ? '' : `${code.slice(from, start)}\n`;
    from = start;
  }
  return `${out}${code.slice(from)}\n`;
}
