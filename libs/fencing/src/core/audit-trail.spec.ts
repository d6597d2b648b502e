import { beforeEach, describe, expect, it } from '@jest/globals';
import { Gate } from '../../../../test/support/gate.js';
import { ManualClock } from '../testing/manual-clock.js';
import type { AuditNote } from './audit.js';
import { AuditTrail } from './audit-trail.js';
import { FencingConfigError, StoreUnavailableError } from './errors.js';
import { FencingEmitter, type FencingEvent } from './events.js';

const WHERE = '@FencedWrite on Rows.save';

describe('the audit trail', () => {
  let clock: ManualClock;
  let events: FencingEmitter;
  let recorded: (readonly AuditNote[])[];
  let dropped: { count: number; cause: string }[];
  let record: () => Promise<void>;
  let trail: AuditTrail;

  beforeEach(() => {
    clock = new ManualClock();
    events = new FencingEmitter('default');
    recorded = [];
    dropped = [];
    record = async () => undefined;
    const keep = async (notes: readonly AuditNote[]) => {
      recorded.push(notes);
      await record();
    };
    events.listen(
      (event) => dropped.push(event as FencingEvent & { name: 'audit.dropped' }),
      ['audit.dropped'],
    );
    trail = new AuditTrail(keep, events, clock);
  });

  const stale = (key: string) =>
    events.emit('write.stale', { key, owner: 'late', generation: 5, current: 6, where: WHERE });
  const keys = () => recorded.map((notes) => notes.map(({ key }) => key));
  const down = async () => {
    throw new StoreUnavailableError('database', 'gone.');
  };

  it('keeps what a stale write was refused for, and a write of unknown outcome', async () => {
    stale('a');
    await clock.advance(0);
    events.emit('write.unknown', { key: 'b', owner: 'cut', generation: 7, tookMs: 1, where: WHERE });
    await clock.advance(0);
    expect(recorded).toEqual([
      [{ kind: 'stale', key: 'a', owner: 'late', generation: 5, current: 6, where: WHERE, ageMs: 0 }],
      [{ kind: 'unknown', key: 'b', owner: 'cut', generation: 7, where: WHERE, ageMs: 0 }],
    ]);
  });

  it('has one statement under way at a time; what comes meanwhile goes together in the next', async () => {
    const gate = new Gate();
    record = () => gate.wait();
    for (const key of ['a', 'b', 'c']) stale(key);
    await clock.advance(0);
    expect(keys()).toEqual([['a']]);
    gate.open();
    await clock.advance(0);
    expect(keys()).toEqual([['a'], ['b', 'c']]);
  });

  it('tries again while the database is down, and tells how old the write is then', async () => {
    record = down;
    stale('a');
    await clock.advance(5_000);
    expect(recorded.length).toBeGreaterThan(2);
    record = async () => undefined;
    await clock.advance(2_000);
    expect(recorded.at(-1)).toEqual([expect.objectContaining({ key: 'a' })]);
    expect(recorded.at(-1)![0]!.ageMs).toBeGreaterThan(3_000);
    const tries = recorded.length;
    await clock.advance(60_000);
    expect(recorded).toHaveLength(tries);
    expect(dropped).toEqual([]);
  });

  it('drops and counts what the database does not take within half a minute', async () => {
    record = down;
    stale('a');
    await clock.advance(40_000);
    expect(dropped).toMatchObject([{ count: 1, cause: 'unavailable' }]);
    record = async () => undefined;
    stale('b');
    await clock.advance(0);
    expect(keys().at(-1)).toEqual(['b']);
  });

  it('drops at once what it may not write, and goes on with the next', async () => {
    record = async () => {
      throw new FencingConfigError('no privilege');
    };
    stale('a');
    await clock.advance(0);
    expect(recorded).toHaveLength(1);
    expect(dropped).toMatchObject([{ count: 1, cause: 'unavailable' }]);
  });

  it('gives up a statement without an answer after half a minute; then the next has its turn', async () => {
    record = () => new Promise(() => undefined);
    stale('a');
    await clock.advance(1_000);
    record = async () => undefined;
    stale('b');
    await clock.advance(28_000);
    expect(keys()).toEqual([['a']]);
    await clock.advance(2_000);
    expect(keys()).toEqual([['a'], ['b']]);
    expect(dropped).toMatchObject([{ count: 1, cause: 'unavailable' }]);
  });

  it('I11: keeps a hundred that wait, and drops and counts the rest', async () => {
    const gate = new Gate();
    record = () => gate.wait();
    for (let i = 0; i <= 150; i++) stale(`key ${i}`);
    gate.open();
    await clock.advance(0);
    expect(keys().map(({ length }) => length)).toEqual([1, 100]);
    expect(dropped.reduce((sum, { count }) => sum + count, 0)).toBe(50);
    expect(dropped[0]).toMatchObject({ cause: 'too many' });
  });

  it('I11: writes 600 rows a minute at most', async () => {
    for (let i = 0; i < 20; i++) {
      for (let j = 0; j < 50; j++) stale(`key ${i} ${j}`);
      await clock.advance(100);
    }
    expect(keys().flat()).toHaveLength(600);
    await clock.advance(60_000);
    stale('the next minute');
    await clock.advance(0);
    expect(keys().flat()).toHaveLength(601);
  });

  it('waits for what is under way when the application stops, for a second at the most, and counts the rest', async () => {
    const gate = new Gate();
    record = () => gate.wait();
    stale('a');
    stale('b');
    let stopped = false;
    void trail.stop().then(() => (stopped = true));
    await clock.advance(900);
    expect(stopped).toBe(false);
    await clock.advance(100);
    expect(stopped).toBe(true);
    expect(dropped).toMatchObject([{ count: 1, cause: 'unavailable' }]);
    stale('after the end');
    gate.open();
    await clock.advance(0);
    expect(keys()).toEqual([['a']]);
  });
});
