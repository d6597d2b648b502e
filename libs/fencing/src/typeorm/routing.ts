import type { DataSource, EntityManager, QueryRunner } from 'typeorm';
import { FenceBypassError } from '../core/errors.js';

/** What the routing asks the fence about the current call. */
export interface RoutingHost {
  /** The runner of the guarded transaction that this call is inside of. Throws once that transaction has ended. */
  currentRunner(): QueryRunner | undefined;
  /** Runs `work` knowing that it is inside a transaction that the application opened on `runner`. */
  insideCallersTransaction<T>(runner: QueryRunner, work: () => Promise<T>): Promise<T>;
}

/**
 * Brings every path to a DataSource into the guarded transaction of the current call: injected and custom repositories, entity
 * managers, query builders, `query`, statics of BaseEntity, nested transactions. It works on that one DataSource and its own
 * manager; no prototype is touched. What cannot be brought in is refused: a query runner of one's own.
 *
 * @returns how to take it all back
 */
export function routeDataSource(dataSource: DataSource, host: RoutingHost): () => void {
  const { manager } = dataSource;
  const original = {
    query: dataSource.query,
    createQueryBuilder: dataSource.createQueryBuilder,
    createQueryRunner: dataSource.createQueryRunner,
    transaction: manager.transaction,
  };

  const undo: (() => void)[] = [];
  const define = (target: object, name: string, property: PropertyDescriptor) => {
    const own = Object.getOwnPropertyDescriptor(target, name);
    Object.defineProperty(target, name, { ...property, configurable: true });
    undo.push(() => (own ? Object.defineProperty(target, name, own) : Reflect.deleteProperty(target, name)));
  };
  const replace = (target: object, name: string, value: unknown) => define(target, name, { value, writable: true });

  define(manager, 'queryRunner', { get: () => host.currentRunner() });

  replace(dataSource, 'query', (sql: string, parameters?: unknown[], runner?: QueryRunner) =>
    original.query.call(dataSource, sql, parameters, runner ?? host.currentRunner()),
  );

  replace(dataSource, 'createQueryBuilder', (entityOrRunner?: unknown, alias?: string, runner?: QueryRunner) => {
    const create = original.createQueryBuilder as (...args: unknown[]) => unknown;
    return alias === undefined
      ? create.call(dataSource, entityOrRunner ?? host.currentRunner())
      : create.call(dataSource, entityOrRunner, alias, runner ?? host.currentRunner());
  });

  replace(dataSource, 'createQueryRunner', (mode?: 'master' | 'slave') => {
    if (host.currentRunner()) throw bypass('A query runner of its own');
    const runner = original.createQueryRunner.call(dataSource, mode);
    const query = runner.query;
    // It may be kept and used later, inside a fenced write of somebody else.
    runner.query = ((...args: Parameters<typeof query>) => {
      const current = host.currentRunner();
      if (current && current !== runner) return Promise.reject(bypass('A statement on a query runner that was created outside'));
      return query.apply(runner, args);
    }) as typeof query;
    return runner;
  });

  replace(manager, 'transaction', (...args: unknown[]) => {
    const work = args.pop() as (manager: EntityManager) => Promise<unknown>;
    const transaction = original.transaction as (...args: unknown[]) => Promise<unknown>;
    if (host.currentRunner()) return transaction.call(manager, ...args, work);
    return transaction.call(manager, ...args, (inner: EntityManager) =>
      host.insideCallersTransaction(inner.queryRunner!, () => work(inner)),
    );
  });

  return () => undo.reverse().forEach((step) => step());
}

function bypass(what: string): FenceBypassError {
  return new FenceBypassError(what, 'Use the repositories, the manager or dataSource.query: they are inside the transaction.');
}
