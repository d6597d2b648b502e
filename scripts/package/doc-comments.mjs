import path from 'node:path';
import ts from 'typescript';
import { programOf } from './declarations.mjs';
import { entryPoints, lib } from './package.mjs';

/** What nobody calls by name: contracts to implement, what comes with a decorator, and what `migrations` lists. */
const WITHOUT_EXAMPLE = /^(LeaseStore|Fence|FencingInterceptor|CreateFencing\w*\d+|boardLook|\w+Error)$/;
/** A block of code, or a piece of a line that calls something. */
const EXAMPLE = /```ts|`[^`]*[@([][^`]*`/;
/** Anything else that looks like one is text, which editors do not show as such: it belongs into backticks. */
const TAGS = ['default', 'param', 'returns', 'throws'];

/**
 * The doc comments that editors show: every public name has one; what is called has an example; times name their unit; optional
 * options say what holds without them.
 * @returns {Promise<string[]>}
 */
export async function checkDocComments() {
  const files = entryPoints.map((entry) => path.join(lib, 'dist', 'esm', entry, 'index.d.ts'));
  const program = programOf(files);
  const checker = program.getTypeChecker();
  /** @type {Set<ts.Symbol>} */
  const exported = new Set();
  for (const file of files) {
    const source = program.getSourceFile(file);
    const module = source && checker.getSymbolAtLocation(source);
    if (!module) return [`${file} is no module`];
    for (const symbol of checker.getExportsOfModule(module))
      exported.add(symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol);
  }
  return [...exported].flatMap((symbol) => [
    ...problemsOf(symbol, checker),
    ...membersOf(symbol).flatMap((member) => problemsOfMember(symbol.name, member, checker)),
  ]);
}

/** @param {ts.Symbol} symbol @param {ts.TypeChecker} checker */
function problemsOf(symbol, checker) {
  const text = textOf(symbol, checker);
  if (text === '') return [`${symbol.name} has no doc comment`];
  const unknown = unknownTags(symbol.name, symbol, checker);
  if (unknown.length > 0) return unknown;
  const needsExample = symbol.flags & ts.SymbolFlags.Value && !WITHOUT_EXAMPLE.test(symbol.name);
  return needsExample && !EXAMPLE.test(text) ? [`the doc comment of ${symbol.name} has no example`] : [];
}

/** @param {string} owner @param {ts.Symbol} member @param {ts.TypeChecker} checker */
function problemsOfMember(owner, member, checker) {
  const text = textOf(member, checker);
  const name = `${owner}.${member.name}`;
  const hasDefault = member.getJsDocTags(checker).some((tag) => tag.name === 'default');
  const isOption = owner.endsWith('Options');
  return [
    ...unknownTags(name, member, checker),
    ...(member.name.endsWith('Ms') && !/\bms\b/.test(text) ? [`${name} does not name its unit, ms`] : []),
    ...(isOption && text === '' && !hasDefault ? [`${name} has no doc comment`] : []),
    ...(isOption && member.flags & ts.SymbolFlags.Optional && !hasDefault && !/without|by default/i.test(text)
      ? [`${name} does not say what holds without it (@default)`]
      : []),
  ];
}

/** @param {string} name @param {ts.Symbol} symbol @param {ts.TypeChecker} checker */
function unknownTags(name, symbol, checker) {
  return symbol
    .getJsDocTags(checker)
    .filter((tag) => !TAGS.includes(tag.name))
    .map((tag) => `the doc comment of ${name} is cut at @${tag.name}: put it into backticks`);
}

/** The members of a class or interface that users see. @param {ts.Symbol} symbol */
function membersOf({ flags, members }) {
  if (!(flags & (ts.SymbolFlags.Class | ts.SymbolFlags.Interface)) || !members) return [];
  return [...members.values()].filter(
    ({ flags: kind, declarations = [] }) =>
      kind & (ts.SymbolFlags.Property | ts.SymbolFlags.Method | ts.SymbolFlags.Accessor) &&
      !declarations.some((one) => ts.getCombinedModifierFlags(one) & ts.ModifierFlags.Private),
  );
}

/** @param {ts.Symbol} symbol @param {ts.TypeChecker} checker */
function textOf(symbol, checker) {
  return ts.displayPartsToString(symbol.getDocumentationComment(checker));
}
