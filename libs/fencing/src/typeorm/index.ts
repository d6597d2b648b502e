export { GenerationColumn } from './generation-column.js';
export { FencedRepositoriesModule } from './row-guard-module.js';
export { FencedRepository, type RowOf, type RowOutcome } from './row-guard.js';
export { CreateFencing1764000000000, fencingMigrations, fencingMigrationsIn } from './schema.js';
export { typeOrmFence, type TypeOrmFenceOptions } from './typeorm-fence-source.js';
