// Mechanisms of leases in a Redis Cluster, each taken out. See scripts/mutants.mjs.

const cluster = 'libs/fencing/src/redis/cluster/redis-cluster.ts';
const sender = 'libs/fencing/src/redis/cluster/cluster-step-sender.ts';
const hints = 'libs/fencing/src/redis/cluster/sharded-hints.ts';
const checks = 'libs/fencing/src/redis/cluster/cluster-checks.ts';
const renewals = 'libs/fencing/src/core/renewals.ts';

/** @param {string} title */
const store = (title) => ({ test: 'redis-cluster-store', title });
/** @param {string} title */
const heard = (title) => ({ test: 'redis-cluster-hints', title });
/** @param {string} title */
const faults = (title) => ({ test: 'faults-cluster', title });

/** @type {import('../../scripts/mutants.mjs').Mutant[]} */
export default [
  {
    invariant: 'a request names keys of one slot (cluster)',
    file: cluster,
    from: 'return this.senders[bucket]!;',
    to: 'return this.senders[0]!;',
    ...store('that are made together'),
  },
  {
    invariant: 'the keys of one lease share a slot, or the client is refused (cluster)',
    file: cluster,
    from: 'if (hashTag(channel) !== undefined) return;',
    to: 'return;',
    ...store('would scatter'),
  },
  {
    invariant: 'a lease is read at its master (cluster)',
    file: cluster,
    from: '(await this.client.eval(READ, 1, name)) as [string | null, number]',
    to: '(await Promise.all([(this.client as any).get(name), (this.client as any).pttl(name)])) as [string | null, number]',
    ...store('read at the master'),
  },
  {
    invariant: 'a master that is down is a finding, and no crash (cluster)',
    file: checks,
    from: 'findings.push(silentNode(name, error));',
    to: 'throw error;',
    ...store('tell of a node'),
  },
  {
    invariant: 'findings name their node (cluster)',
    file: checks,
    from: 'problem: `${name}: ${one.problem}`',
    to: 'problem: one.problem',
    ...store('name the node'),
  },
  {
    invariant: 'a client of one node is refused at boot (cluster)',
    file: 'libs/fencing/src/redis/check-server.ts',
    from: 'if (!needs.isCluster && /^redis_mode:cluster/m.test(info))',
    to: 'if (false as boolean)',
    ...store('refuse a client'),
  },
  {
    invariant: 'renewals of different parts of the store fail apart',
    file: renewals,
    from: 'this.store.partOf?.(lease.key) ?? 0',
    to: '0',
    test: 'core/renewals',
    title: 'of different parts',
  },
  {
    invariant: 'a dead master makes no lease of the others uncertain (cluster)',
    file: 'libs/fencing/src/redis/redis-lease-store.ts',
    from: 'return this.isCluster ? bucketOf(key) : 0;',
    to: 'return 0;',
    ...faults('a killed master'),
  },
  {
    invariant: 'leases are renewed while their slot moves (cluster)',
    file: sender,
    from: 'if (!/\\bTRYAGAIN\\b/.test(String((error as Error | undefined)?.message))) throw error;',
    to: 'if (error) throw error;',
    ...faults('a slot that moves: nobody'),
  },
  {
    invariant: 'a silent master is left for the one that took over (cluster)',
    file: cluster,
    from: "if (this.client.status === 'ready') this.client.refreshSlotsCache(() => undefined);",
    to: '',
    ...faults('a frozen master'),
  },
  {
    invariant: 'hints go by sharded pub/sub (cluster)',
    file: 'libs/fencing/src/redis/scripts.ts',
    from: `"attempt('SPUBLISH',"`,
    to: `"attempt('PUBLISH',"`,
    ...heard('ioredis 6 are heard at the master'),
  },
  {
    invariant: 'hints of a silent master are looked for anew (cluster)',
    file: hints,
    from: 'if (node.channels.has(channel)) node.end();',
    to: 'void channel;',
    ...heard('ioredis 6 are heard again after their master was frozen'),
  },
  {
    invariant: 'hints follow a slot that moved (cluster, ioredis 6)',
    file: hints,
    from: "subscriber.on('moved', end);",
    to: '',
    ...heard('ioredis 6 are heard again after the slot'),
  },
  {
    invariant: 'hints follow a slot that moved (cluster, ioredis 5)',
    file: hints,
    from: "subscriber.on('error', end);",
    to: "subscriber.on('error', () => undefined);",
    ...heard('ioredis 5 are heard again after the slot'),
  },
  {
    invariant: 'whoever may have missed a hint looks again (cluster)',
    file: hints,
    from: 'if (this.channels.get(channel)?.isLive) this.hearing.missed(channel);',
    to: '',
    ...heard('ioredis 6 are heard again after their connection'),
  },
  {
    invariant: 'hints are heard through the natMap of the client (cluster)',
    file: hints,
    from: 'mapped(master, this.client.options?.natMap)',
    to: 'mapped(master, undefined)',
    ...heard('through the natMap'),
  },
  {
    invariant: 'hints are not looked for at a demoted master',
    file: hints,
    from: `if (!serves) this.end();`,
    to: `void serves;`,
    ...heard('not looked for at a demoted master'),
  },
];
