import type { DataSource, EntityManager, QueryRunner } from 'typeorm';
import { runInFrame } from '../core/context.js';
import { FenceBypassError } from '../core/errors.js';
import type { PgQueryRunner } from './driver.js';
import { takeTurn } from './savepoints.js';

/** What the routing asks the fence about the current call. */
export interface RoutingHost {
  /** The runner of the guarded transaction that this call is inside of. Throws once that transaction has ended. */
  currentRunner(): QueryRunner | undefined;
  /** Runs `work` knowing that it is inside a transaction that the application opened on `runner`. */
  insideCallersTransaction<T>(runner: QueryRunner, work: () => Promise<T>): Promise<T>;
}

interface Routed {
  /** The fences on this DataSource. */
  readonly hosts: Set<RoutingHost>;
  readonly undo: () => void;
}

const routed = new WeakMap<DataSource, Routed>();

/**
 * Brings every path to a DataSource into the guarded transaction of the current call: injected and custom repositories, entity
 * managers, query builders, `query`, statics of BaseEntity, nested transactions. It works on that one DataSource and its own
 * manager; no prototype is touched. What cannot be brought in is refused: a query runner of one's own.
 *
 * @returns how to take it all back
 */
export function routeDataSource(dataSource: DataSource, host: RoutingHost): () => void {
  let here = routed.get(dataSource);
  if (!here) {
    const hosts = new Set<RoutingHost>();
    routed.set(dataSource, (here = { hosts, undo: install(dataSource, hosts) }));
  }
  const { hosts, undo } = here;
  hosts.add(host);
  return () => {
    if (!hosts.delete(host) || hosts.size > 0) return;
    routed.delete(dataSource);
    undo();
  };
}

function install(dataSource: DataSource, hosts: ReadonlySet<RoutingHost>): () => void {
  const { manager } = dataSource;
  const currentRunner = (): QueryRunner | undefined => {
    for (const host of hosts) {
      const runner = host.currentRunner();
      if (runner) return runner;
    }
    return undefined;
  };
  type Any = (...args: unknown[]) => unknown;
  const original = {
    query: dataSource.query.bind(dataSource) as Any,
    createQueryBuilder: dataSource.createQueryBuilder.bind(dataSource) as Any,
    createQueryRunner: dataSource.createQueryRunner.bind(dataSource),
    transaction: manager.transaction.bind(manager) as (...args: unknown[]) => Promise<unknown>,
  };

  const undo: (() => void)[] = [];
  const define = (target: object, name: string, property: PropertyDescriptor) => {
    const own = Object.getOwnPropertyDescriptor(target, name);
    Object.defineProperty(target, name, { ...property, configurable: true });
    undo.push(() => (own ? Object.defineProperty(target, name, own) : Reflect.deleteProperty(target, name)));
  };
  const replace = (target: object, name: string, value: unknown) =>
    define(target, name, { value, writable: true });

  define(manager, 'queryRunner', { get: () => currentRunner() });

  // A manager keeps the repositories that it makes, each with the runner of that moment; these outlive the transaction.
  for (const name of ['getRepository', 'getTreeRepository'] as const) {
    const make = manager[name].bind(manager) as Any;
    replace(manager, name, (of: unknown) => runInFrame({ leases: [] }, () => make(of)));
  }

  // The current one is asked for also where a runner is given: it throws once the transaction has ended.
  replace(dataSource, 'query', async (sql: string, parameters?: unknown[], runner?: QueryRunner) => {
    const current = currentRunner();
    return original.query(sql, parameters, runner ?? current);
  });

  replace(
    dataSource,
    'createQueryBuilder',
    (entityOrRunner?: unknown, alias?: string, runner?: QueryRunner) => {
      const current = currentRunner();
      return alias === undefined
        ? original.createQueryBuilder(entityOrRunner ?? current)
        : original.createQueryBuilder(entityOrRunner, alias, runner ?? current);
    },
  );

  replace(dataSource, 'createQueryRunner', (mode?: 'master' | 'slave') => {
    if (currentRunner()) throw bypass('A query runner of its own');
    const runner = original.createQueryRunner(mode);
    // It may be kept and used later, inside a fenced write of somebody else.
    for (const name of ['query', 'stream'] as const) {
      const send = runner[name].bind(runner) as Any;
      runner[name] = ((...args: unknown[]) => {
        const current = currentRunner();
        if (current && current !== runner)
          return Promise.reject(bypass('A statement on a query runner that was created outside'));
        return send(...args);
      }) as never;
    }
    return runner;
  });

  type Work = (manager: EntityManager) => Promise<unknown>;
  // dataSource.transaction() calls it with the work first and an undefined second argument.
  replace(manager, 'transaction', (isolationOrWork: string | Work, maybeWork?: Work) => {
    const isolation = typeof isolationOrWork === 'string' ? [isolationOrWork] : [];
    const work = typeof isolationOrWork === 'string' ? maybeWork! : isolationOrWork;
    const current = currentRunner();
    if (current) return takeTurn(current as PgQueryRunner, () => original.transaction(...isolation, work));
    return original.transaction(...isolation, (inner: EntityManager) => {
      const inside = [...hosts].reduce(
        (next, host) => () => host.insideCallersTransaction(inner.queryRunner!, next),
        () => work(inner),
      );
      return inside();
    });
  });

  return () => undo.reverse().forEach((step) => step());
}

function bypass(what: string): FenceBypassError {
  return new FenceBypassError(
    what,
    'Use the repositories, the manager or dataSource.query: they are inside the transaction.',
  );
}
