// The scenarios and the rows that each of them answers. Only names: nothing here needs the peers to be installed.

/** @type {Record<string, readonly string[]>} */
export const scenarios = {
  cycles: [
    'uncontended-vs-floor',
    'uncontended-vs-peer',
    'uncontended-cpu',
    'distinct-10-vs-floor',
    'distinct-10-vs-peer',
    'distinct-100-vs-floor',
    'distinct-100-vs-peer',
    'distinct-100-cpu',
    'distinct-1000-vs-floor',
    'distinct-1000-vs-peer',
  ],
  contended: [
    'handover-vs-default',
    'handover-vs-tuned',
    'requests-per-section',
    'four-processes-vs-default',
    'four-processes-vs-tuned',
    'four-processes-fairness',
    'longest-wait',
  ],
  stores: [
    'contended-quorum',
    'contended-postgres',
    'cycle-quorum',
    'cycle-postgres',
    'cycle-postgres-activated',
  ],
  held: ['held-10000-cpu', 'held-10000-requests', 'held-10000-loop', 'held-10000-lost'],
  silence: ['signal-after-stall', 'state-after-block'],
  transactions: [
    'fenced-tx-distinct',
    'fenced-tx-shared',
    'fenced-tx-sequential',
    'row-guard-update',
    'trigger-update',
    'fenced-tx-sequential-no-fsync',
    'fenced-tx-distinct-no-fsync',
    'fenced-tx-shared-no-fsync',
    'trigger-per-row',
  ],
  http: ['http-redis', 'http-postgres', 'http-throughput'],
  keys: ['redis-keys', 'redis-memory', 'heap', 'cost-by-keys'],
};
