import { Redis } from 'ioredis';
import { redisLeases } from 'nestjs-fencing/redis';
import { startFencedApp } from './support/fenced-app.js';
import { tell } from './support/worker-side.js';

/*
 * A process in another time zone than its database, for nest-time-units.e2e-spec.ts. Stored times are written and read across
 * the change of clocks, and a lease is taken, renewed and released.
 */

const redis = new Redis(process.env.REDIS_URL!);
const app = await startFencedApp({
  leases: redisLeases(redis),
  dataSource: { extra: { options: `-c TimeZone=${process.env.DATABASE_ZONE}` } } as object,
});
const { fencing, dataSource } = app;
const zone = {
  process: new Date(Date.UTC(2026, 0, 1)).getTimezoneOffset(),
  database: (await dataSource.query<{ TimeZone: string }[]>('SHOW TimeZone'))[0]!.TimeZone,
};

const before = Date.now();
const held = await fencing.run('zones', { ttlMs: 600 }, async (lease) => {
  await fencing.write({ operation: { id: `zones:${lease.generation}` } }, () => 'done');
  const renewals = { from: lease.remainingMs(), at: performance.now() };
  while (performance.now() - renewals.at < 1_500) await new Promise((resolve) => setTimeout(resolve, 20));
  lease.assertHeld();
  return lease.generation;
});
const { fence } = await fencing.inspect('zones');
const [receipt] = await dataSource.query<{ ms: string }[]>(
  'SELECT extract(epoch FROM accepted_at) * 1000 AS ms FROM fencing_operation WHERE id = $1',
  [`zones:${held}`],
);

// 05:30 and 06:30 UTC are both "01:30" in New York on the night that the clocks go back.
const across: string[] = [];
for (const instant of ['2026-11-01T05:30:00.000Z', '2026-11-01T06:30:00.000Z', '2026-03-08T07:00:00.000Z']) {
  await dataSource.query(`UPDATE fencing_fence SET activated_at = $1 WHERE key = 'zones'`, [
    new Date(instant),
  ]);
  across.push((await fencing.inspect('zones')).fence!.activatedAt.toISOString());
}

await tell('times', {
  zone,
  activatedAfterMs: fence!.activatedAt.getTime() - before,
  acceptedAfterMs: Number(receipt!.ms) - before,
  across,
});
await app.close();
redis.disconnect();
