// node scripts/check-package.mjs: judges the built package (libs/fencing/dist) as its users will meet it.
import { checkBothCopies } from './package/both-copies.mjs';
import { checkDependencies, checkRootTypes } from './package/dependencies.mjs';
import { checkDocComments } from './package/doc-comments.mjs';
import { checkEntryPoints } from './package/entry-points.mjs';
import { checkTarball } from './package/tarball.mjs';

/** @type {Record<string, () => Promise<string[]>>} what is checked, and how; each answers what is wrong */
const CHECKS = {
  'every entry point loads, with the same names from import and require': checkEntryPoints,
  'field report R6: both copies in one process share context, errors and tokens': checkBothCopies,
  "the root's declarations name no driver": checkRootTypes,
  'every public name has its doc comment, with units, defaults and an example': checkDocComments,
  'every dependency is justified in docs/package.md, and no other': checkDependencies,
  'the tarball is small, and publint and are-the-types-wrong have nothing to say': checkTarball,
};

let failed = false;
for (const [what, check] of Object.entries(CHECKS)) {
  const problems = await check().catch((error) => [String(error?.stack ?? error)]);
  console.log(`${problems.length === 0 ? 'ok    ' : 'FAILED'} ${what}`);
  for (const problem of problems) console.error(`       ${problem}`);
  failed ||= problems.length > 0;
}
process.exit(failed ? 1 : 0);
