import type { Examination, Finding } from '../core/diagnosis.js';

/** What the doctor needs of a connection. */
interface Asking {
  call(command: string, ...args: string[]): Promise<unknown>;
}

/** What a Redis says of itself: settings that matter to leases. What it does not let us read is left out. */
export async function diagnoseRedis(client: Asking, about = 'redis'): Promise<Examination> {
  const info = new Map<string, string>();
  for (const section of ['server', 'replication', 'persistence', 'memory', 'clients'])
    for (const [, name, value] of String(await client.call('INFO', section).catch(() => '')).matchAll(
      /^(\w+):(.*?)\r?$/gm,
    ))
      info.set(name!, value!);
  const config = async (name: string) => {
    const answer = await client.call('CONFIG', 'GET', name).catch(() => undefined);
    return Array.isArray(answer) ? (answer[1] as string | undefined) : undefined;
  };
  const names = ['save', 'appendfsync', 'maxmemory-policy', 'timeout'] as const;
  const settings: Partial<Record<(typeof names)[number], string>> = {};
  for (const name of names) settings[name] = await config(name);

  const facts: Record<string, string | number | boolean> = {};
  const tell = (name: string, value: string | undefined) => {
    if (value !== undefined) facts[`${about}.${name}`] = value;
  };
  tell('version', info.get('redis_version'));
  tell('role', info.get('role'));
  tell('replicas', info.get('connected_slaves'));
  tell('evictionPolicy', settings['maxmemory-policy']);
  tell('maxmemory', info.get('maxmemory'));
  tell('appendonly', info.get('aof_enabled') && (info.get('aof_enabled') === '1' ? 'yes' : 'no'));
  tell('save', settings.save);

  return {
    facts,
    findings: [
      ...roleOf(info),
      ...persistenceOf(info, settings.save),
      ...memoryOf(info),
      ...idleOf(settings.timeout),
    ].map((finding) => ({ about, ...finding })),
    clockAheadMs: await clockAheadMs(client),
  };
}

type Found = Omit<Finding, 'about'>[];

function roleOf(info: ReadonlyMap<string, string>): Found {
  if (info.get('role') !== 'slave') return [];
  return [
    {
      severity: 'error',
      problem: 'This Redis is a replica.',
      consequence: 'It refuses to write, so every lease is refused as unavailable.',
      fix: 'Connect to the primary; where it may change, through Sentinel: new Redis({ sentinels, name }).',
    },
  ];
}

function persistenceOf(info: ReadonlyMap<string, string>, save: string | undefined): Found {
  const log = info.get('aof_enabled');
  if (log === undefined || log === '1' || save === undefined) return [];
  const forgets = save === '';
  return [
    {
      severity: 'note',
      problem: forgets
        ? 'This Redis keeps nothing on disk (appendonly no, no save points).'
        : `This Redis keeps dumps only (appendonly no, save "${save}").`,
      consequence: forgets
        ? 'A restart loses every running lease: their methods are aborted and their late writes refused. Generations go on by the clock and the fence.'
        : 'A restart goes back to the last dump: newer leases are lost, ended ones may be back until their ttl is over. Late writes are refused all the same.',
      fix: 'If running leases should survive a restart: appendonly yes (appendfsync everysec loses up to a second of them).',
    },
  ];
}

function memoryOf(info: ReadonlyMap<string, string>): Found {
  const [used, most] = [Number(info.get('used_memory')), Number(info.get('maxmemory'))];
  if (!(most > 0) || !(used > most * 0.9)) return [];
  return [
    {
      severity: 'warning',
      problem: `Memory is ${Math.round((used / most) * 100)} % full (maxmemory ${most}).`,
      consequence: 'When it is full, new leases are refused as unavailable, or running ones are evicted.',
      fix: 'Raise maxmemory, or give leases a Redis of their own: they need a few megabytes.',
    },
  ];
}

function idleOf(timeout: string | undefined): Found {
  if (timeout === undefined || timeout === '0') return [];
  return [
    {
      severity: 'note',
      problem: `Redis closes connections that are idle for ${timeout} s (timeout).`,
      consequence: 'The next lease after a pause waits for a new connection.',
      fix: 'timeout 0, with tcp-keepalive 300 against dead clients.',
    },
  ];
}

async function clockAheadMs(client: Asking): Promise<number | undefined> {
  const before = Date.now();
  const answer = await client.call('TIME').catch(() => undefined);
  if (!Array.isArray(answer)) return undefined;
  const theirs = Number(answer[0]) * 1_000 + Number(answer[1]) / 1_000;
  return theirs - (before + Date.now()) / 2;
}
