import type { AuditNote } from './audit.js';
import type { Clock } from './clock.js';
import { StoreUnavailableError } from './errors.js';
import type { FencingEmitter, FencingEvent } from './events.js';
import type { Fence } from './fence.js';
import { backoff, sleep, within } from './timing.js';

/** Rows that wait to be written; more are dropped. */
const MOST_PENDING = 100;
/** Rows of one process in a minute; more are dropped: a storm of refusals must not become one of inserts. */
const MOST_PER_MINUTE = 600;
/** How long a database that does not answer is asked again, ms: an unknown commit comes while it is in trouble. */
const KEEP_TRYING_MS = 30_000;
/** How long one statement may take, ms; after that its rows are given up, and the next ones tried. */
const RECORD_MS = 30_000;
/** How long a stopping application waits for rows that are under way, ms. */
const STOP_MS = 1_000;

type Pending = Omit<AuditNote, 'ageMs'> & { readonly at: number };

/**
 * Keeps refused and unknown writes in the audit of the fence, beside the work: nobody waits for it, one statement at a time is
 * under way, and what cannot be kept is dropped and counted.
 */
export class AuditTrail {
  private pending: Pending[] = [];
  private writing: Promise<void> | undefined;
  private minute = 0;
  private inMinute = 0;
  private readonly aborter = new AbortController();
  private readonly unlisten: () => void;

  constructor(
    private readonly record: NonNullable<Fence['record']>,
    private readonly events: FencingEmitter,
    private readonly clock: Clock,
  ) {
    this.unlisten = events.listen((event) => this.note(event), ['write.stale', 'write.unknown']);
  }

  /** Takes nothing more. Resolves when what is pending was kept or dropped: after a second at the latest. */
  async stop(): Promise<void> {
    this.unlisten();
    const kept = this.writing;
    if (!kept) return;
    await within(this.clock, STOP_MS, kept, () => new Error('no time')).catch(() => undefined);
    this.aborter.abort();
    this.drop(this.pending.splice(0).length, 'unavailable');
  }

  private note(event: FencingEvent): void {
    if (event.name !== 'write.stale' && event.name !== 'write.unknown') return;
    const { key, owner, generation, where } = event;
    const at = this.clock.now();
    if (!this.mayTake(at)) return this.drop(1, 'too many');
    const grant = { key, owner, generation, where, at };
    this.pending.push(
      event.name === 'write.stale'
        ? { ...grant, kind: 'stale', current: event.current }
        : { ...grant, kind: 'unknown' },
    );
    this.writing ??= this.writeAll();
  }

  private mayTake(now: number): boolean {
    const minute = Math.floor(now / 60_000);
    if (minute !== this.minute) [this.minute, this.inMinute] = [minute, 0];
    if (this.pending.length >= MOST_PENDING || this.inMinute >= MOST_PER_MINUTE) return false;
    this.inMinute += 1;
    return true;
  }

  private async writeAll(): Promise<void> {
    while (this.pending.length > 0) {
      const batch = this.pending.splice(0);
      if (!(await this.write(batch))) this.drop(batch.length, 'unavailable');
    }
    // Here, and not a moment later: a note that came in between would wait for the next one.
    this.writing = undefined;
  }

  private async write(batch: readonly Pending[]): Promise<boolean> {
    const until = this.clock.now() + KEEP_TRYING_MS;
    for (let attempt = 0; ; attempt++) {
      try {
        const now = this.clock.now();
        const kept = this.record(batch.map(({ at, ...note }) => ({ ...note, ageMs: now - at })));
        await within(this.clock, RECORD_MS, kept, () => new Error('no answer'));
        return true;
      } catch (error) {
        const passing = error instanceof StoreUnavailableError;
        if (!passing || this.clock.now() >= until || this.aborter.signal.aborted) return false;
        await sleep(this.clock, backoff(attempt), this.aborter.signal);
      }
    }
  }

  private drop(count: number, cause: 'unavailable' | 'too many'): void {
    if (count > 0 && this.events.hears('audit.dropped')) this.events.emit('audit.dropped', { count, cause });
  }
}
