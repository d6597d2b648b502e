import { minify } from '@swc/core';
import ts from 'typescript';

/** Constants of the board that hold what a browser runs; they go into one script, so what they declare keeps its name. */
const SCRIPTS = ['SCRIPT', 'TIMELINE'];
const STYLES = ['STYLE'];

/**
 * The code of an ES module without comments, and without the white space and the names of local variables that only readers need.
 * Classes, functions and members keep their names, and every statement and member a line of its own: so a stack trace still says
 * where.
 * @param {string} text
 */
export async function compact(text) {
  const { code } = await minify(await compactTexts(text), {
    module: true,
    // Shorter forms of the same; nothing is moved between functions.
    compress: { ecma: 2022, inline: 0, reduce_funcs: false, sequences: false, ...KEEP },
    mangle: KEEP,
    format: { comments: false },
  });
  const source = parse(code);
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

const KEEP = { keep_fnames: true, keep_classnames: true };

/** The texts for browsers in a module, by the same measure. @param {string} text */
async function compactTexts(text) {
  const source = parse(text);
  let out = text;
  for (const { name, template } of constantsOf(source).reverse()) {
    const isScript = SCRIPTS.includes(name);
    if (!isScript && !STYLES.includes(name)) continue;
    const raw = template.getText(source).slice(1, -1);
    const smaller = isScript ? await compactScript(raw) : compactStyle(raw);
    if (/`|\$\{/.test(smaller)) throw new Error(`${name} does not fit between backticks.`);
    out = `${out.slice(0, template.getStart(source))}\`${smaller}\`${out.slice(template.getEnd())}`;
  }
  return out;
}

/** @param {string} text */
async function compactScript(text) {
  const { code } = await minify(text, {
    module: false,
    compress: false,
    mangle: { toplevel: false },
    format: { comments: false },
  });
  return code;
}

/** @param {string} text */
function compactStyle(text) {
  if (/"[^"\n]*[{};][^"\n]*"/.test(text)) throw new Error('a text in the style has what separates rules');
  return text
    .replaceAll(/\/\*[\s\S]*?\*\//g, '')
    .replaceAll(/\s+/g, ' ')
    .replaceAll(/ ?([{};]) ?/g, '$1')
    .replaceAll(';}', '}')
    .trim();
}

/** Constants that are one text, `String.raw`. @param {ts.SourceFile} source */
function constantsOf(source) {
  /** @type {{ name: string, template: ts.NoSubstitutionTemplateLiteral }[]} */
  const found = [];
  const visit = (/** @type {ts.Node} */ node, name = '') => {
    if (ts.isTaggedTemplateExpression(node) && ts.isNoSubstitutionTemplateLiteral(node.template))
      found.push({ name, template: node.template });
    const inside = ts.isVariableDeclaration(node) ? node.name.getText(source) : name;
    ts.forEachChild(node, (child) => visit(child, inside));
  };
  visit(source);
  return found;
}

/** @param {string} text */
function parse(text) {
  return ts.createSourceFile('compact.js', text, ts.ScriptTarget.ES2022, false, ts.ScriptKind.JS);
}
