// What the model checker is asked, and what it must answer: 'holds', or the name of what must be violated.
/** @typedef {{ model: string, flags: string, expect: string, says: string }} Check */

/** Two processes with one call each, and nothing goes wrong but the time: most wrong variants fail here already. */
const small = '-DCALLS=1 -DLOSSES=0 -DFAULTS=0';

/** Checked by `npm run verify:model`, in a minute or two. @type {Check[]} */
export const checks = [
  ...of('fence', [
    // the protocol
    [
      'holds',
      '-DCHECK_LEAK',
      'two processes with two calls each, one loss of the store, one message lost or late',
    ],
    ['holds', '-DCALLS=1 -DFAULTS=2', 'two messages lost or late'],
    ['holds', '-DWRITES=2 -DLOSSES=2 -DFAULTS=0', 'two writes in a call, two losses of the store'],
    ['holds', '-DPROCS=3 -DCALLS=1 -DFAULTS=0', 'three processes'],
    ['holds', '-DCALLS=1 -DSTALE_COPY -DCOUNTER_LOSS', 'a failover to an older copy; the counter lost alone'],
    ['holds', '-DSTALE_COPY -DFAULTS=0', 'a failover to an older copy, two calls each'],
    [
      'holds',
      '-DCHECK_DRIFT -DNO_EXPIRY -DLOSSES=0 -DFENCE_AT=3',
      'a late request never moves a lease in use (I6)',
    ],
    ['holds', '-DLAZY -DNO_I3', "activate: 'write' keeps I1 and I2"],
    ['I3', `-DLAZY ${small}`, "activate: 'write' does not keep I3"],
    ['holds', '-DLAZY -DREAD_IN_TX', '... unless what is written was read in its own transaction'],
    ['holds', '-DRELAXED -DNO_I2 -DFAULTS=0', "activationDurability: 'relaxed' keeps I1 and I3"],
    ['I2', `-DRELAXED ${small}`, '... and not I2'],
    // the fence
    ['I1', `-DNO_FENCE ${small} -DNO_I2 -DNO_I3`, 'no fence'],
    ['I2', `-DNO_FENCE ${small} -DNO_I1 -DNO_I3`, 'no fence'],
    ['I3', `-DNO_FENCE ${small} -DNO_I1 -DNO_I2`, 'no fence'],
    ['I1', `-DGUARD_NO_LOCK ${small} -DNO_I2 -DNO_I3`, 'a guard without a lock'],
    ['I2', `-DGUARD_NO_LOCK ${small} -DNO_I1 -DNO_I3`, 'a guard without a lock'],
    ['I3', `-DGUARD_NO_LOCK ${small} -DNO_I1 -DNO_I2`, 'a guard without a lock'],
    [
      'I1',
      `-DRELAXED -DGUARD_NOT_EQUAL ${small} -DNO_I2 -DNO_I3`,
      'a guard that is content with a lower fence',
    ],
    [
      'I3',
      `-DRELAXED -DGUARD_NOT_EQUAL ${small} -DNO_I1 -DNO_I2`,
      'a guard that is content with a lower fence',
    ],
    ['I3', `-DNO_ACTIVATION ${small}`, 'no activation: the first write raises the fence'],
    [
      'I1',
      `-DACT_NO_OWNER -DCALLS=1 -DLOSSES=1 -DFAULTS=0 -DNO_I3`,
      'an activation that does not compare the owner',
    ],
    [
      'I1',
      `-DACT_ANY -DCALLS=1 -DLOSSES=1 -DFAULTS=0 -DNO_I2 -DNO_I3`,
      'an activation that overwrites a newer one',
    ],
    ['I2', `-DACT_NO_WAIT ${small} -DNO_I1 -DNO_I3`, 'an activation that does not wait for open writes'],
    ['I3', `-DACT_NO_WAIT ${small} -DNO_I1 -DNO_I2`, 'an activation that does not wait for open writes'],
    [
      'I1',
      '-DROW_DELETED -DLOSSES=1 -DFAULTS=1 -DNO_I2 -DNO_I3',
      'a fence row that is deleted with the lease',
    ],
    // the store
    ['I5', `-DRELEASE_BY_KEY ${small}`, 'a release by key'],
    [
      'I5',
      '-DRELEASE_BY_GENERATION -DCALLS=1 -DLOSSES=1 -DFAULTS=0',
      'a release that compares the generation only',
    ],
    [
      'LEAK',
      '-DRELEASE_GENERATION_TOO -DCHECK_LEAK -DCALLS=1 -DLOSSES=0',
      'a release that compares the generation too',
    ],
    ['I5', `-DRENEW_BY_KEY ${small}`, 'a renewal by key'],
    ['I5', `-DRENEW_CREATES ${small}`, 'a renewal that takes the key again'],
    [
      'DRIFT',
      '-DBUMP_ON_RETRY -DCHECK_DRIFT -DNO_EXPIRY -DLOSSES=0 -DFENCE_AT=3',
      'a repetition that is not idempotent',
    ],
    ['I1', '-DOWNER_PER_PROCESS', 'one owner value per process'],
    ['I5', '-DOWNER_PER_PROCESS -DNO_I1 -DNO_I3', 'one owner value per process'],
    ['I1', `-DOWNER_SHARED ${small}`, 'one owner value for all'],
    // the worker
    ['I1', '-DHANDOVER_KEEPS_GRANT -DNO_I3', 'a hand-over that keeps the old generation'],
    ['I3', '-DHANDOVER_KEEPS_GRANT -DNO_I1', 'a hand-over that keeps the old generation'],
    ['I3', '-DGO_ON_AFTER_UNKNOWN -DCALLS=1 -DLOSSES=0', 'writing on after a commit without an answer'],
    ['I3', '-DHEAL_IN_THE_BODY -DLOSSES=1', 'a new generation for what was read under the old one'],
  ]),
  ...of('operations', [
    ['holds', '', 'an unknown commit is settled by a new activation'],
    ['holds', '-DRESEND', 'or by sending the same operation again'],
    ['holds', '-DSETTLE', 'or by waiting for its claim and reading the receipt; the grant goes on'],
    ['holds', '-DSETTLE -DTWO_KEYS -DNO_ALONE', '... and without a common lease'],
    ['TOLD', '-DSETTLE -DPEEK -DNO_ALONE', 'a receipt that is read without waiting'],
    ['holds', '-DTWO_KEYS -DNO_ALONE', 'the receipt alone keeps I10, without a common lease'],
    ['ALONE', '-DGO_ON', 'an unknown commit is forgotten'],
    ['I10', '-DNO_RECEIPT -DNO_ALONE', 'no receipts'],
    ['I10', '-DLOOK_FIRST -DTWO_KEYS -DNO_ALONE', 'SELECT, then INSERT'],
    ['I10', '-DLOOK_FIRST -DRESEND -DNO_ALONE', 'SELECT, then INSERT, under one grant'],
    ['I10', '-DRECEIPT_AFTER -DNO_ALONE', 'a receipt in a later transaction'],
    ['TOLD', '-DRECEIPT_BEFORE -DNO_ALONE', 'a receipt in an earlier transaction'],
  ]),
  ...of('heal', [
    [
      'holds',
      '-DDIE -DEXPIRIES=0',
      'after a total loss of the store; with a death, one more loss, one fault',
    ],
    ['holds', '-DDIE -DFAULTS=0', 'with a death, one more loss, one expiry of a lease that is in use'],
    ['holds', '-DPROCS=3 -DFAULTS=0 -DLOSSES=0', 'three processes'],
    ['holds', '-DFORMER -DFAULTS=0', 'a former owner with a pool of open transactions'],
    ['holds', '-DFENCE_AT=9 -DEXPIRIES=0 -DLOSSES=0 -DFAULTS=0 -DMOST_REJECTIONS=1', 'one round heals'],
    ['holds', '-DFENCE_AT=9 -DFAULTS=0 -DMOST_REJECTIONS=3', 'one more for each expiry and each loss'],
    ['cycle', '-DRETRY_WITHOUT_FLOOR', 'acquiring again without a floor'],
    [
      'REJECTIONS',
      '-DCOUNT_UP -DFENCE_AT=9 -DEXPIRIES=0 -DLOSSES=0 -DFAULTS=0 -DMOST_REJECTIONS=8',
      'a floor that is ignored',
    ],
    ['cycle', '-DDIE -DTTL_DROPPED -DFAULTS=0', 'a grant without a ttl'],
    ['cycle', '-DDIE -DNO_IDLE_LIMIT', 'no idle limit'],
    ['cycle', '-DFORMER -DPAST_DEADLINE -DFAULTS=0', 'new transactions after the deadline'],
  ]),
  ...of('turns', [
    ['holds', '-DDIE', 'two processes that want the key for ever'],
    ['holds', '-DDIE -DTURN=3', 'with longer turns'],
    ['holds', '-DPROCS=3 -DDIE', 'three processes; a death, a lost message, a caller that gives up'],
    ['cycle', '-DHANDOVER_FIRST', 'a hand-over that passes other processes over'],
    ['cycle', '-DNOT_KEPT', 'a key that is not kept for the one that is woken'],
    ['cycle', '-DPROCS=3 -DBY_NAME', 'a line that is not first come, first served'],
    ['cycle', '-DWAKE_UP_ONLY', 'waiting for the wake-up alone'],
    ['cycle', '-DDIE -DKEPT_FOR_EVER', 'a key that is kept for ever'],
    ['cycle', '-DDIE -DNO_TTL', 'a lease without a ttl'],
  ]),
];

/** Larger worlds, added by `npm run verify:model -- --long`. @type {Check[]} */
export const longChecks = [
  ...of('fence', [
    ['holds', '-DCALLS=3 -DFAULTS=0', 'three calls each, with hand-over between them'],
    ['holds', '-DLOSSES=2', 'two losses of the store, one message lost or late'],
    ['holds', '-DPROCS=3 -DCALLS=1', 'three processes, one message lost or late'],
    ['holds', '-DPROCS=3 -DCALLS=1 -DFAULTS=0 -DSTALE_COPY', 'three processes, a failover to an older copy'],
  ]),
  ...of('heal', [
    ['holds', '-DDIE', 'a death, an expiry, a loss and a fault'],
    ['holds', '-DPROCS=3 -DFAULTS=0', 'three processes, an expiry and a loss'],
  ]),
  ...of('turns', [['holds', '-DPROCS=3 -DDIE -DFAULTS=2 -DGIVEUPS=2', 'three processes, everything twice']]),
];

/** @param {string} model @param {[expect: string, flags: string, says: string][]} list @returns {Check[]} */
function of(model, list) {
  return list.map(([expect, flags, says]) => ({ model, expect, flags, says }));
}
