import { type Channel, channel } from 'node:diagnostics_channel';
import { StoreUnavailableError } from './errors.js';
import type { FencingLogger } from './logger.js';

/** The grant that an event is about. The key is the caller's text: it belongs in no metric label and no log. */
export interface GrantFacts {
  readonly key: string;
  readonly owner: string;
  readonly generation: number;
}

/** Why a lease ended before its call did. `superseded`: another owner was seen at the store; `stale`: in the database. */
export type LossReason = 'expired' | 'superseded' | 'stale' | 'uncertain' | 'unsettled' | 'drained';

/** What each event tells. Times are in ms. */
export interface FencingEventFacts {
  /** A caller found its key taken, and waits for it or gives up (`waitMs` is what is left of its wait). */
  'lease.contended': { readonly key: string; readonly waitMs: number };
  /** A caller's wait is over, and its key is still taken. */
  'lease.busy': { readonly key: string; readonly waitedMs: number };
  /** A lease was granted and activated; its method begins now. `waitedMs` runs from the call. */
  'lease.acquired': GrantFacts & {
    readonly ttlMs: number;
    readonly waitedMs: number;
    readonly activated: boolean;
  };
  /** `marginMs`: validity that was left when the answer came. `uncertainMs`: how long it had been in doubt; 0 as a rule. */
  'lease.renewed': GrantFacts & { readonly marginMs: number; readonly uncertainMs: number };
  /** A renewal failed or had no answer in time; validity is left. */
  'lease.uncertain': GrantFacts & { readonly remainingMs: number };
  'lease.lost': GrantFacts & {
    readonly reason: LossReason;
    readonly heldMs: number;
    readonly acceptedWrites: number;
    /** How long it had been in doubt when it ended; 0 as a rule. */
    readonly uncertainMs: number;
  };
  'lease.released': GrantFacts & {
    readonly heldMs: number;
    readonly acceptedWrites: number;
    /** How long it had been in doubt when it ended; 0 as a rule. */
    readonly uncertainMs: number;
  };
  /** The database confirmed the commit. Of several keys, the first; `keys` counts them. */
  'write.accepted': GrantFacts & { readonly keys: number; readonly tookMs: number };
  /** The database refused the generation. `current`: what its fence names instead; `where`: the method that wrote. */
  'write.stale': GrantFacts & { readonly current: number | undefined; readonly where: string };
  /** Refused without asking the database: the lease had ended, or was in doubt. `code` is the error's. */
  'write.refused': GrantFacts & { readonly code: string; readonly where: string };
  /** The commit's answer was lost, and its outcome could not be found out. */
  'write.unknown': GrantFacts & { readonly tookMs: number; readonly where: string };
  /** The operation had been accepted before; its stored result was answered. */
  'operation.duplicate': GrantFacts & { readonly operation: string };
  /** A request had no answer, or a refusal that may pass. */
  'store.unavailable': { readonly store: 'lease store' | 'database'; readonly cause: unknown };
  /** The lease store was behind the database (it lost its counter), and counts on from there again. */
  'store.healed': GrantFacts & { readonly behind: number };
  /** Rows of the audit were given up: the database did not take them, or there were too many at once. */
  'audit.dropped': { readonly count: number; readonly cause: 'unavailable' | 'too many' };
}

/** The names of the events, e.g. `lease.lost`. */
export type FencingEventName = keyof FencingEventFacts;

/** An event, told apart by its `name`. */
export type FencingEvent = {
  [Name in FencingEventName]: {
    readonly name: Name;
    /** The instance of the module. */
    readonly instance: string;
    /** Wall-clock time. */
    readonly at: Date;
  } & FencingEventFacts[Name];
}[FencingEventName];

/** The names of all events, to listen to each: `FENCING_EVENT_NAMES.map(fencingChannelName)`. */
export const FENCING_EVENT_NAMES: readonly FencingEventName[] = Object.freeze([
  'lease.contended',
  'lease.busy',
  'lease.acquired',
  'lease.renewed',
  'lease.uncertain',
  'lease.lost',
  'lease.released',
  'write.accepted',
  'write.stale',
  'write.refused',
  'write.unknown',
  'operation.duplicate',
  'store.unavailable',
  'store.healed',
  'audit.dropped',
]);

/** The name of an event's channel: `subscribe(fencingChannelName('lease.lost'), …)` of `node:diagnostics_channel`. */
export const fencingChannelName = (name: FencingEventName): string => `nestjs-fencing:${name}`;

const CHANNELS = Object.fromEntries(
  FENCING_EVENT_NAMES.map((name) => [name, channel(fencingChannelName(name))]),
) as unknown as Readonly<Record<FencingEventName, Channel>>;

type Listener = (event: FencingEvent) => void;

/**
 * Tells what happens in one instance of the package: to the listeners of this instance, and on the channels of the process.
 * Who has something to tell asks `hears` first, so that nothing is computed where nobody listens.
 */
export class FencingEmitter {
  private readonly listeners = Object.fromEntries(
    FENCING_EVENT_NAMES.map((name) => [name, new Set<Listener>()]),
  ) as unknown as Readonly<Record<FencingEventName, Set<Listener>>>;

  constructor(
    readonly instance = 'default',
    private readonly logger?: FencingLogger,
  ) {}

  hears(name: FencingEventName): boolean {
    return this.listeners[name].size > 0 || CHANNELS[name].hasSubscribers;
  }

  emit<Name extends FencingEventName>(name: Name, facts: FencingEventFacts[Name]): void {
    const event = { name, instance: this.instance, at: new Date(), ...facts } as unknown as FencingEvent;
    for (const listener of this.listeners[name]) {
      try {
        listener(event);
      } catch (error) {
        this.logger?.error(`A listener of ${name} threw; it was contained.`, error);
      }
    }
    CHANNELS[name].publish(event);
  }

  /** Hears the events of these names (default: every event) of this instance. Answers how to stop. */
  listen(listener: Listener, names: readonly FencingEventName[] = FENCING_EVENT_NAMES): () => void {
    // Of its own for each call: one function may listen twice.
    const own: Listener = (event) => listener(event);
    for (const name of names) this.listeners[name].add(own);
    return () => {
      for (const name of names) this.listeners[name].delete(own);
    };
  }
}

/** An activation that fails at the first write passes two places that tell of it. */
const told = new WeakSet<StoreUnavailableError>();

/** Tells of `error` where it means that the lease store or the database did not answer; once of each. */
export function tellUnavailable(events: FencingEmitter | undefined, error: unknown): void {
  if (!events?.hears('store.unavailable') || !(error instanceof StoreUnavailableError)) return;
  if (told.has(error)) return;
  told.add(error);
  events.emit('store.unavailable', { store: error.store, cause: error.cause ?? error });
}
