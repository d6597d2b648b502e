import { DataSource } from 'typeorm';
import { FencingConfigError } from '../core/errors.js';
import { checkChoice, checkNames, show } from '../core/options.js';
import type { FenceSource } from '../core/sources.js';
import { TypeOrmFence } from './typeorm-fence.js';

/** Options of `typeOrmFence`. */
export interface TypeOrmFenceOptions {
  /** The DataSource, or the name that it has in `TypeOrmModule.forRoot({ name })`. @default the default one of `@nestjs/typeorm` */
  dataSource?: DataSource | string;
  /** The schema of the package's tables. @default the DataSource's own */
  schema?: string;
  /** Creates the tables at boot where they are missing: for development. In production run `fencingMigrations`. @default false */
  ensureSchema?: boolean;
  /**
   * `'durable'`: an activation waits for the disk. `'relaxed'`: it does not; after a crash of the database an activation may be
   * gone, its owner is refused, and the owner before it may write once more.
   * @default 'durable'
   */
  activationDurability?: 'durable' | 'relaxed';
  /**
   * What the boot does where an entity has a `@GenerationColumn()` and its table no trigger (see `protectTable`): `'warn'` logs which, and the
   * line that is missing in a migration; `'fail'` stops it. Not asked for columns with `trigger: false`.
   * @default 'warn'
   */
  missingTriggers?: 'warn' | 'fail';
}

/**
 * The fence in the PostgreSQL database of a TypeORM DataSource: without an argument, of the default one of `@nestjs/typeorm`.
 *
 * ```ts
 * FencingModule.forRoot({ leases, fence: typeOrmFence({ ensureSchema: true }) })
 * ```
 * @throws FencingConfigError where an option is wrong
 */
export function typeOrmFence(dataSourceOrOptions: DataSource | TypeOrmFenceOptions = {}): FenceSource {
  const options: TypeOrmFenceOptions = isDataSource(dataSourceOrOptions)
    ? { dataSource: dataSourceOrOptions }
    : dataSourceOrOptions;
  checkNames('typeOrmFence', options, [
    'dataSource',
    'schema',
    'ensureSchema',
    'activationDurability',
    'missingTriggers',
  ]);
  const {
    dataSource,
    schema,
    ensureSchema = false,
    activationDurability = 'durable',
    missingTriggers = 'warn',
  } = options;
  checkChoice('typeOrmFence', 'activationDurability', activationDurability, ['durable', 'relaxed']);
  checkChoice('typeOrmFence', 'missingTriggers', missingTriggers, ['warn', 'fail']);
  checkChoice('typeOrmFence', 'ensureSchema', ensureSchema, [true, false]);
  if (schema !== undefined && (typeof schema !== 'string' || schema === '')) {
    throw new FencingConfigError(`typeOrmFence: schema must be the name of a schema, got ${show(schema)}.`);
  }
  const isNamed = typeof dataSource === 'string' && dataSource !== '';
  if (dataSource !== undefined && !isNamed && !isDataSource(dataSource)) {
    throw new FencingConfigError(
      `typeOrmFence: dataSource must be a DataSource or its name, got ${show(dataSource)}.`,
    );
  }
  return {
    // The injection token of @nestjs/typeorm: the class itself, or the name with a suffix.
    token: isDataSource(dataSource)
      ? undefined
      : dataSource === undefined || dataSource === 'default'
        ? DataSource
        : `${dataSource}DataSource`,
    tokenHelp:
      'typeOrmFence found no DataSource: import TypeOrmModule.forRoot(…), or give it one: typeOrmFence(dataSource).',
    create: (resolved) =>
      new TypeOrmFence((resolved ?? dataSource) as DataSource, {
        schema,
        ensureSchema,
        activationDurability,
        missingTriggers,
      }),
  };
}

function isDataSource(value: unknown): value is DataSource {
  return typeof (value as Partial<DataSource> | null | undefined)?.createQueryRunner === 'function';
}
