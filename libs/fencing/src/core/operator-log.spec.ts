import { beforeEach, describe, expect, it } from '@jest/globals';
import { ManualClock } from '../testing/manual-clock.js';
import { StoreUnavailableError } from './errors.js';
import { FencingEmitter, tellUnavailable } from './events.js';
import { keyLabel } from './key-label.js';
import { OperatorLog } from './operator-log.js';

const KEY = 'customer:Erika Mustermann';
const grant = (generation = 5) => ({ key: KEY, owner: `owner-${generation}`, generation });

describe('the log for operators', () => {
  let clock: ManualClock;
  let events: FencingEmitter;
  let lines: string[];
  let log: OperatorLog;

  beforeEach(() => {
    clock = new ManualClock();
    events = new FencingEmitter('default');
    lines = [];
    log = start();
  });
  const start = (logKeys = false) =>
    new OperatorLog(
      events,
      clock,
      {
        warn: (line) => lines.push(`warn ${line}`),
        error: (line) => lines.push(`error ${line}`),
      },
      logKeys,
    );

  const stale = (generation = 5) =>
    events.emit('write.stale', { ...grant(generation), current: 900, where: '@FencedWrite on Rows.save' });
  const lost = (reason: 'expired' | 'superseded' | 'stale' | 'unsettled' | 'drained') =>
    events.emit('lease.lost', { ...grant(), reason, heldMs: 70.4, acceptedWrites: 2, uncertainMs: 0 });
  const fail = (cause?: unknown, store: 'lease store' | 'database' = 'lease store') =>
    tellUnavailable(events, new StoreUnavailableError(store, 'no answer.', { key: KEY, cause }));
  const acquired = (activated = true) =>
    events.emit('lease.acquired', { ...grant(), ttlMs: 3_000, waitedMs: 0, activated });

  it('has one line for a lost lease: its grant, why, and how many writes had been accepted', () => {
    lost('expired');
    expect(lines).toEqual([
      `warn Lease ${keyLabel(KEY)}, generation 5, owner owner-5 was lost (expired) after 70 ms, 2 writes accepted; later ones are refused.`,
    ]);
  });

  it.each(['stale', 'unsettled', 'drained'] as const)(
    'has none for a loss that another line tells: %s',
    (reason) => {
      lost(reason);
      expect(lines).toEqual([]);
    },
  );

  it('has one line for a stale write: the method, the grant, and what the fence names', () => {
    stale();
    expect(lines).toEqual([
      `warn A write was refused as stale (@FencedWrite on Rows.save): lease ${keyLabel(KEY)}, generation 5, owner owner-5; the fence names generation 900.`,
    ]);
  });

  it('has an error for a write of unknown outcome', () => {
    events.emit('write.unknown', { ...grant(), tookMs: 3, where: '@FencedWrite on Rows.save' });
    expect(lines).toEqual([
      expect.stringMatching(/^error The outcome of a write is unknown.*Rows\.save.*generation 5/),
    ]);
  });

  it('has one line for a lease store that was behind, and for rows of the audit that were dropped', () => {
    events.emit('store.healed', { ...grant(), behind: 12 });
    events.emit('audit.dropped', { count: 3, cause: 'unavailable' });
    expect(lines).toEqual([
      expect.stringMatching(/^warn The lease store was 12 generations behind the database/),
      'warn 3 rows of the audit were dropped (unavailable).',
    ]);
  });

  it('I12: names a key by its hash, and in full only where that is allowed', () => {
    stale();
    expect(lines.join()).not.toContain('Mustermann');
    log.close();
    start(true);
    stale();
    expect(lines.at(-1)).toContain(JSON.stringify(KEY));
  });

  it('says the first five of a kind, then one summary a minute while it goes on, then lines in full again', async () => {
    for (let i = 1; i <= 1_000; i++) stale(i);
    expect(lines).toHaveLength(5);
    lost('expired'); // another kind has lines of its own
    expect(lines).toHaveLength(6);
    await clock.advance(60_000);
    expect(lines.slice(6)).toEqual(['warn write.stale: 995 more in the last 60 s.']);
    for (let i = 1; i <= 10; i++) stale(i);
    expect(lines).toHaveLength(7);
    await clock.advance(60_000);
    expect(lines.slice(7)).toEqual(['warn write.stale: 10 more in the last 60 s.']);
    await clock.advance(60_000); // a quiet minute
    stale();
    expect(lines).toHaveLength(9);
    expect(lines[8]).toContain('was refused as stale');
  });

  it('says at its end what it still owes, and then nothing', async () => {
    for (let i = 1; i <= 7; i++) stale(i);
    await clock.advance(1_000);
    log.close();
    expect(lines.slice(5)).toEqual(['warn write.stale: 2 more in the last 1 s.']);
    expect(clock.armed).toBe(0);
    stale();
    fail();
    expect(lines).toHaveLength(6);
  });

  describe('in an outage', () => {
    it('says it once when it begins, once a minute, and when it is over, however many requests fail', async () => {
      for (let i = 0; i < 500; i++) fail(Object.assign(new Error('connect'), { code: 'ECONNREFUSED' }));
      expect(lines).toEqual([
        expect.stringMatching(/^error The lease store is unavailable \(ECONNREFUSED\)/),
      ]);
      await clock.advance(60_000);
      expect(lines.slice(1)).toEqual([
        'error The lease store is unavailable since 60 s; 500 requests have failed.',
      ]);
      acquired();
      await clock.advance(5_000);
      expect(lines.slice(2)).toEqual([
        'warn The lease store answers again, after 60 s; 500 requests had failed.',
      ]);
      expect(clock.armed).toBe(0);
      await clock.advance(120_000);
      expect(lines).toHaveLength(3);
    });

    it('is one outage while it comes and goes', async () => {
      for (let i = 0; i < 10; i++) {
        fail();
        acquired();
        await clock.advance(1_000);
      }
      expect(lines).toHaveLength(1);
      await clock.advance(5_000);
      expect(lines.slice(1)).toEqual([expect.stringContaining('10 requests had failed')]);
    });

    it('tells the lease store from the database: what one answers does not end an outage of the other', async () => {
      fail(undefined, 'database');
      acquired(false); // of the lease store alone
      await clock.advance(6_000);
      expect(lines).toHaveLength(1);
      events.emit('write.accepted', { ...grant(), keys: 1, tookMs: 1 });
      await clock.advance(6_000);
      expect(lines[1]).toMatch(/^warn The database answers again/);
    });

    it('listens for answers only while it lasts: before and after, nothing is computed for them', async () => {
      const hot = ['lease.acquired', 'lease.renewed', 'lease.released', 'write.accepted'] as const;
      const heard = () => hot.filter((name) => events.hears(name));
      expect(heard()).toEqual([]);
      fail();
      expect(heard()).toEqual(['lease.acquired', 'lease.renewed', 'write.accepted']);
      acquired();
      await clock.advance(5_000);
      expect(heard()).toEqual([]);
    });

    it.each([
      [Object.assign(new Error(`of ${KEY}`), { code: '57P03' }), '57P03'],
      [Object.assign(new Error(`OOM command not allowed for ${KEY}`), { name: 'ReplyError' }), 'OOM'],
      [new Error(`of ${KEY}`), 'Error'],
      [Object.assign(new Error('x'), { code: KEY }), 'Error'],
      [KEY, 'Error'],
      [undefined, 'no answer'],
    ])('I12: names a cause by its code, never by its message (%#)', (cause, code) => {
      fail(cause);
      expect(lines[0]).toContain(`(${code})`);
      expect(lines[0]).not.toContain('Mustermann');
    });
  });
});
