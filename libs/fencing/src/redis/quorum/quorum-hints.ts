import type { Clock } from '../../core/clock.js';
import type { LeaseStore, WakeHint, Watch } from '../../core/lease-store.js';
import { majorityOf } from './quorum-poll.js';

/** A hint of too few nodes is passed on after this, ms: the others may be silent, or have lost theirs. */
const WAIT_FOR_OTHERS_MS = 10;
/** Hints of the nodes that come within this belong together, ms. */
const TOGETHER_MS = 100;

/** What is needed of a node. */
interface Telling {
  readonly store: Pick<LeaseStore, 'watch'>;
}

/** Hints about one waiter, of several nodes. */
interface Round {
  readonly began: number;
  readonly from: Set<Telling>;
  told: boolean;
  cancel: () => void;
}

/**
 * Hears the hints of all nodes. A release reaches the nodes one after the other, and whoever looks at the first hint finds the others
 * still taken: a hint is passed on once a majority has sent it, or a moment later.
 */
export function watchNodes(
  nodes: readonly Telling[],
  clock: Clock,
  key: string,
  listener: (hint: WakeHint) => void,
  since: number,
): Watch {
  const majority = majorityOf(nodes.length);
  const rounds = new Map<string | undefined, Round>();
  let stopped = false;

  const hear = (node: Telling, hint: WakeHint): void => {
    if (stopped) return;
    const now = clock.now();
    let round = rounds.get(hint.waiterId);
    // The same node again: another release.
    if (!round || round.from.has(node) || now - round.began > TOGETHER_MS) {
      round?.cancel();
      if (round && !round.told) listener(hint);
      const begun: Round = { began: now, from: new Set(), told: false, cancel: () => undefined };
      const tell = (): void => {
        if (begun.told || stopped) return;
        begun.told = true;
        listener(hint);
      };
      begun.cancel = clock.setTimer(WAIT_FOR_OTHERS_MS, tell);
      rounds.set(hint.waiterId, begun);
      round = begun;
    }
    round.from.add(node);
    // Also where the first of them was passed on alone: who looked then found too few nodes free, and would miss its turn now.
    if (round.from.size !== majority) return;
    round.told = true;
    round.cancel();
    listener(hint);
  };

  const watches = nodes.map((node) => node.store.watch(key, (hint) => hear(node, hint), since));
  return {
    live: liveOf(watches, majority),
    stop: () => {
      stopped = true;
      for (const watch of watches) watch.stop();
      for (const { cancel } of rounds.values()) cancel();
    },
  };
}

/** A release is sent to all nodes, so a majority that is heard misses none that reaches the others. */
function liveOf(watches: readonly Watch[], majority: number): Promise<void> | undefined {
  const pending = watches.flatMap(({ live }) => (live ? [live] : []));
  let missing = majority - (watches.length - pending.length);
  if (missing <= 0) return undefined;
  return new Promise((resolve) => {
    for (const live of pending)
      void live.then(() => {
        if (--missing === 0) resolve();
      });
  });
}
