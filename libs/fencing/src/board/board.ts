import { Logger } from '@nestjs/common';
import type { Subscription } from 'rxjs';
import { systemClock } from '../core/clock.js';
import { FencingError } from '../core/errors.js';
import { checkKey } from '../core/key.js';
import type { Revocation } from '../core/fence.js';
import { within } from '../core/timing.js';
import type { FencingEvents } from '../nest/fencing-events.js';
import type { FencingService } from '../nest/fencing.service.js';
import { BoardLog } from './board-log.js';
import type { FencingBoardOptions } from './board-options.js';
import { type Asked, type View, type ViewRequest, viewOf } from './board-view.js';

/** How old an answer of the stores may be before a visitor who looks at the key has it asked for again, ms. */
const FRESH_MS = 1_000;
/** A client that waits for its server to come back may hold a question for as long; the visitor is told after this, ms. */
const LONGEST_ASK_MS = 3_000;
/** Keys whose answers are kept. */
const MOST_ASKED = 50;

/** What the board knows, and what it does for its visitors. */
export class Board {
  readonly log = new BoardLog();
  private readonly asked = new Map<string, Asked>();
  private readonly asking = new Set<string>();
  private readonly subscriptions: Subscription[];

  constructor(
    readonly instance: string,
    private readonly fencing: FencingService,
    events: FencingEvents,
    private readonly options: FencingBoardOptions,
  ) {
    this.subscriptions = [events, options.events].flatMap((source) =>
      source ? [source.subscribe({ next: (event) => this.log.hear(event), error: tellSilent })] : [],
    );
  }

  view(request: ViewRequest): View {
    const { key } = request;
    if (key !== undefined) this.ask(key);
    return viewOf(this.log, this.instance, request, key === undefined ? undefined : this.asked.get(key));
  }

  /** Takes a key away. @throws what `FencingService.revoke` throws */
  async revoke(key: string, reason: string | undefined, request: unknown): Promise<Revocation | undefined> {
    const by = this.options.who?.(request) ?? 'the fencing board';
    const revocation = await this.fencing.revoke(key, { by, reason });
    this.log.revoked(key, { at: Date.now(), generation: revocation?.generation, by, reason });
    this.asked.delete(key);
    return revocation;
  }

  close(): void {
    for (const subscription of this.subscriptions) subscription.unsubscribe();
  }

  /** Asks the stores, once at a time for a key, and not more often than it makes a difference. */
  private ask(key: string): void {
    const last = this.asked.get(key);
    if (this.asking.has(key) || (last && Date.now() - last.at < FRESH_MS)) return;
    if (this.asking.size >= MOST_ASKED) return;
    this.asking.add(key);
    void this.answer(key).then((answer) => {
      this.asking.delete(key);
      this.asked.delete(key);
      this.asked.set(key, answer);
      if (this.asked.size > MOST_ASKED) this.asked.delete(this.asked.keys().next().value!);
      this.log.version++;
    });
  }

  private async answer(key: string): Promise<Asked> {
    try {
      checkKey('The fencing board', key);
      const silent = () => new Error(`no answer within ${LONGEST_ASK_MS} ms`);
      const report = await within(systemClock, LONGEST_ASK_MS, this.fencing.inspect(key), silent);
      return { at: Date.now(), report };
    } catch (error) {
      // Messages of the package name no key and no password; those of others might.
      const problem =
        error instanceof FencingError ? error.message : 'The lease store or the database did not answer.';
      return { at: Date.now(), problem };
    }
  }
}

/** A message bus that fails must not end the application, as an error that nobody takes would. */
function tellSilent(): void {
  new Logger('Fencing').warn(
    'The events that the board was given have failed: it hears no more of other processes.',
  );
}
