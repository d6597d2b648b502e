// What one contender does under one load, for a profiler:
//   node --cpu-prof --cpu-prof-dir=. profile.mjs [contender] [keys at a time] [seconds]
// Prints throughput, CPU, and what Redis spent.

import { makeContender } from './contenders/index.mjs';
import { connect } from './contenders/client.mjs';
import { startRedis } from '../scripts/services.mjs';

const [name = 'nestjs-fencing', keys = '100', seconds = '5'] = process.argv.slice(2);
const server = await startRedis();
const contender = await makeContender(name, { url: server.url });
const admin = await connect(server.url);

/** @param {number} ms */
async function load(ms) {
  const cpu = process.cpuUsage();
  const start = performance.now();
  let cycles = 0;
  await Promise.all(
    Array.from({ length: Number(keys) }, async (_, i) => {
      for (; performance.now() < start + ms; cycles++) await contender.cycle(`profile:${i}`);
    }),
  );
  await contender.settle();
  const { user, system } = process.cpuUsage(cpu);
  return {
    perSecond: (cycles / (performance.now() - start)) * 1000,
    user: user / cycles,
    system: system / cycles,
  };
}

await load(1000);
await admin.config('RESETSTAT');
const { perSecond, user, system } = await load(Number(seconds) * 1000);
console.log(
  `${name}, ${keys} keys at a time: ${perSecond.toFixed(0)} cycles/s, node CPU ${user.toFixed(1)} µs user + ${system.toFixed(1)} µs system per cycle`,
);
console.log(
  (await admin.info('commandstats'))
    .match(/^cmdstat_\w+:calls=\d+,usec=\d+,usec_per_call=[\d.]+/gm)
    ?.join('\n'),
);
await contender.close();
admin.disconnect();
await server.stop();
