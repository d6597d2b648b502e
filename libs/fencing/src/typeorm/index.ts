export { GenerationColumn, type GenerationColumnOptions } from './generation-column.js';
export { protectTable, type ProtectTableOptions, unprotectTable } from './protect-table.js';
export { FencedRepositoriesModule } from './row-guard-module.js';
export { FencedRepository, type RowOf, type RowOutcome } from './row-guard.js';
export { CreateFencing1764000000000, fencingMigrations, fencingMigrationsIn } from './schema.js';
export { typeOrmFence, type TypeOrmFenceOptions } from './typeorm-fence-source.js';
export {
  CreateFencingLeases1764000000010,
  fencingLeaseMigrations,
  fencingLeaseMigrationsIn,
} from './leases/postgres-lease-schema.js';
export { postgresLeases, type PostgresLeasesOptions } from './leases/postgres-leases.js';
