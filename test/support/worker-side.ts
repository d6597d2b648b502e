import type { Message } from './workers.js';

/*
 * The worker's end of `forkWorker`. The channel to the test keeps the process alive only while something is awaited from it,
 * so that a worker ends when its own work has; it also ends when the test is gone.
 */

const unread: Message[] = [];
const waiting: { name: string; resolve: (payload: unknown) => void }[] = [];

process.on('message', (message: Message) => {
  const index = waiting.findIndex((waiter) => waiter.name === message.name);
  if (index < 0) {
    unread.push(message);
    return;
  }
  waiting.splice(index, 1)[0]!.resolve(message.payload);
  if (waiting.length === 0) process.channel?.unref();
});
process.on('disconnect', () => process.exit(1));
process.channel?.unref();

/** What the test gets from `worker.waitFor(name)`. Resolves once it is on its way. */
export function tell(name: string, payload?: unknown): Promise<void> {
  return new Promise((resolve, reject) => {
    process.send!({ name, payload } satisfies Message, (error: Error | null) =>
      error ? reject(error) : resolve(),
    );
  });
}

/** The payload of the next `worker.send(name, payload)`. */
export function told<T = unknown>(name: string): Promise<T> {
  const index = unread.findIndex((message) => message.name === name);
  if (index >= 0) return Promise.resolve(unread.splice(index, 1)[0]!.payload as T);
  process.channel?.ref();
  return new Promise<T>((resolve) => waiting.push({ name, resolve: (payload) => resolve(payload as T) }));
}

/** Stands still until the test calls `worker.openGate(name)`; `worker.atGate(name)` waits for this moment. */
export async function gate(name: string): Promise<void> {
  await tell(`at ${name}`);
  await told(`open ${name}`);
}
