import { beforeEach, describe, expect, it } from '@jest/globals';
import type { WakeHint } from '../../core/lease-store.js';
import { ManualClock } from '../../testing/manual-clock.js';
import { watchNodes } from './quorum-hints.js';

describe('hints of three nodes', () => {
  let clock: ManualClock;
  let heard: WakeHint[];
  /** What each node's store tells of. */
  let tell: ((hint: WakeHint) => void)[];
  const mine: WakeHint = { waiterId: 'w', reservedMs: 100 };

  beforeEach(() => {
    clock = new ManualClock();
    heard = [];
    tell = [];
    const nodes = [0, 1, 2].map((at) => ({
      store: {
        watch: (_key: string, listener: (hint: WakeHint) => void) => {
          tell[at] = listener;
          return { live: undefined, stop: () => undefined };
        },
      },
    }));
    watchNodes(nodes, clock, 'key', (hint) => heard.push(hint), 0);
  });

  it('are passed on once, when a majority has sent them', async () => {
    tell[0]!(mine);
    expect(heard).toEqual([]);
    tell[1]!(mine);
    tell[2]!(mine);
    await clock.advance(200);
    expect(heard).toEqual([mine]);
  });

  it('of one node are passed on a moment later, since the others may be silent', async () => {
    tell[0]!(mine);
    await clock.advance(20);
    expect(heard).toEqual([mine]);
  });

  it('of one node that was passed on alone: a majority that follows is told of as well, or the waiter would miss its turn', async () => {
    tell[0]!(mine);
    await clock.advance(20);
    tell[1]!(mine);
    expect(heard).toEqual([mine, mine]);
    tell[2]!(mine);
    await clock.advance(200);
    expect(heard).toEqual([mine, mine]);
  });
});
