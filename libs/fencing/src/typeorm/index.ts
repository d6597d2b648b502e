export { CreateFencing1764000000000, fencingMigrations, fencingMigrationsIn } from './schema.js';
export { typeOrmFence, type TypeOrmFenceOptions } from './typeorm-fence-source.js';
