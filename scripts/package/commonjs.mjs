import ts from 'typescript';

/**
 * Makes a CommonJS module of an ES module that the compiler has written. It changes imports and exports alone: the two copies of
 * a file stay alike, line by line, so the second one costs the tarball next to nothing, and a stack trace reads the same in both.
 * What it does not know it refuses; imports must not go round in a circle, which the linter sees to.
 * @param {string} text
 * @param {string} file for messages
 */
export function toCommonJs(text, file) {
  const source = ts.createSourceFile(file, text, ts.ScriptTarget.ES2022, true, ts.ScriptKind.JS);
  /** @type {{ from: number, to: number, text: string }[]} */
  const edits = [];
  /** @type {string[]} */
  const exported = [];
  const replace = (/** @type {ts.Node} */ node, /** @type {string} */ by) =>
    edits.push({ from: node.getStart(source), to: node.getEnd(), text: by });
  const refuse = (/** @type {ts.Node} */ node) => {
    throw new Error(`${file}: this has no CommonJS form here: ${node.getText(source).slice(0, 100)}`);
  };

  for (const statement of source.statements) {
    if (ts.isImportDeclaration(statement)) {
      replace(statement, importOf(statement, refuse));
    } else if (ts.isExportDeclaration(statement)) {
      replace(statement, exportOf(statement, refuse));
    } else if (ts.isExportAssignment(statement)) {
      refuse(statement);
    } else if (ts.canHaveModifiers(statement)) {
      const word = ts.getModifiers(statement)?.find(({ kind }) => kind === ts.SyntaxKind.ExportKeyword);
      if (!word) continue;
      exported.push(...namesOf(statement, refuse));
      edits.push({ from: word.getStart(source), to: word.getEnd() + 1, text: '' });
    }
  }
  const visit = (/** @type {ts.Node} */ node) => {
    if (ts.isCallExpression(node) && node.expression.kind === ts.SyntaxKind.ImportKeyword) {
      // As a namespace: with a default, and without touching the getters of the module.
      const [specifier] = node.arguments;
      if (!specifier || !ts.isStringLiteral(specifier)) return refuse(node);
      const required = `require(${specifier.getText(source)})`;
      replace(
        node,
        `Promise.resolve().then(() => ${required}).then((module) => module.__esModule ? module : Object.create(module, { default: { value: module } }))`,
      );
    }
    ts.forEachChild(node, visit);
  };
  visit(source);

  let out = text;
  for (const { from, to, text: by } of edits.sort((a, b) => b.from - a.from))
    out = out.slice(0, from) + by + out.slice(to);
  const ends = exported.map((name) => `exports.${name} = ${name};\n`).join('');
  return `"use strict";\nObject.defineProperty(exports, "__esModule", { value: true });\n${out.trimEnd()}\n${ends}`;
}

/** @param {ts.ImportDeclaration} statement @param {(node: ts.Node) => never} refuse */
function importOf({ importClause, moduleSpecifier }, refuse) {
  const required = `require(${moduleSpecifier.getText()})`;
  if (!importClause) return `${required};`;
  const { name, namedBindings } = importClause;
  // The default of a built-in module is the module; of others it would depend on how they were made.
  if (name && (namedBindings || !/^.node:/.test(moduleSpecifier.getText()))) return refuse(importClause);
  if (name) return `const ${name.text} = ${required};`;
  if (!namedBindings || !ts.isNamedImports(namedBindings)) return refuse(importClause);
  const names = namedBindings.elements.map(({ name: local, propertyName }) =>
    propertyName ? `${propertyName.text}: ${local.text}` : local.text,
  );
  return `const { ${names.join(', ')} } = ${required};`;
}

/** @param {ts.ExportDeclaration} statement @param {(node: ts.Node) => never} refuse */
function exportOf(statement, refuse) {
  const { exportClause, moduleSpecifier } = statement;
  if (!exportClause || !ts.isNamedExports(exportClause)) return refuse(statement);
  return exportClause.elements
    .map(({ name, propertyName = name }) => {
      const value = moduleSpecifier
        ? `require(${moduleSpecifier.getText()}).${propertyName.text}`
        : propertyName.text;
      return `exports.${name.text} = ${value};`;
    })
    .join(' ');
}

/** @param {ts.Statement} statement @param {(node: ts.Node) => never} refuse @returns {string[]} */
function namesOf(statement, refuse) {
  if (ts.isClassDeclaration(statement) || ts.isFunctionDeclaration(statement)) {
    return statement.name ? [statement.name.text] : refuse(statement);
  }
  // Only constants: what is assigned later would not be seen by those who required it before.
  if (!ts.isVariableStatement(statement) || !(statement.declarationList.flags & ts.NodeFlags.Const))
    return refuse(statement);
  return statement.declarationList.declarations.flatMap(({ name }) => {
    if (ts.isIdentifier(name)) return [name.text];
    return name.elements.map((element) =>
      ts.isBindingElement(element) && ts.isIdentifier(element.name) ? element.name.text : refuse(element),
    );
  });
}
