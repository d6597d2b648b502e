// The servers that tests, the reference app and the drill need, each a real one.
//   startPostgres / startRedis                a server of one's own, ended by its stop()
//   findOrStartPostgres / findOrStartRedis    DATABASE_URL / REDIS_URL when set, else the same as above, else Docker
export { answers, freePort } from './services/ports.mjs';
export { findOrStartPostgres, startPostgres } from './services/postgres.mjs';
export { findPostgresBin } from './services/postgres-bin.mjs';
export { serverUsing } from './services/postgres-data.mjs';
export {
  findRedisServer,
  findOrStartRedis,
  installRedisServer,
  startRedis,
  REDIS_HELP,
} from './services/redis.mjs';
export { dataFolders, projectRoot, temporaryFolder } from './services/folders.mjs';
export { endServersOnSignals } from './services/server-process.mjs';
