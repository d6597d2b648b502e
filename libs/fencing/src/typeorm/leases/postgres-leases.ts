import { DataSource } from 'typeorm';
import { FencingConfigError } from '../../core/errors.js';
import { checkChoice, checkMs, checkNames, show } from '../../core/options.js';
import type { LeaseStoreSource } from '../../core/sources.js';
import { PostgresConnections } from './postgres-connections.js';
import { PostgresLeaseStore } from './postgres-lease-store.js';
import { LeaseSql } from './postgres-leases-sql.js';

/** Options of `postgresLeases`. */
export interface PostgresLeasesOptions {
  /** The DataSource, or the name that it has in `TypeOrmModule.forRoot({ name })`. @default the default one of `@nestjs/typeorm` */
  dataSource?: DataSource | string;
  /**
   * Instead of a DataSource: `postgres://[user:password@]host[:port]/database`. Needs the package `pg`.
   * @default the server of the DataSource
   */
  url?: string;
  /** The schema of the tables of `fencingLeaseMigrations`. @default the DataSource's own */
  schema?: string;
  /**
   * How waiting callers hear of a freed key. `'listen'`: by LISTEN and NOTIFY, on a connection that the package opens when
   * somebody first waits. `'poll'`: by looking again every `pollMs`, for connections that cannot LISTEN (PgBouncer in
   * transaction mode). The same in every process of a deployment.
   * @default 'listen'
   */
  hints?: 'listen' | 'poll';
  /** With `hints: 'poll'`: how often a process with waiting callers looks again, ms; one request for all of them. From 10. @default 100 */
  pollMs?: number;
  /** Creates the tables at boot where they are missing: for development. In production run `fencingLeaseMigrations`. @default false */
  ensureSchema?: boolean;
}

const OPTIONS = ['dataSource', 'url', 'schema', 'hints', 'pollMs', 'ensureSchema'];

/**
 * Leases in PostgreSQL 12 or newer, without a Redis: in the database of a TypeORM DataSource (without an argument: of the default
 * one of `@nestjs/typeorm`) or of a URL. The package opens connections of its own, two for requests and one to listen, and closes
 * them with the application.
 *
 * ```ts
 * FencingModule.forRoot({ leases: postgresLeases(), fence: typeOrmFence() })
 * ```
 * @throws FencingConfigError where an option is wrong
 */
export function postgresLeases(
  dataSourceOrOptions: DataSource | PostgresLeasesOptions = {},
): LeaseStoreSource {
  const where = 'postgresLeases';
  const options: PostgresLeasesOptions = isDataSource(dataSourceOrOptions)
    ? { dataSource: dataSourceOrOptions }
    : dataSourceOrOptions;
  checkNames(where, options, OPTIONS);
  const { dataSource, url, schema, hints = 'listen', pollMs = 100, ensureSchema = false } = options;
  checkChoice(where, 'hints', hints, ['listen', 'poll']);
  checkChoice(where, 'ensureSchema', ensureSchema, [true, false]);
  checkMs(where, 'pollMs', pollMs, 10);
  if (schema !== undefined && (typeof schema !== 'string' || schema === ''))
    throw new FencingConfigError(`${where}: schema must be the name of a schema, got ${show(schema)}.`);
  const isNamed = typeof dataSource === 'string' && dataSource !== '';
  if (dataSource !== undefined && !isNamed && !isDataSource(dataSource))
    throw new FencingConfigError(
      `${where}: dataSource must be a DataSource or its name, got ${show(dataSource)}.`,
    );
  if (url !== undefined && (typeof url !== 'string' || !/^postgres(ql)?:\/\//.test(url)))
    throw new FencingConfigError(`${where}: url must be a text like 'postgres://localhost:5432/app'.`);
  if (url !== undefined && dataSource !== undefined)
    throw new FencingConfigError(`${where}: give it url or dataSource, not both.`);
  return {
    token: url !== undefined || isDataSource(dataSource) ? undefined : tokenOf(dataSource),
    tokenHelp:
      'postgresLeases found no DataSource: import TypeOrmModule.forRoot(…), or give it one: postgresLeases(dataSource), or { url }.',
    createStore: (resolved) => {
      const target = url ?? ((resolved ?? dataSource) as DataSource);
      const own = typeof target === 'string' ? undefined : postgresOptionsOf(target).schema;
      return new PostgresLeaseStore(new PostgresConnections(target), new LeaseSql(schema ?? own), {
        hints,
        pollMs,
        ensureSchema,
      });
    },
  };
}

/** The injection token of @nestjs/typeorm: the class itself, or the name with a suffix. */
function tokenOf(name: string | undefined): unknown {
  return name === undefined || name === 'default' ? DataSource : `${name}DataSource`;
}

function postgresOptionsOf(dataSource: DataSource): { schema?: string } {
  const options = dataSource.options as { type: string; schema?: string };
  if (options.type === 'postgres') return options;
  throw new FencingConfigError(
    `postgresLeases needs a DataSource of type 'postgres', this one is '${options.type}'.`,
  );
}

function isDataSource(value: unknown): value is DataSource {
  return typeof (value as Partial<DataSource> | null | undefined)?.createQueryRunner === 'function';
}
