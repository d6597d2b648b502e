import ts from 'typescript';

/**
 * Both copies of the package have one text. The body of a file is a function of what the file imports, and answers what it
 * exports; `esm` and `cjs` import for it, each in its own way, and call it. What this does not know it refuses.
 * @param {string} text of an ES module
 * @param {string} name of the file, without folder and ending
 * @returns {{ body: string, esm: string, cjs: string }}
 */
export function toBody(text, name) {
  const source = parse(text, name);
  /** @type {Record<'parameters' | 'values' | 'names' | 'esm' | 'cjs', string[]>} */
  const { parameters, values, names, esm, cjs } = { parameters: [], values: [], names: [], esm: [], cjs: [] };
  /** @type {{ from: number, to: number, text: string }[]} */
  const edits = [];
  const cut = (/** @type {ts.Node} */ node, by = '') =>
    edits.push({ from: node.getStart(source), to: node.getEnd(), text: by });

  for (const statement of source.statements) {
    if (ts.isImportDeclaration(statement)) {
      const specifier = specifierOf(statement);
      const pattern = patternOf(statement);
      cut(statement);
      if (pattern === undefined) {
        esm.push(`import ${specifier};`);
        cjs.push(`require(${specifier});`);
        continue;
      }
      const local = `_${parameters.push(pattern)}`;
      esm.push(`import ${isNamespace(pattern, specifier) ? '* as ' : ''}${local} from ${specifier};`);
      values.push(local);
      cjs.push(`const ${local} = require(${specifier});`);
    } else if (ts.isExportDeclaration(statement)) {
      cut(statement);
      names.push(...exportsOf(statement).map(([local, exported]) => property(exported, local)));
    } else if (ts.isExportAssignment(statement) || hasExport(statement)) {
      refuse(statement);
    }
  }
  for (const call of dynamicImports(source)) {
    const specifier = String(call.arguments[0]?.getText(source));
    if (specifier.startsWith('"./')) refuse(call);
    const local = `load${parameters.length}`;
    parameters.push(local);
    values.push(local);
    cut(call, `${local}()`);
    esm.push(`const ${local} = () => import(${specifier});`);
    // As a namespace: with a default, and without touching the getters of the module.
    cjs.push(
      `const ${local} = () => Promise.resolve().then(() => require(${specifier})).then((module) => module.__esModule ? module : Object.create(module, { default: { value: module } }));`,
    );
  }
  const call = `body(${values.join(', ')})`;
  const file = `../lib/${name}.cjs`;
  return {
    body: [
      '"use strict";',
      `module.exports=(${parameters.join(',')})=>{`,
      `${edited(text, edits).trim()}`,
      `return{${names.join(',')}}};\n`,
    ].join('\n'),
    esm: [...esm, `import body from "${file}";`, `export default ${call};\n`].join('\n'),
    cjs: [...cjs, `module.exports = require("${file}")(${values.join(', ')});\n`].join('\n'),
  };
}

/**
 * An entry point: it re-exports what bodies answer.
 * @param {string} text of an ES module
 * @param {string} name for messages
 * @returns {{ esm: string, cjs: string }}
 */
export function toEntry(text, name) {
  const source = parse(text, name);
  let esm = '';
  let cjs = '"use strict";\nObject.defineProperty(exports, "__esModule", { value: true });\n';
  source.statements.forEach((statement, i) => {
    if (!ts.isExportDeclaration(statement) || !statement.moduleSpecifier) return refuse(statement);
    const specifier = specifierOf(statement);
    const exported = exportsOf(statement);
    const pattern = exported.map(([local, name]) => property(local, name)).join(',');
    esm += `import _${i} from ${specifier};\nexport const{${pattern}}=_${i};\n`;
    cjs += `const _${i} = require(${specifier});\n`;
    // One by one: so the names are seen by who does not run it.
    for (const [local, name] of exported) cjs += `exports.${name} = _${i}.${local};\n`;
  });
  return { esm, cjs };
}

