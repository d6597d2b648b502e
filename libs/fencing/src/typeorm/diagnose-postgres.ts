import { type Examination, failedCheck, type Finding } from '../core/diagnosis.js';
import type { Query } from './audit.js';
import { checkDatabase } from './database-check.js';
import { FencingSql } from './sql.js';
import { READ_SETTINGS, READ_STATE } from './sql/diagnosis.js';

/** One session with the server. */
export interface PostgresSession {
  readonly query: Query;
  /** The process that the session was told to be, in the protocol; a pooler tells one of its own. */
  readonly processId?: number | null;
  /** How many connections the application's pool may open. */
  readonly poolSize?: number;
  /** Where the package's tables are. */
  readonly schema?: string;
}

interface State {
  readonly clockMs: string;
  readonly pid: number;
  readonly isStandby: boolean;
  readonly connections: number;
  readonly replicas: number;
}

type Found = Omit<Finding, 'about'>[];
type Settings = ReadonlyMap<string, string>;

/** What a PostgreSQL server says of itself, and whether the tables of the fence are there. */
export async function diagnosePostgres(session: PostgresSession): Promise<Examination> {
  const about = 'postgres';
  const { query, poolSize, schema } = session;
  const settings: Settings = new Map(
    (await query<{ name: string; setting: string }>(READ_SETTINGS)).map(({ name, setting }) => [
      name,
      setting,
    ]),
  );
  const before = Date.now();
  const [state] = await query<State>(READ_STATE);
  const now = (before + Date.now()) / 2;
  const installed: Finding[] = await checkDatabase(query, new FencingSql(schema)).then(
    () => [],
    (error: unknown) => [failedCheck(about, error)],
  );
  const found = [
    ...durabilityOf(settings, state!),
    ...sessionsOf(settings),
    ...connectionsOf(settings, state!, poolSize),
    ...poolerOf(session, state!),
  ].map((finding) => ({ about, ...finding }));
  const facts: Record<string, string | number | boolean> = {
    'postgres.connections': state!.connections,
    'postgres.replicas': state!.replicas,
    'postgres.isStandby': state!.isStandby,
  };
  for (const [name, setting] of settings) facts[`postgres.${name}`] = setting;
  if (poolSize !== undefined) facts['postgres.poolSize'] = poolSize;
  return { findings: [...installed, ...found], facts, clockAheadMs: Number(state!.clockMs) - now };
}

function durabilityOf(settings: Settings, { isStandby, replicas }: State): Found {
  const found: Found = [];
  const commit = settings.get('synchronous_commit');
  const standbys = settings.get('synchronous_standby_names');
  if (isStandby)
    found.push({
      severity: 'error',
      problem: 'This PostgreSQL is a standby.',
      consequence: 'It refuses to write: no lease can be activated and no write accepted.',
      fix: 'Connect to the primary (several hosts in the URL: target_session_attrs=read-write).',
    });
  if (settings.get('fsync') === 'off')
    found.push({
      severity: 'error',
      problem: 'fsync is off.',
      consequence:
        'A crash of the machine may lose anything, the fence included: what it promises rests on what was committed.',
      fix: 'fsync = on. Off is for tests only.',
    });
  if (commit === 'off')
    found.push({
      severity: 'warning',
      problem: 'synchronous_commit is off.',
      consequence:
        'A crash of the server may take back writes that were accepted. Activations wait for the disk all the same, unless activationDurability is relaxed.',
      fix: 'synchronous_commit = on, at least for the role of the application.',
    });
  if (replicas > 0 && (standbys === '' || commit === 'local'))
    found.push({
      severity: 'warning',
      problem: `${replicas} ${replicas === 1 ? 'replica is' : 'replicas are'} asynchronous (synchronous_standby_names is '${standbys}', synchronous_commit ${commit}).`,
      consequence:
        'After a failover that misses the last activation, its predecessor may write once more; accepted writes may be gone.',
      fix: "synchronous_standby_names = 'ANY 1 (…)' with synchronous_commit = on.",
    });
  return found;
}

function sessionsOf(settings: Settings): Found {
  const found: Found = [];
  if (settings.get('default_transaction_read_only') === 'on')
    found.push({
      severity: 'error',
      problem: 'default_transaction_read_only is on for this user.',
      consequence: 'No lease can be activated and no write accepted.',
      fix: 'ALTER ROLE … SET default_transaction_read_only = off.',
    });
  const isolation = settings.get('default_transaction_isolation');
  if (isolation !== undefined && isolation !== 'read committed')
    found.push({
      severity: 'warning',
      problem: `default_transaction_isolation is '${isolation}'.`,
      consequence:
        'postgresLeases refuses such sessions, and fenced writes meet serialization failures more often (retries).',
      fix: "ALTER ROLE … SET default_transaction_isolation = 'read committed'; ask for more where a write needs it.",
    });
  for (const [name, what] of [
    ['idle_session_timeout', 'closes sessions that are idle for'],
    ['statement_timeout', 'ends statements after'],
    ['transaction_timeout', 'ends transactions after'],
  ] as const) {
    const ms = settings.get(name);
    if (ms !== undefined && ms !== '0')
      found.push({
        severity: 'note',
        problem: `PostgreSQL ${what} ${ms} ms (${name}).`,
        consequence:
          name === 'idle_session_timeout'
            ? 'The pool and the connection that hears of freed keys are reconnected over and over.'
            : 'A fenced write that takes longer is rolled back and its call fails.',
        fix: `Set ${name} above what the application needs, or to 0.`,
      });
  }
  return found;
}

function connectionsOf(settings: Settings, { connections }: State, poolSize: number | undefined): Found {
  const most =
    Number(settings.get('max_connections')) - Number(settings.get('superuser_reserved_connections') ?? 0);
  const found: Found = [];
  if (connections > most * 0.8)
    found.push({
      severity: 'warning',
      problem: `${connections} of ${most} connections are in use (max_connections less the reserved ones).`,
      consequence: 'When none is left, activations and fenced writes fail as unavailable.',
      fix: 'Smaller pools, fewer processes, a pooler in session mode, or a higher max_connections.',
    });
  if (poolSize !== undefined && poolSize > most)
    found.push({
      severity: 'warning',
      problem: `The pool of one process may open ${poolSize} connections, and the server takes ${most}.`,
      consequence: 'Under load, activations and fenced writes fail as unavailable.',
      fix: `A poolSize so that all processes together stay below ${most}.`,
    });
  return found;
}

/** In transaction mode a pooler gives out another session for each transaction; which mode it is in cannot be seen from here. */
function poolerOf({ processId }: PostgresSession, { pid }: State): Found {
  if (processId === undefined || processId === null || processId === pid) return [];
  return [
    {
      severity: 'note',
      problem: 'A connection pooler (PgBouncer or the like) stands between.',
      consequence:
        'Fenced writes work in session and in transaction mode, and not in statement mode. In transaction mode LISTEN does not: with postgresLeases, waiting callers hear nothing.',
      fix: "SHOW CONFIG on its console tells pool_mode. In transaction mode: postgresLeases({ url }) past it, or { hints: 'poll' }.",
    },
  ];
}
