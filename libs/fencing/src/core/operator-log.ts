import type { Clock } from './clock.js';
import type { FencingEmitter, FencingEvent, FencingEventName } from './events.js';
import { keyLabel } from './key-label.js';
import { LineBudget } from './line-budget.js';
import type { FencingLogger } from './logger.js';
import { OutageLog } from './outage-log.js';

const LOGGED = [
  'lease.lost',
  'write.stale',
  'write.unknown',
  'store.healed',
  'store.unavailable',
  'audit.dropped',
] as const satisfies FencingEventName[];

type Logged = Extract<FencingEvent, { readonly name: (typeof LOGGED)[number] }>;

/** Losses that another line tells: of the write that was stale or unknown, of the application that stopped. */
const TOLD_ELSEWHERE: readonly string[] = ['stale', 'unsettled', 'drained'];

/**
 * One line for each thing that an operator must know. Nothing that a caller passed in is logged; keys are, in full, where
 * `logKeys` allows it. A storm is told by its first lines and a summary a minute, an outage by its beginning and its end.
 */
export class OperatorLog {
  private readonly budgets = new Map<FencingEventName, LineBudget>();
  private readonly outages: Readonly<Record<'lease store' | 'database', OutageLog>>;
  private readonly unlisten: () => void;

  constructor(
    events: FencingEmitter,
    private readonly clock: Clock,
    private readonly logger: FencingLogger,
    private readonly logKeys: boolean,
  ) {
    this.outages = {
      'lease store': new OutageLog('lease store', events, clock, logger),
      database: new OutageLog('database', events, clock, logger),
    };
    this.unlisten = events.listen((event) => this.tell(event as Logged), LOGGED);
  }

  /** How a key is named in a line. */
  name(key: string): string {
    return this.logKeys ? JSON.stringify(key) : keyLabel(key);
  }

  /** Says what it still owes. */
  close(): void {
    this.unlisten();
    for (const budget of this.budgets.values()) budget.close();
    for (const outage of Object.values(this.outages)) outage.close();
  }

  private tell(event: Logged): void {
    switch (event.name) {
      case 'store.unavailable':
        return this.outages[event.store].failed(event.cause);
      case 'lease.lost':
        if (TOLD_ELSEWHERE.includes(event.reason)) return;
        return this.say(
          event.name,
          'warn',
          `${this.lease(event)} was lost (${event.reason}) after ${Math.round(event.heldMs)} ms, ` +
            `${event.acceptedWrites} writes accepted; later ones are refused.`,
        );
      case 'write.stale':
        return this.say(
          event.name,
          'warn',
          `A write was refused as stale (${event.where}): ${this.lease(event)}; the fence names generation ${event.current ?? 'none'}.`,
        );
      case 'write.unknown':
        return this.say(
          event.name,
          'error',
          `The outcome of a write is unknown, its COMMIT had no answer (${event.where}): ${this.lease(event)}.`,
        );
      case 'store.healed':
        return this.say(
          event.name,
          'warn',
          `The lease store was ${event.behind} generations behind the database (it lost data, or an old copy took over) and has caught up: ${this.lease(event)}.`,
        );
      case 'audit.dropped':
        return this.say(
          event.name,
          'warn',
          `${event.count} rows of the audit were dropped (${event.cause}).`,
        );
    }
  }

  private lease({ key, generation, owner }: { key: string; generation: number; owner: string }): string {
    return `lease ${this.name(key)}, generation ${generation}, owner ${owner}`;
  }

  private say(name: FencingEventName, level: 'warn' | 'error', line: string): void {
    let budget = this.budgets.get(name);
    if (!budget)
      this.budgets.set(
        name,
        (budget = new LineBudget(this.clock, (count, seconds) =>
          this.logger[level](`${name}: ${count} more in the last ${seconds} s.`),
        )),
      );
    if (budget.spend()) this.logger[level](line.charAt(0).toUpperCase() + line.slice(1));
  }
}