/**
 * A program, an ES module alone: its imports of bodies come from their default.
 * @param {string} text of an ES module
 * @param {string} name for messages
 */
export function toProgram(text, name) {
  const source = parse(text, name);
  /** @type {{ from: number, to: number, text: string }[]} */
  const edits = [];
  const cut = (/** @type {ts.Node} */ node, /** @type {string} */ by) =>
    edits.push({ from: node.getStart(source), to: node.getEnd(), text: by });
  source.statements.forEach((statement, i) => {
    if (!ts.isImportDeclaration(statement)) return;
    const specifier = specifierOf(statement);
    if (/^.\./.test(specifier))
      cut(statement, `import _${i} from ${specifier};\nconst ${patternOf(statement)} = _${i};`);
  });
  for (const call of dynamicImports(source)) {
    const text = call.getText(source);
    if (/^import\(.\./.test(text)) cut(call, `${text}.then((module) => module.default)`);
  }
  return edited(text, edits);
}

/** @param {string} text @param {string} name */
function parse(text, name) {
  return ts.createSourceFile(name, text, ts.ScriptTarget.ES2022, true, ts.ScriptKind.JS);
}

/** @param {ts.Node} node @returns {never} */
function refuse(node) {
  throw new Error(`${node.getSourceFile().fileName}: not known here: ${node.getText().slice(0, 100)}`);
}

/** @param {ts.ImportDeclaration | ts.ExportDeclaration} statement */
function specifierOf({ moduleSpecifier }) {
  const { text } = /** @type {ts.StringLiteral} */ (moduleSpecifier);
  return JSON.stringify(text);
}

/** What an import binds, as a parameter. @param {ts.ImportDeclaration} statement */
function patternOf({ importClause }) {
  if (!importClause) return undefined;
  const { name, namedBindings } = importClause;
  if (name && !namedBindings) return name.text;
  if (name || !namedBindings || !ts.isNamedImports(namedBindings)) return refuse(importClause);
  const names = namedBindings.elements.map((one) =>
    property((one.propertyName ?? one.name).text, one.name.text),
  );
  return `{${names.join(',')}}`;
}

/** Of a package, its names; of another file here, what its body answered. @param {string} pattern @param {string} specifier */
function isNamespace(pattern, specifier) {
  if (pattern.startsWith('{')) return !/^"\./.test(specifier);
  // The default of a built-in module is the module; of others it would depend on how they were made.
  if (!specifier.startsWith('"node:')) throw new Error(`the default of ${specifier} is not known here`);
  return false;
}

/** @param {ts.ExportDeclaration} statement @returns {[local: string, exported: string][]} */
function exportsOf(statement) {
  const { exportClause } = statement;
  if (!exportClause || !ts.isNamedExports(exportClause)) return refuse(statement);
  return exportClause.elements.map(({ name, propertyName = name }) => [propertyName.text, name.text]);
}

/** @param {string} name @param {string} value */
function property(name, value) {
  return name === value ? name : `${name}:${value}`;
}

/** @param {ts.Statement} statement */
function hasExport(statement) {
  return (
    ts.canHaveModifiers(statement) &&
    ts.getModifiers(statement)?.some(({ kind }) => kind === ts.SyntaxKind.ExportKeyword)
  );
}

/** @param {ts.SourceFile} source @returns {ts.CallExpression[]} */
function dynamicImports(source) {
  /** @type {ts.CallExpression[]} */
  const calls = [];
  const visit = (/** @type {ts.Node} */ node) => {
    if (ts.isCallExpression(node) && node.expression.kind === ts.SyntaxKind.ImportKeyword) calls.push(node);
    ts.forEachChild(node, visit);
  };
  visit(source);
  return calls;
}

/** @param {string} text @param {{ from: number, to: number, text: string }[]} edits */
function edited(text, edits) {
  let out = text;
  for (const { from, to, text: by } of edits.sort((a, b) => b.from - a.from))
    out = out.slice(0, from) + by + out.slice(to);
  return out;
}
