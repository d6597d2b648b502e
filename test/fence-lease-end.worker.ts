import { Authority, BareFence, newGrant } from './support/bare-fence.js';
import { tell } from './support/worker-side.js';

// A worker for fence-lease-end.e2e-spec.ts: it is stopped inside a fenced write whose lease has 1.5 s left.
const [mode] = process.argv.slice(2);
const bare = await BareFence.open();
const grant = newGrant();
await bare.activate(grant);
const write = bare.write(new Authority(grant, 1_500), async (manager) => {
  await manager.query('INSERT INTO ended VALUES ($1)', [grant.key]);
  const busy = mode === 'busy' ? manager.query('SELECT pg_sleep(0.5)') : undefined;
  await tell('inside', grant.key);
  await busy;
  // Stopped here.
  await new Promise((resolve) => setTimeout(resolve, 5_000));
  await manager.query('INSERT INTO ended VALUES ($1)', [grant.key]);
});
await write.catch((error: { code?: string; message: string }) =>
  tell('refused', { code: error.code, message: error.message }),
);
await bare.close();
