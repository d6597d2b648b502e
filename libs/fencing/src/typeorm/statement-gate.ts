import type { Readable } from 'node:stream';
import { FenceBypassError } from '../core/errors.js';
import type { PgQueryRunner } from './driver.js';
import { takeTurn } from './savepoints.js';

/** Sends a statement past the gate, as TypeORM would. */
export type SendAsTypeOrm = (text: string, parameters?: unknown[], structured?: true) => Promise<unknown>;

/** What becomes of the statements of a query runner. */
export interface StatementGate {
  /** What is done instead of a statement by which TypeORM begins or ends the transaction; `undefined`: it is none. */
  control(text: string, send: SendAsTypeOrm): Promise<unknown> | undefined;
  /** @throws where nothing may be sent any more, or not this */
  assertMaySend(text: string): void;
  statement(send: () => Promise<unknown>): Promise<unknown>;
  /** A stream of rows: what is sent after it waits until it was read, or destroyed. */
  opened(stream: Readable): void;
}

/**
 * Puts a gate before a query runner: every statement of a guarded transaction goes through here, whoever sends it. `isOwn`: the
 * transaction is not the application's, and its connection is given back by nobody else.
 * @returns how to take the gate away
 */
export function gateRunner(runner: PgQueryRunner, gate: StatementGate, isOwn: boolean): () => void {
  const query: SendAsTypeOrm = runner.query.bind(runner);
  const stream = runner.stream.bind(runner);
  const release = runner.release.bind(runner);
  const { manager } = runner;
  const transaction = manager.transaction.bind(manager) as (...args: unknown[]) => Promise<unknown>;

  // No async functions: each would be two promises more for each statement.
  runner.query = ((text: string, parameters?: unknown[], structured?: true): Promise<unknown> => {
    try {
      const instead = gate.control(text, query);
      if (instead) return instead;
      gate.assertMaySend(text);
    } catch (error) {
      return Promise.reject(error);
    }
    return gate.statement(() => query(text, parameters, structured));
  }) as typeof runner.query;

  runner.stream = async (text, ...rest) => {
    gate.assertMaySend(text);
    const opened = await stream(text, ...rest);
    gate.opened(opened);
    return opened;
  };
  // What the method has as its manager, and what transactions inside it have.
  manager.transaction = (...args: unknown[]) => takeTurn(runner, () => transaction(...args)) as never;
  if (isOwn) {
    runner.release = () =>
      Promise.reject(
        new FenceBypassError('Releasing the connection', 'It is given back when the method ends.'),
      );
  }
  return () => {
    Object.assign(runner, { query, stream, release });
    Object.assign(manager, { transaction });
  };
}
