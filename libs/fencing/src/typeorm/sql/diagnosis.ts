/** Settings that matter to fenced writes and to leases. */
export const READ_SETTINGS = `
SELECT name, setting FROM pg_catalog.pg_settings
WHERE name IN ('server_version', 'synchronous_commit', 'synchronous_standby_names', 'fsync', 'max_connections',
  'superuser_reserved_connections', 'idle_session_timeout', 'idle_in_transaction_session_timeout', 'statement_timeout',
  'default_transaction_isolation', 'default_transaction_read_only', 'transaction_timeout')`;

/** One row: the server's wall clock in ms, its process for this session, and who is connected. */
export const READ_STATE = `
SELECT extract(epoch FROM clock_timestamp()) * 1000 AS "clockMs", pg_catalog.pg_backend_pid() AS pid,
  pg_catalog.pg_is_in_recovery() AS "isStandby",
  (SELECT count(*)::int FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend') AS connections,
  (SELECT count(*)::int FROM pg_catalog.pg_stat_replication) AS replicas`;
