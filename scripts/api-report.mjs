// npm run api [-- --check]: writes what each entry point of the package declares into libs/fencing/api/*.api.md, and all options into
// docs/options.md, from the declarations in libs/fencing/dist. With --check it writes nothing and fails where these are out of date:
// a change of the public face is seen in review.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import ts from 'typescript';
import { programOf } from './package/declarations.mjs';
import { optionsPage } from './package/option-tables.mjs';
import { projectRoot } from './services.mjs';

const lib = path.join(projectRoot, 'libs', 'fencing');
const folder = path.join(lib, 'api');
const types = path.join(lib, 'dist', 'esm');
const check = process.argv.includes('--check');

/** @type {{ exports: Record<string, unknown> }} */
const { exports } = JSON.parse(readFileSync(path.join(lib, 'package.json'), 'utf8'));
const entries = Object.keys(exports).filter((entry) => entry !== './package.json');
const files = entries.map((entry) => path.join(types, entry, 'index.d.ts'));
const missing = files.filter((file) => !existsSync(file));
if (missing.length > 0) {
  console.error(`${path.relative(projectRoot, String(missing[0]))} is missing: npm run build:lib`);
  process.exit(2);
}

const program = programOf(files);
const checker = program.getTypeChecker();
const printer = ts.createPrinter({ removeComments: true });

/** What the other entry points show is not repeated as "not exported". @type {Set<ts.Symbol>} */
const exportedSomewhere = new Set(files.flatMap((file) => [...exportsOf(file).values()]));

let outdated = 0;
mkdirSync(folder, { recursive: true });
entries.forEach((entry, i) => {
  const name = entry === '.' ? 'index' : entry.slice(2);
  keep(path.join(folder, `${name}.api.md`), reportOf(`nestjs-fencing${entry.slice(1)}`, String(files[i])));
});
const all = new Map(files.flatMap((file) => [...exportsOf(file)]));
keep(path.join(projectRoot, 'docs', 'options.md'), optionsPage(all, checker));
process.exit(outdated === 0 ? 0 : 1);

/** @param {string} file @param {string} text */
function keep(file, text) {
  if (!check) writeFileSync(file, text);
  else if (!existsSync(file) || readFileSync(file, 'utf8') !== text) {
    outdated++;
    console.error(
      `${path.relative(projectRoot, file)} does not show what the package declares: npm run api, and look at the difference.`,
    );
  }
}

/** @param {string} specifier @param {string} file */
function reportOf(specifier, file) {
  const exported = exportsOf(file);
  const lines = [
    `# What \`${specifier}\` declares`,
    '',
    'Written by `npm run api`; do not edit.',
    '',
    '```ts',
  ];
  for (const [name, symbol] of sorted(exported)) lines.push('', ...declarationsOf(name, symbol));
  const behind = sorted(reachable([...exported.values()])).flatMap(([name, symbol]) =>
    declarationsOf(name, symbol),
  );
  if (behind.length > 0) lines.push('', '// ---- Not exported, and part of what is:');
  // Several constants may share a statement.
  for (const text of new Set(behind)) lines.push('', text);
  return `${lines.join('\n').replace('```ts\n\n', '```ts\n')}\n\`\`\`\n`;
}

/** @param {string} file @returns {Map<string, ts.Symbol>} */
function exportsOf(file) {
  const source = program.getSourceFile(file);
  const module = source && checker.getSymbolAtLocation(source);
  if (!module) throw new Error(`${file} is no module.`);
  return new Map(checker.getExportsOfModule(module).map((symbol) => [symbol.name, resolve(symbol)]));
}

/** @param {string} name @param {ts.Symbol} symbol @returns {string[]} */
function declarationsOf(name, symbol) {
  const alias = name === symbol.name ? [] : [`// ${symbol.name}, exported as ${name}`];
  return [...alias, ...(symbol.declarations ?? []).map(textOf)];
}

/** @param {ts.Declaration} declaration */
function textOf(declaration) {
  // Of `const x: T`, the whole statement.
  const node = ts.isVariableDeclaration(declaration) ? declaration.parent.parent : declaration;
  return printer
    .printNode(ts.EmitHint.Unspecified, withoutPrivates(node), node.getSourceFile())
    .replace(/^export declare |^declare |^export /, '');
}

/** Private members are nobody's business. @param {ts.Node} node */
function withoutPrivates(node) {
  if (!ts.isClassDeclaration(node)) return node;
  const { modifiers, name, typeParameters, heritageClauses, members } = node;
  return ts.factory.createClassDeclaration(
    modifiers,
    name,
    typeParameters,
    heritageClauses,
    members.filter((member) => !isPrivate(member)),
  );
}

/** @param {ts.Node} node */
function isPrivate(node) {
  return (
    ts.canHaveModifiers(node) &&
    ts.getModifiers(node)?.some(({ kind }) => kind === ts.SyntaxKind.PrivateKeyword)
  );
}

/** Declarations of the package that `symbols` mention and that are not among them. @param {ts.Symbol[]} symbols */
function reachable(symbols) {
  const known = new Set([...symbols, ...exportedSomewhere]);
  /** @type {Map<string, ts.Symbol>} */
  const behind = new Map();
  const queue = [...symbols];
  const visit = (/** @type {ts.Node} */ node) => {
    if (isPrivate(node)) return;
    const symbol = ts.isIdentifier(node) ? checker.getSymbolAtLocation(node) : undefined;
    const target = symbol && resolve(symbol);
    if (target && !known.has(target) && target.declarations?.some(isTopLevelHere)) {
      known.add(target);
      behind.set(target.name, target);
      queue.push(target);
    }
    ts.forEachChild(node, visit);
  };
  for (let symbol; (symbol = queue.shift());) {
    for (const declaration of symbol.declarations ?? []) visit(declaration);
  }
  return behind;
}

/** @param {ts.Declaration} declaration */
function isTopLevelHere(declaration) {
  const node = ts.isVariableDeclaration(declaration) ? declaration.parent.parent : declaration;
  // A whole module, as in `common.DynamicModule`, is declared by its file.
  return (
    !ts.isSourceFile(node) &&
    ts.isSourceFile(node.parent) &&
    node.getSourceFile().fileName.includes('/libs/fencing/dist/')
  );
}

/** @param {ts.Symbol} symbol */
function resolve(symbol) {
  return symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol;
}

/** @template T @param {Map<string, T>} map */
function sorted(map) {
  return [...map].sort(([a], [b]) => (a < b ? -1 : 1));
}
