import type { FencingEvent, FencingEventFacts, FencingEventName } from '../core/events.js';
import { BoardLog, KEPT } from './board-log.js';
import { readViewRequest, viewOf } from './board-view.js';

describe('what the board remembers', () => {
  const now = Date.now();
  const tell = <Name extends FencingEventName>(
    log: BoardLog,
    name: Name,
    facts: FencingEventFacts[Name],
    at = now,
  ) => log.hear({ name, instance: 'default', at: new Date(at), ...facts } as unknown as FencingEvent);
  const grant = (n: number, key = 'key') => ({ key, owner: `owner-${n}`, generation: n });
  const acquire = (log: BoardLog, n: number, key = 'key', at = now) =>
    tell(log, 'lease.acquired', { ...grant(n, key), ttlMs: 1_000, waitedMs: 0, activated: true }, at);
  const release = (log: BoardLog, n: number, key = 'key', at = now) =>
    tell(log, 'lease.released', { ...grant(n, key), heldMs: 1, acceptedWrites: 0, uncertainMs: 0 }, at);

  it('takes events that came as JSON, over a message bus', () => {
    const log = new BoardLog();
    const event = {
      name: 'lease.acquired',
      instance: 'default',
      at: new Date(now),
      ...grant(1),
      ttlMs: 1_000,
    };
    log.hear(JSON.parse(JSON.stringify({ ...event, waitedMs: 0, activated: true })));
    expect([...log.live.values()]).toMatchObject([{ generation: 1, from: now, validUntil: now + 1_000 }]);
  });

  it('is bounded in keys, grants, signs, refusals and waiters, and forgets the oldest', () => {
    const log = new BoardLog();
    for (let n = 0; n < KEPT.keys + 10; n++) {
      acquire(log, n, `key-${n}`);
      release(log, n, `key-${n}`);
    }
    expect([log.history('key-9'), log.history('key-10')]).toEqual([undefined, expect.anything()]);
    for (let n = 0; n < KEPT.tracks + 5; n++) {
      acquire(log, n);
      for (let i = 0; i < KEPT.marks + KEPT.refusals; i++)
        tell(log, 'write.refused', { ...grant(n), code: `CODE_${i}`, where: 'the test' });
      for (let i = 0; i < KEPT.doubts + 5; i++) {
        tell(log, 'lease.uncertain', { ...grant(n), remainingMs: 1 });
        tell(log, 'lease.renewed', { ...grant(n), marginMs: 1, uncertainMs: 1 });
      }
      log.revoked('key', { at: n });
    }
    for (let i = 0; i < KEPT.waiters + 5; i++) tell(log, 'lease.contended', { key: 'key', waitMs: 1 });
    const { tracks, waiters, revoked } = log.history('key')!;
    expect(tracks.map(({ generation }) => generation)).toEqual(
      Array.from({ length: KEPT.tracks }, (_, i) => i + 5),
    );
    expect(tracks.map(({ marks }) => marks.length)).toEqual(tracks.map(() => KEPT.marks));
    expect(tracks.map(({ doubts }) => doubts.length)).toEqual(tracks.map(() => KEPT.doubts));
    expect([waiters.length, revoked.length]).toEqual([KEPT.waiters, KEPT.revoked]);
    expect(log.refusals.length).toBe(KEPT.refusals);
    expect(log.refusals.at(-1)!.code).toBe(`CODE_${KEPT.marks + KEPT.refusals - 1}`);
  });

  it('is bounded in leases that are held', () => {
    const log = new BoardLog();
    for (let n = 0; n < KEPT.live + 10; n++) acquire(log, n, `key-${n}`);
    expect(log.live.size).toBe(KEPT.live);
  });

  it('counts a lease that was lost as lost, also when its call ends later', () => {
    const log = new BoardLog();
    acquire(log, 1);
    tell(
      log,
      'lease.lost',
      { ...grant(1), reason: 'stale', heldMs: 5, acceptedWrites: 0, uncertainMs: 0 },
      now + 5,
    );
    release(log, 1, 'key', now + 9);
    expect(log.history('key')!.tracks).toMatchObject([{ end: 'stale', to: now + 5 }]);
    expect([log.totals.lost, log.live.size]).toEqual([1, 0]);
  });

  it('tells how long a lease was in doubt', () => {
    const log = new BoardLog();
    const view = () => viewOf(log, 'default', readViewRequest({ show: 'doubtful' }), undefined, now + 500);
    acquire(log, 1);
    expect(view().found).toBe(0);
    tell(log, 'lease.uncertain', { ...grant(1), remainingMs: 700 }, now + 300);
    expect(view().leases).toMatchObject([{ doubtful: true, remainingMs: 500 }]);
    tell(log, 'lease.renewed', { ...grant(1), marginMs: 600, uncertainMs: 100 }, now + 400);
    expect(log.history('key')!.tracks[0]).toMatchObject({ doubts: [[now + 300, now + 400]], renewals: 1 });
    expect([view().found, log.live.get('owner-1')!.validUntil]).toEqual([0, now + 1_400]);
  });

  it('counts who waits until it has its turn, gives up or its wait is over', () => {
    const log = new BoardLog();
    acquire(log, 1);
    for (const waitMs of [100, 5_000, 5_000]) tell(log, 'lease.contended', { key: 'key', waitMs });
    expect([log.waiting('key', now + 50), log.waiting('key', now + 200)]).toEqual([3, 2]);
    tell(log, 'lease.busy', { key: 'key', waitedMs: 100 });
    expect(log.waiting('key', now + 200)).toBe(2);
    tell(log, 'lease.acquired', { ...grant(2), ttlMs: 1_000, waitedMs: 300, activated: true });
    expect(log.waiting('key', now + 200)).toBe(1);
  });

  it('lets go of leases of a process whose events do not come any more, after two ttls', () => {
    const log = new BoardLog();
    acquire(log, 1);
    const found = (at: number) => viewOf(log, 'default', readViewRequest({}), undefined, at).totals.live;
    expect([found(now + 1_900), found(now + 2_100)]).toEqual([1, 0]);
  });

  it('names the next grant as the cause where a write was refused before the database was asked', () => {
    const log = new BoardLog();
    acquire(log, 10);
    acquire(log, 30);
    acquire(log, 20);
    tell(log, 'write.refused', { ...grant(10), code: 'LEASE_LOST', where: 'the test' });
    tell(log, 'write.stale', { ...grant(10), current: 30, where: 'the test' });
    tell(log, 'write.stale', { ...grant(10), current: 40, where: 'the test' });
    const { refusals } = viewOf(log, 'default', readViewRequest({}), undefined);
    expect(refusals.map(({ cause }) => cause)).toEqual([
      { generation: 40 },
      { generation: 30, owner: 'owner-30', at: now },
      { generation: 20, owner: 'owner-20', at: now },
    ]);
  });
});
