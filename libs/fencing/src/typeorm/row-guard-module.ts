import { DataSource, type ObjectLiteral } from 'typeorm';
import { fencedRepositoryToken } from '../core/fenced-repository-token.js';
import { FencedRepository } from './row-guard.js';

type EntityClass = abstract new (...args: never[]) => ObjectLiteral;

/**
 * Provides `FencedRepository` for `@InjectFencedRepository(Entity)` of `nestjs-fencing`; import it beside
 * `TypeOrmModule.forFeature([Entity])`. A plain object of Nest's module format, so that this folder does not depend on Nest.
 *
 * ```ts
 * imports: [TypeOrmModule.forFeature([Account]), FencedRepositoriesModule.forFeature([Account])]
 * ```
 */
export class FencedRepositoriesModule {
  /**
   * @param dataSource the name that the DataSource has in `TypeOrmModule.forRoot({ name })`
   *
   * The application does not start where an entity has no `@GenerationColumn()`.
   */
  static forFeature(entities: readonly EntityClass[], dataSource = 'default') {
    const providers = entities.map((entity) => ({
      provide: fencedRepositoryToken(entity, dataSource),
      // The injection token of @nestjs/typeorm: the class itself, or the name with a suffix.
      inject: [dataSource === 'default' ? DataSource : `${dataSource}DataSource`],
      useFactory: (source: DataSource) => new FencedRepository(source.manager, entity),
    }));
    return {
      module: FencedRepositoriesModule,
      providers,
      exports: providers.map(({ provide }) => provide),
    };
  }
}
