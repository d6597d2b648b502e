import { type Story, TTL } from './story.js';

/** A chapter in which something happens that must not be. */
export interface Planted {
  /** What happens. */
  readonly name: string;
  /** What the first rule must say about it. */
  readonly says: string;
  /** The rules that must notice, the one that it is planted for first; no other may. */
  readonly breaks: readonly string[];
  readonly chapter?: (story: Story) => void;
  /** The same, after everything else. */
  readonly ending?: (story: Story) => void;
}

export const PLANTED: readonly Planted[] = [
  // ---------------------------------------------------------------------------------------------------------- writes
  {
    name: 'an older generation commits after a newer one',
    says: 'an older generation wrote after a newer one',
    breaks: ['I1', 'I2', 'I3'],
    chapter(story) {
      const older = story.begin('w0', ['alpha']);
      story.wait(2 * TTL);
      const newer = story.begin('w1', ['alpha']);
      story.write(newer, { field: 'entry' });
      story.write(older, { field: 'entry' });
      story.end(newer);
      story.end(older);
    },
  },
  {
    name: 'two owners commit with one generation',
    says: 'two owners wrote with one generation',
    breaks: ['I1', 'I7'],
    chapter(story) {
      const first = story.begin('w0', ['alpha'], { grant: { generation: 5_000 } });
      story.write(first);
      story.end(first);
      const second = story.begin('w1', ['alpha'], { grant: { generation: 5_000 } });
      story.write(second);
      story.end(second);
    },
  },
  {
    name: 'a commit bears the generation of another owner',
    says: 'two owners wrote with one generation',
    breaks: ['I1'],
    chapter(story) {
      const first = story.begin('w0', ['alpha']);
      story.write(first);
      story.end(first);
      const second = story.begin('w1', ['alpha'], { grant: { generation: 50 } });
      story.write(second, { as: { generation: first.grants[0]!.generation } });
      story.end(second);
    },
  },
  {
    name: 'an older grant commits after a newer one was activated that never writes',
    says: 'after a newer one had been activated',
    breaks: ['I2'],
    chapter(story) {
      const older = story.begin('w0', ['alpha']);
      story.wait(2 * TTL);
      const newer = story.begin('w1', ['alpha']);
      story.write(older, { field: 'entry' });
      story.end(newer);
      story.end(older);
    },
  },
  {
    name: 'somebody else commits between what a write has read and its commit',
    says: 'somebody else wrote between',
    breaks: ['I3', 'I2', 'effects'],
    chapter(story) {
      const older = story.begin('w0', ['alpha']);
      story.wait(2 * TTL);
      const newer = story.begin('w1', ['alpha']);
      story.write(older);
      story.write(newer);
      story.end(older);
      story.end(newer);
    },
  },
  {
    name: 'the same, by a worker whose note of what it read is lost',
    says: 'somebody else wrote between',
    breaks: ['I3'],
    chapter(story) {
      const older = story.begin('w0', ['alpha']);
      story.wait(2 * TTL);
      const newer = story.begin('w1', ['alpha'], { notesReads: false });
      story.write(older, { field: 'entry' });
      story.write(newer, { field: 'entry' });
      story.end(older);
      story.end(newer);
    },
  },
  {
    name: 'a write that was refused is there',
    says: 'refused and is there',
    breaks: ['I4'],
    chapter(story) {
      const told = story.begin('w0', ['alpha']);
      story.write(told, { outcome: 'none', code: 'LEASE_LOST', effects: 1 });
      story.end(told, 'LEASE_LOST');
    },
  },
  {
    name: 'an unknown commit is never settled',
    says: 'nobody ever learned',
    breaks: ['I4'],
    chapter(story) {
      const told = story.begin('w0', ['alpha']);
      const options = { operation: 'op-3', amount: 2, code: 'COMMIT_UNKNOWN', effects: 1 };
      story.write(told, { ...options, outcome: 'unknown' });
      story.end(told, 'COMMIT_UNKNOWN');
    },
  },
  {
    name: 'a write of a call that has ended is accepted',
    says: 'of a call that had ended',
    breaks: ['I4'],
    chapter(story) {
      const told = story.begin('w0', ['alpha']);
      story.end(told);
      story.write(told, { late: true });
    },
  },
  {
    name: 'an operation takes effect twice',
    says: 'took effect twice',
    breaks: ['I10'],
    chapter(story) {
      for (const who of ['w0', 'w1']) {
        const told = story.begin(who, ['alpha']);
        // The first one's answer was lost.
        story.write(told, {
          operation: 'op-3',
          amount: 2,
          outcome: who === 'w0' ? 'unknown' : 'ok',
          effects: 1,
        });
        story.end(told);
      }
    },
  },
  {
    name: 'a sender is told another result than the one that was stored',
    says: 'was told something else',
    breaks: ['I10'],
    chapter(story) {
      const told = story.begin('w0', ['beta']);
      story.receipt(told, 'op-1', 5, story.cell('beta').seq + 7);
      story.end(told);
    },
  },
  {
    name: 'a sender of another payload is told that it was accepted',
    says: 'was told something else',
    breaks: ['I10'],
    chapter(story) {
      let seq = 0;
      story.tamper(({ receipts }) => (seq = receipts.find(({ id }) => id === 'op-1')!.seq!));
      const told = story.begin('w0', ['beta']);
      story.receipt(told, 'op-1', 6, seq);
      story.end(told);
    },
  },
  {
    name: 'a receipt without an effect',
    says: 'has a receipt and no effect',
    breaks: ['I10'],
    chapter: (story) =>
      story.tamper(({ receipts }) => receipts.push({ id: 'op-9', seq: 1, generation: 100, owner: 'nobody' })),
  },
  {
    name: 'an effect without a receipt',
    says: 'without its receipt',
    breaks: ['I10'],
    chapter: (story) => story.tamper(({ receipts }) => receipts.splice(0, 1)),
  },
  {
    name: 'an accepted write is lost',
    says: 'an accepted write is lost',
    breaks: ['effects'],
    chapter(story) {
      const told = story.begin('w0', ['alpha']);
      story.write(told, { effects: 0 });
      story.end(told);
    },
  },
  {
    name: 'a write is there twice',
    says: 'a write is there twice',
    breaks: ['effects'],
    chapter(story) {
      const told = story.begin('w0', ['alpha']);
      story.write(told, { effects: 2 });
      story.end(told);
    },
  },
  {
    name: 'half of a transfer is there',
    says: 'half of a write is there',
    breaks: ['effects'],
    chapter(story) {
      const told = story.begin('w0', ['alpha', 'beta']);
      story.write(told, { field: 'balance' });
      story.end(told);
      story.tamper(({ log, cells }) => {
        const { key, read } = log.pop()!;
        const cell = cells.get(key)!;
        cells.set(key, { ...cell, seq: cell.seq - 1, balance: read! });
      });
    },
  },
  {
    name: 'an update is lost although nobody else was in between',
    says: 'lost update',
    breaks: ['effects'],
    chapter(story) {
      const told = story.begin('w0', ['alpha']);
      story.tamper(({ cells }) => cells.set('alpha', { ...cells.get('alpha')!, value: 77 }));
      story.write(told);
      story.end(told);
      story.tamper(({ log }) => log.push({ ...log.pop()!, read: 77 }));
    },
  },
  {
    name: 'a write is missing in the order of the commits',
    says: 'is missing',
    breaks: ['effects'],
    chapter: (story) =>
      story.tamper(({ log }) => {
        log.splice(
          log.findIndex(({ field }) => field === 'value'),
          1,
        );
      }),
  },
  {
    name: 'a write that nobody sent',
    says: 'a write that nobody sent',
    breaks: ['effects'],
    chapter(story) {
      const told = story.begin('w0', ['alpha']);
      story.write(told, { field: 'entry' });
      story.end(told);
      story.tamper(({ log }) => log.push({ ...log.pop()!, attempt: 'nobody' }));
    },
  },
  {
    name: 'a transfer makes money',
    says: 'the balances add up',
    breaks: ['effects'],
    chapter(story) {
      const told = story.begin('w0', ['alpha']);
      story.write(told, { field: 'balance' });
      story.end(told);
    },
  },
  {
    name: 'an append that left nothing',
    says: 'an append left 0 entries',
    breaks: ['effects'],
    chapter(story) {
      const told = story.begin('w0', ['alpha']);
      story.write(told, { field: 'entry' });
      story.end(told);
      story.tamper(({ entries }) => entries.pop());
    },
  },
  {
    name: 'a key that counts more writes than there are',
    says: 'counts',
    breaks: ['effects'],
    ending: (story) =>
      story.tamper(({ cells }) => {
        const cell = cells.get('alpha')!;
        cells.set('alpha', { ...cell, seq: cell.seq + 1 });
      }),
  },
  {
    name: 'a value that no write has left',
    says: 'its last write left',
    breaks: ['effects'],
    ending: (story) => story.tamper(({ cells }) => cells.set('alpha', { ...cells.get('alpha')!, value: -1 })),
  },
  // ---------------------------------------------------------------------------------------------------------- leases
  {
    name: 'the store obeys a stranger',
    says: 'obeyed a stranger',
    breaks: ['I5'],
    chapter: (story) =>
      story.note('nemesis', {
        e: 'intruder',
        what: 'release',
        key: 'alpha',
        owner: 'stranger',
        obeyed: true,
      }),
  },
  {
    name: 'a key is granted while somebody else holds it',
    says: 'while somebody else held it',
    breaks: ['I5'],
    chapter(story) {
      const first = story.begin('w0', ['alpha']);
      const second = story.begin('w1', ['alpha']);
      story.end(first, 'LEASE_LOST');
      story.end(second);
    },
  },
  {
    name: 'a held lease is gone although nobody released it',
    says: 'nobody had released it',
    breaks: ['I5'],
    chapter(story) {
      const told = story.begin('w0', ['alpha']);
      const { key, owner } = told.grants[0]!;
      story.note('w0', { e: 'renew', sent: story.t, key, owner, answer: false });
      story.end(told, 'LEASE_LOST');
    },
  },
  {
    name: 'acquiring again gives another generation',
    says: 'again gave another answer',
    breaks: ['I6'],
    chapter(story) {
      const told = story.begin('w0', ['alpha']);
      const { key, owner, generation } = told.grants[0]!;
      story.note('w0', { e: 'acquire', sent: story.t, key, owner, floor: 0, generation: generation + 1 });
      story.end(told);
    },
  },
  {
    name: 'acquiring again is refused as busy',
    says: 'again gave another answer',
    breaks: ['I6'],
    chapter(story) {
      const told = story.begin('w0', ['alpha']);
      const { key, owner } = told.grants[0]!;
      story.note('w0', { e: 'acquire', sent: story.t, key, owner, floor: 0, remainingMs: 900 });
      story.end(told);
    },
  },
  {
    name: 'activating again is refused without a newer grant',
    says: 'again was refused',
    breaks: ['I6'],
    chapter(story) {
      const told = story.begin('w0', ['alpha']);
      const grant = told.grants[0]!;
      story.activate('w0', grant, grant.generation);
      story.end(told);
    },
  },
  {
    name: 'one owner commits with two generations',
    says: 'with two generations',
    breaks: ['I6', 'I3'],
    chapter(story) {
      const told = story.begin('w0', ['alpha']);
      story.write(told, { field: 'entry' });
      story.write(told, { field: 'entry', as: { generation: told.grants[0]!.generation + 1 } });
      story.end(told);
    },
  },
  {
    name: 'a lease is renewed after its call has ended',
    says: 'after its call had ended',
    breaks: ['I8'],
    chapter(story) {
      const told = story.begin('w0', ['alpha']);
      const { key, owner } = told.grants[0]!;
      story.end(told);
      story.wait(10);
      story.note('w0', { e: 'renew', sent: story.t, key, owner, answer: false });
    },
  },
  {
    name: 'a lease without an end',
    says: 'does not expire in time',
    breaks: ['I8'],
    chapter: (story) =>
      story.note('nemesis', { e: 'probe', key: 'alpha', owner: 'owner-x', generation: 100, remainingMs: -1 }),
  },
  {
    name: 'a dead worker still holds its key',
    says: 'a dead worker still holds',
    breaks: ['I8'],
    chapter(story) {
      story.note('w2.1', {
        e: 'acquire',
        sent: story.t,
        key: 'alpha',
        owner: 'dead',
        floor: 0,
        generation: 900,
      });
      story.note('nemesis', { e: 'exit', worker: 'w2.1', expected: true, how: 'SIGKILL' });
      story.wait(4 * TTL);
      story.note('nemesis', { e: 'probe', key: 'alpha', owner: 'dead', generation: 900, remainingMs: 400 });
    },
  },
  {
    name: 'a caller waits far beyond its time',
    says: 'a call waited',
    breaks: ['I9'],
    chapter(story) {
      story.note('w0', { e: 'call', call: 'w0-waits', kind: 'modify', keys: ['alpha'], waitMs: 3_000 });
      for (let i = 0; i < 9; i++) {
        story.wait(5_000);
        story.everyKey('w1');
      }
      story.note('w0', { e: 'end', call: 'w0-waits', outcome: 'LEASE_BUSY', late: false });
    },
  },
  {
    name: 'a worker gets nothing although there are no more faults',
    says: 'never got',
    breaks: ['I9'],
    chapter: (story) => story.note('w2', { e: 'ready' }),
  },
  {
    name: 'two owners activate one generation',
    says: 'two owners activated',
    breaks: ['I7'],
    chapter(story) {
      const told = story.begin('w0', ['alpha']);
      story.end(told);
      story.activate('w1', { ...told.grants[0]!, owner: 'another' });
    },
  },
  {
    name: 'the present holder is refused as stale',
    says: 'a holder was refused',
    breaks: ['I7'],
    chapter(story) {
      const told = story.begin('w0', ['alpha']);
      const { generation } = told.grants[0]!;
      story.write(told, { outcome: 'none', code: 'STALE_GENERATION', current: generation - 1 });
      story.end(told, 'STALE_GENERATION');
    },
  },
  {
    name: 'a key stays unwritten long after a fault',
    says: 'was not written for',
    breaks: ['recovery'],
    chapter(story) {
      story.fault('Redis frozen', { recovered: false });
      story.wait(45_000);
      story.everyKey('w0');
    },
  },
  {
    name: 'a promise is rejected and nobody catches it',
    says: 'unhandled',
    breaks: ['robustness'],
    chapter: (story) => story.note('w0', { e: 'crash', error: 'unhandled: Error: renewal failed' }),
  },
  {
    name: 'a worker ends by itself',
    says: 'a worker ended',
    breaks: ['robustness'],
    chapter: (story) => story.note('nemesis', { e: 'exit', worker: 'w0.1', expected: false, how: '1' }),
  },
  {
    name: 'an error that is neither of the package nor of the database',
    says: 'of no known kind',
    breaks: ['robustness'],
    chapter(story) {
      const told = story.begin('w0', ['alpha']);
      story.end(told, "TypeError: Cannot read properties of undefined (reading 'query')");
    },
  },
];
