// npm run simulate -- [--seconds 60] [--seed 1] [--runs N] [--plant 'a guard that does not lock']
import { parseArgs } from 'node:util';
import { type Plant, PLANTS } from './plants.js';
import { type RunResult, simulate } from './simulate.js';

const { values } = parseArgs({
  options: {
    seconds: { type: 'string', default: '60' },
    seed: { type: 'string', default: '1' },
    runs: { type: 'string', default: 'Infinity' },
    plant: { type: 'string' },
    lines: { type: 'string', default: '120' },
  },
});
const plant = values.plant as Plant | undefined;
if (plant && !(plant in PLANTS)) {
  console.error(`There is no such plant. Plants:\n  ${Object.keys(PLANTS).join('\n  ')}`);
  process.exit(2);
}

const unhandled: unknown[] = [];
process.on('unhandledRejection', (error) => unhandled.push(error));

const started = performance.now();
const elapsed = (): number => (performance.now() - started) / 1_000;
const totals: Record<string, number> = {};
let runs = 0;
let steps = 0;
let failed: RunResult | undefined;
for (
  let seed = Number(values.seed);
  elapsed() < Number(values.seconds) && runs < Number(values.runs);
  seed++
) {
  const result = await simulate(seed, { plant });
  runs += 1;
  steps += result.steps;
  for (const [name, count] of Object.entries(result.counts)) totals[name] = (totals[name] ?? 0) + count;
  if (result.violations.length === 0 && unhandled.length === 0) continue;
  failed = await simulate(seed, { plant, isRecording: true });
  break;
}

if (failed) {
  console.log(failed.history.slice(-Number(values.lines)).join('\n'));
  for (const error of unhandled) console.log('unhandled rejection:', error);
  for (const { invariant, says } of failed.violations) console.log(`VIOLATED ${invariant}: ${says}`);
  console.log(
    `replay: npm run simulate -- --seed ${failed.seed} --runs 1${plant ? ` --plant '${plant}'` : ''}`,
  );
}
const perSecond = (count: number): string => (count / elapsed()).toFixed(0);
console.log(
  Object.entries(totals)
    .map(([name, count]) => `${count} ${name}`)
    .join(', '),
);
console.log(
  `${runs} runs in ${elapsed().toFixed(1)} s (${perSecond(runs)} runs and ${perSecond(steps)} steps a second), seeds ${values.seed} to ${Number(values.seed) + runs - 1}`,
);
console.log(failed ? `FAILED at seed ${failed.seed}` : 'no violation');
process.exitCode = failed ? 1 : 0;
