import { setTimeout as sleep } from 'node:timers/promises';
import { asAdmin, type Fault, FAULTS, type Stage } from './faults.js';
import { now } from './history.js';
import { KEYS } from './settings.js';

/** How often two faults are at work at the same time. */
const PAIRS = 0.4;
/** How long a round waits until every key was written again; the checker judges it. */
const RECOVERY_MS = 30_000;

/**
 * Does one thing after the other to the campaign, as its seed says: all kinds of fault in a random order, then all again. After
 * each it waits until every key has been written again, so that a time of recovery belongs to its fault.
 */
export class Nemesis {
  private bag: Fault[] = [];
  private count = 0;

  constructor(private readonly stage: Stage) {}

  /** @param goOn asked before each round */
  async run(goOn: () => boolean): Promise<void> {
    while (goOn()) {
      const first = this.draw();
      const second =
        first.group !== 'none' && this.stage.random.chance(PAIRS)
          ? this.draw(({ group }) => group !== first.group && group !== 'none')
          : undefined;
      const afterwards = await Promise.all(
        [first, second].filter((one) => one !== undefined).map((fault) => this.inflict(fault, !second)),
      );
      await this.recovered();
      for (const after of afterwards) await after?.();
      this.stage.crew.forget();
      await sleep(this.stage.random.between(0, 200));
    }
  }

  private draw(fits: (fault: Fault) => boolean = () => true): Fault {
    let index = this.bag.findIndex(fits);
    if (index < 0) {
      this.bag = [...this.bag, ...this.stage.random.shuffle(FAULTS)];
      index = this.bag.findIndex(fits);
    }
    return this.bag.splice(index, 1)[0]!;
  }

  private async inflict(fault: Fault, alone: boolean): Promise<(() => Promise<unknown>) | undefined> {
    const facts = { id: ++this.count, kind: fault.kind, alone, loses: fault.loses ?? false };
    this.stage.history.note({ e: 'fault', phase: 'begin', ...facts });
    // One that cannot be inflicted, since the other fault of the round is in its way, is over.
    const done = await fault
      .run(this.stage)
      .catch((error: unknown) => ({ target: `not inflicted: ${String(error)}`, after: undefined }));
    this.stage.history.note({ e: 'fault', phase: 'end', ...facts, target: done.target });
    return done.after;
  }

  private async recovered(): Promise<void> {
    const end = now() + RECOVERY_MS;
    let before: Map<string, number> | undefined;
    while (now() < end) {
      const cells = await asAdmin<{ key: string; seq: number }>(
        this.stage.postgres.url,
        'SELECT key, seq FROM campaign_cell',
      ).catch(() => []);
      before ??= cells.length > 0 ? new Map(cells.map(({ key, seq }) => [key, seq])) : undefined;
      if (before && cells.filter(({ key, seq }) => seq > before!.get(key)!).length === KEYS.length) return;
      await sleep(60);
    }
  }
}
