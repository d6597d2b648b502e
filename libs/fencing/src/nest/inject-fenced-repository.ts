import { Inject } from '@nestjs/common';
import { fencedRepositoryToken } from '../core/fenced-repository-token.js';

/**
 * The `FencedRepository` of an entity that has a `@GenerationColumn()`. Its module imports
 * `FencedRepositoriesModule.forFeature([Entity])` of `nestjs-fencing/typeorm`.
 *
 * ```ts
 * constructor(@InjectFencedRepository(Account) private readonly accounts: FencedRepository<Account>) {}
 * ```
 * @param dataSource the name of the DataSource, where it is not the default one
 */
export function InjectFencedRepository(
  entity: abstract new (...args: never[]) => unknown,
  dataSource?: string,
): ParameterDecorator & PropertyDecorator {
  return Inject(fencedRepositoryToken(entity, dataSource));
}
