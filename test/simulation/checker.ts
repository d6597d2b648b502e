import type { World } from './world.js';

/** What can be violated: the invariants of the design, and that a lease which believes in itself is held at the store (3.4). */
export type Invariant =
  | 'I1'
  | 'I2'
  | 'I3'
  | 'I4'
  | 'I5'
  | 'I6'
  | 'I7'
  | 'I8'
  | 'I9'
  | 'I10'
  | 'I11'
  | 'validity'
  | 'released'
  | 'error';

export interface Violation {
  readonly invariant: Invariant;
  readonly says: string;
  readonly at: number;
}

/** One row written by a transaction that the database committed. */
export interface CommittedWrite {
  /** Which write of which worker: an attempt of its own, also where an operation is sent again. */
  readonly attempt: string;
  readonly key: string;
  readonly owner: string;
  readonly generation: number;
  /** The version of the row that the writer had read, where it read after its activation. */
  readonly base: number | undefined;
}

interface KeyFacts {
  readonly commits: CommittedWrite[];
  /** How many commits the key had when a grant was activated, by owner. */
  readonly activatedAt: Map<string, number>;
  /** The newest grant whose activation has returned to its owner. */
  returned: number;
}

/** Decides, while the world goes on and knowing everything, whether the promises are kept. */
export class Checker {
  readonly violations: Violation[] = [];
  readonly counts: Record<string, number> = {};
  /** What happened, in order; written only when a run is replayed. */
  readonly history: string[] = [];
  /** I2 is given up by `activationDurability: 'relaxed'` when the database crashes. */
  isI2Off = false;
  private readonly keys = new Map<string, KeyFacts>();
  private readonly committedAttempts = new Set<string>();
  private readonly refusedAttempts = new Set<string>();
  private readonly effects = new Map<string, string>();
  private readonly names = new Map<string, string>();

  constructor(
    private readonly world: World,
    private readonly isRecording: boolean,
  ) {}

  record(who: string, what: string, facts: Record<string, unknown> = {}): void {
    if (!this.isRecording) return;
    const listed = Object.entries(facts).map(([name, value]) => ` ${name}=${this.show(name, value)}`);
    this.history.push(`${this.world.now.toFixed(3).padStart(10)} ${who.padEnd(6)} ${what}${listed.join('')}`);
  }

  count(what: string): void {
    this.counts[what] = (this.counts[what] ?? 0) + 1;
  }

  violated(invariant: Invariant, says: string): void {
    this.violations.push({ invariant, says, at: this.world.now });
    this.record('!!!!', `${invariant} ${says}`);
  }

  demand(holds: boolean, invariant: Invariant, says: () => string): void {
    if (!holds) this.violated(invariant, says());
  }

  /** The fence was raised (or found) to name this grant. */
  activated(key: string, owner: string): void {
    const { activatedAt, commits } = this.of(key);
    activatedAt.set(owner, commits.length);
  }

  /** The owner was told so. */
  activationReturned(key: string, generation: number): void {
    const facts = this.of(key);
    facts.returned = Math.max(facts.returned, generation);
  }

  committed(write: CommittedWrite): void {
    const { key, owner, generation, base, attempt } = write;
    const { commits, activatedAt, returned } = this.of(key);
    const last = commits.at(-1);
    this.count('commits');
    this.demand(
      !last || generation > last.generation || (generation === last.generation && owner === last.owner),
      'I1',
      () =>
        `${attempt} commits ${key} under generation ${generation} after ${last!.attempt} did under ${last!.generation}`,
    );
    this.demand(
      this.isI2Off || generation >= returned,
      'I2',
      () =>
        `${attempt} commits ${key} under generation ${generation} after the activation of ${returned} had returned`,
    );
    if (base !== undefined) {
      const between = commits.slice(activatedAt.get(owner) ?? 0).find((other) => other.owner !== owner);
      this.demand(
        !between,
        'I3',
        () =>
          `${between!.attempt} of another owner committed ${key} between the activation of ${attempt} and its commit`,
      );
      this.demand(
        base === commits.length,
        'I3',
        () => `${attempt} overwrites version ${commits.length} of ${key}, and had read version ${base}`,
      );
    }
    this.demand(!this.refusedAttempts.has(attempt), 'I4', () => `${attempt} had been refused and commits`);
    this.committedAttempts.add(attempt);
    commits.push(write);
  }

  /** How often a row of the key has been written. */
  versionOf(key: string): number {
    return this.of(key).commits.length;
  }

  effect(operation: string, result: string): void {
    this.demand(!this.effects.has(operation), 'I10', () => `the effect of ${operation} is committed again`);
    this.effects.set(operation, result);
  }

  /** What a worker was told about a write of its own. */
  outcome(attempt: string, outcome: 'accepted' | 'duplicate' | 'refused' | 'unknown'): void {
    this.count(outcome);
    if (outcome === 'refused') {
      this.refusedAttempts.add(attempt);
      this.demand(
        !this.committedAttempts.has(attempt),
        'I4',
        () => `${attempt} is refused and was committed`,
      );
    }
    if (outcome === 'accepted') {
      this.demand(
        this.committedAttempts.has(attempt),
        'I4',
        () => `${attempt} is accepted and was not committed`,
      );
    }
  }

  /** An operation was answered with `result`. */
  answered(operation: string, result: string): void {
    this.demand(
      this.effects.get(operation) === result,
      'I10',
      () => `${operation} is answered with ${result} and its effect was ${this.effects.get(operation)}`,
    );
  }

  isDone(operation: string): boolean {
    return this.effects.has(operation);
  }

  private of(key: string): KeyFacts {
    let facts = this.keys.get(key);
    if (!facts) this.keys.set(key, (facts = { commits: [], activatedAt: new Map(), returned: 0 }));
    return facts;
  }

  /** Owners are random: in a history they get names in the order in which they appear, the same in every replay. */
  private show(name: string, value: unknown): string {
    if (!/owner|waiter/i.test(name) || typeof value !== 'string') return String(value);
    if (!this.names.has(value)) this.names.set(value, `${name[0]}${this.names.size + 1}`);
    return this.names.get(value)!;
  }
}
