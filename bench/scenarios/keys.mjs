// What remains of a key that was used once: nothing, so that cost does not grow with the number of keys ever used.
import { connect } from '../contenders/client.mjs';
import { OURS } from '../contenders/index.mjs';
import { row } from '../harness/rows.mjs';
import { short } from '../harness/stats.mjs';
import { Worker } from '../harness/workers.mjs';

/** @type {import('../harness/scenario.mjs').Measure} */
export async function measure({ quick, redis, log }) {
  const { url } = await redis();
  const worker = await Worker.start(url);
  const admin = await connect(url);
  /** @type {{ count: number, keys: number, redisBytes: number, heapBytes: number, micros: number }[]} */
  const points = [];
  // The first keys also pay for code that is compiled and buffers that are made.
  await worker.do('cycle', { name: OURS }, { keys: 100, ms: 1_000, atLeast: 20_000 });
  for (let count = 0, end = 1_000; end <= (quick ? 100_000 : 1_000_000); end *= 10) {
    const { microsPerCycle, heapBytes } = await worker.do(
      'cycleNewKeys',
      { name: OURS },
      { from: count, count: end - count },
    );
    count = end;
    const redisBytes = Number(/used_memory:(\d+)/.exec(await admin.info('memory'))?.[1]);
    points.push({ count, keys: await admin.dbsize(), redisBytes, heapBytes, micros: microsPerCycle });
    log(
      `${count} keys used: ${await admin.dbsize()} keys in Redis, ${short(redisBytes / 2 ** 20)} MB there, ` +
        `${short(heapBytes / 2 ** 20)} MB of heap, ${short(microsPerCycle)} µs per cycle`,
    );
  }
  worker.stop();
  admin.disconnect();
  const [first] = points;
  const last = points.at(-1);
  if (!first || !last) throw new Error('nothing was measured');
  const size = last.count.toLocaleString('en').replaceAll(',', ' ');
  /** @param {string} id @param {string} title @param {string} unit @param {number} now @param {number} then @param {number} [atMost] */
  const grown = (id, title, unit, now, then, atMost) =>
    row({
      id,
      title: `${title} after ${size} keys ever used`,
      unit,
      ours: [now],
      reference: [then],
      referenceName: 'after 1 000 keys',
      target: atMost === undefined ? undefined : { atMost, text: 'flat (≤ 1.1 ×)' },
    });
  return [
    grown('redis-keys', 'keys in Redis', 'keys', last.keys, first.keys, 1.1),
    grown(
      'redis-memory',
      'memory of Redis',
      'MB',
      last.redisBytes / 2 ** 20,
      first.redisBytes / 2 ** 20,
      1.1,
    ),
    grown('heap', 'heap of the process', 'MB', last.heapBytes / 2 ** 20, first.heapBytes / 2 ** 20, 1.1),
    grown('cost-by-keys', 'time of a cycle, 100 at a time,', 'µs', last.micros, first.micros),
  ];
}
