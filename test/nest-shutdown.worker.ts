import { AsyncResource } from 'node:async_hooks';
import { Injectable, type OnApplicationShutdown } from '@nestjs/common';
import { CurrentLease, FencedWrite, type Lease, Leased } from 'nestjs-fencing';
import { redisLeases } from 'nestjs-fencing/redis';
import { startFencedApp } from './support/fenced-app.js';
import { tell, told } from './support/worker-side.js';

/*
 * A Nest application with shutdown hooks, for nest-shutdown.e2e-spec.ts: one leased method that runs until the test says so,
 * and ignores that it was aborted.
 */

const { key, ttlMs, drainMs } = JSON.parse(process.argv[2]!) as {
  key: string;
  ttlMs: number;
  drainMs: number;
};
const messages: Promise<unknown>[] = [];

@Injectable()
class Job implements OnApplicationShutdown {
  @Leased(() => key, { ttlMs })
  async run(@CurrentLease() lease?: Lease): Promise<string> {
    const onAbort = (): void => {
      const { code, reason } = lease!.signal.reason as { code: string; reason: string };
      messages.push(tell('aborted', { code, reason }));
      messages.push(this.write().then(() => tell('late write', 'accepted'), refused('late write')));
    };
    // A listener runs where the signal was aborted; this one is part of the method.
    lease!.signal.addEventListener('abort', AsyncResource.bind(onAbort));
    await tell('began', { owner: lease!.owner, generation: lease!.generation });
    await told('finish');
    return this.write();
  }

  @FencedWrite()
  async write(): Promise<string> {
    return 'written';
  }

  /** The process ends after this: nothing that was told may get lost. */
  async onApplicationShutdown(): Promise<void> {
    await Promise.all(messages);
  }
}

const app = await startFencedApp({
  leases: await redisLeases({ url: process.env.REDIS_URL! }),
  fencing: { drainMs, storeTimeoutMs: 500 },
  providers: [Job],
});
app.module.enableShutdownHooks(['SIGTERM'], { useProcessExit: true });
// Keeps the process alive as a server would.
setInterval(() => undefined, 1_000);

const run = app.get(Job).run();
messages.push(run.then((result) => tell('returned', result), refused('returned')));

function refused(name: string): (error: { code?: string }) => Promise<void> {
  return ({ code }) => tell(name, code);
}
