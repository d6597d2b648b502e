// A process that runs contenders (fork of worker.mjs <redis url>): does one task after the other on demand.
import { makeContender } from '../contenders/index.mjs';
import * as tasks from './tasks.mjs';

/**
 * @typedef {object} Who
 * @property {string} name of a contender
 * @property {boolean} [tuned]
 */

const [url = ''] = process.argv.slice(2);
/** @type {Map<string, Promise<import('../contenders/contender.mjs').Contender>>} */
const contenders = new Map();

/** @param {Who} who */
function contenderFor({ name, tuned = false }) {
  const id = `${name}:${tuned}`;
  let contender = contenders.get(id);
  if (!contender) contenders.set(id, (contender = makeContender(name, { url, tuned })));
  return contender;
}

/** @param {keyof typeof tasks} task @param {Who} who @param {any} options */
async function answer(task, who, options) {
  try {
    process.send?.({ result: await tasks[task](await contenderFor(who), options) });
  } catch (error) {
    process.send?.({ error: error instanceof Error ? (error.stack ?? error.message) : String(error) });
  }
}

process.on('message', (/** @type {any} */ { task, who, options }) => void answer(task, who, options));
process.on('disconnect', () => process.exit());
process.send?.({ result: 'ready' });
