import { floor } from './floor.mjs';
import { ours } from './ours.mjs';
import { peers } from './peers.mjs';
import { stores } from './stores.mjs';

/** @type {Record<string, import('./contender.mjs').MakeContender>} */
const contenders = { ...ours, ...floor, ...peers, ...stores };

export const [OURS = ''] = Object.keys(ours);
export const [FLOOR = ''] = Object.keys(floor);
export const PEERS = Object.keys(peers);

/**
 * @param {string} name
 * @param {import('./contender.mjs').ContenderOptions} options
 */
export async function makeContender(name, options) {
  const make = contenders[name];
  if (!make) throw new Error(`There is no contender "${name}": ${Object.keys(contenders).join(', ')}.`);
  return make(options);
}
