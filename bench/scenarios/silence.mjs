// Redis goes silent, or the event loop is blocked: how soon a method learns that its lease is over.
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { makeContender, OURS, PEERS } from '../contenders/index.mjs';
import { row } from '../harness/rows.mjs';
import { short } from '../harness/stats.mjs';

const TTL_MS = 2_000;
const LOCKS = 5;
/** Whoever has said nothing by then is counted as if it had spoken now. */
const LONGEST_MS = 8_000;

/** @type {import('../harness/scenario.mjs').Measure} */
export async function measure({ redis, log }) {
  const server = await redis();
  const pid = /** @type {number} */ (server.pid);
  const contenders = await Promise.all(
    [OURS, ...PEERS].map(async (name) => ({
      name,
      contender: await makeContender(name, { url: server.url }),
    })),
  );
  // Connections and code are warm; nobody's ttl is touched by the first use.
  for (const { contender } of contenders) await contender.cycle('warm-up');

  /** @type {Promise<{ name: string, lateMs: number }>[]} */
  const notices = [];
  await Promise.all(
    contenders.flatMap(({ name, contender }) =>
      Array.from({ length: LOCKS }, async (_, i) => {
        const lost = new EventTarget();
        const noticed = once(lost, 'lost');
        const sentAt = performance.now();
        await contender.hold(`silent:${i}`, TTL_MS, () => void lost.dispatchEvent(new Event('lost')));
        notices.push(
          Promise.race([noticed, sleep(TTL_MS + LONGEST_MS)]).then(() => ({
            name,
            lateMs: performance.now() - sentAt - TTL_MS,
          })),
        );
      }),
    ),
  );
  process.kill(pid, 'SIGSTOP');
  const late = await Promise.all(notices);
  process.kill(pid, 'SIGCONT');
  /** @param {string} name */
  const latest = (name) => Math.max(...late.filter((one) => one.name === name).map(({ lateMs }) => lateMs));
  for (const { name } of contenders)
    log(`Redis silent: ${name} tells ${short(latest(name))} ms after the ttl`);
  const soonest = /** @type {string} */ ([...PEERS].sort((a, b) => latest(a) - latest(b))[0]);

  const right = await afterBlockedLoop(server.url);
  log(`event loop blocked beyond the ttl: lease.state was right at once ${right} of ${BLOCKS} times`);
  const rows = [
    row({
      id: 'signal-after-stall',
      title: `Redis silent, ttl ${TTL_MS / 1000} s: the method's signal, after the ttl`,
      unit: 'ms',
      ours: [latest(OURS)],
      reference: [latest(soonest)],
      referenceName: soonest,
      target: { atMost: 25, of: 'ours', text: '≤ 25 ms' },
    }),
    row({
      id: 'state-after-block',
      title: 'event loop blocked beyond the ttl: lease.state right in the next statement',
      unit: `of ${BLOCKS}`,
      ours: [right],
      target: { atLeast: BLOCKS, of: 'ours', text: 'always' },
    }),
  ];
  await Promise.all(contenders.map(({ contender }) => contender.close()));
  return rows;
}

const BLOCKS = 10;

/** @param {string} url */
async function afterBlockedLoop(url) {
  const ours = await makeContender(OURS, { url });
  let right = 0;
  for (let i = 0; i < BLOCKS; i++) {
    const { lease } = await ours.hold(`blocked:${i}`, 100, () => {});
    const until = performance.now() + 150;
    while (performance.now() < until);
    if (lease?.state === 'lost') right++;
  }
  await ours.close();
  return right;
}
