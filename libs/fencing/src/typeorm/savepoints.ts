import { AsyncLocalStorage } from 'node:async_hooks';
import type { PgQueryRunner } from './driver.js';

/** One level of nesting on a connection: what was opened in it last. */
interface Level {
  readonly runner: PgQueryRunner;
  last: Promise<unknown>;
}

const outermost = new WeakMap<PgQueryRunner, Level>();
const current = new AsyncLocalStorage<Level>();

/**
 * Runs `work` when nothing else that was started at the same level still runs. Savepoints of one connection must nest, and
 * TypeORM names them by depth: two side by side would end each other. What `work` itself starts does not wait for it.
 */
export function takeTurn<T>(runner: PgQueryRunner, work: () => Promise<T>): Promise<T> {
  const inside = current.getStore();
  let level = inside?.runner === runner ? inside : outermost.get(runner);
  if (!level) outermost.set(runner, (level = { runner, last: Promise.resolve() }));
  const turn = level.last.then(() => current.run({ runner, last: Promise.resolve() }, work));
  level.last = turn.catch(() => undefined);
  return turn;
}

/** Runs `work` in a savepoint: if it fails, only what it did is undone. */
export function inSavepoint<T>(runner: PgQueryRunner, work: () => Promise<T>): Promise<T> {
  return takeTurn(runner, async () => {
    await runner.startTransaction();
    try {
      const result = await work();
      await runner.commitTransaction();
      return result;
    } catch (error) {
      // Where this fails too, the connection is gone and the transaction with it.
      await runner.rollbackTransaction().catch(() => undefined);
      throw error;
    }
  });
}
