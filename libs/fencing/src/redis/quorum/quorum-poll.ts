import type { Clock } from '../../core/clock.js';
import { StoreUnavailableError } from '../../core/errors.js';
import type { LeaseStore } from '../../core/lease-store.js';

/** How many requests to a silent node are kept; further ones fail at once, so that nothing grows (I11). */
const MOST_OPEN = 64;
/** A node was not asked. */
export const NOT_SENT = new StoreUnavailableError(
  'lease store',
  'it is silent, and enough requests wait for it.',
);

/** Which server a node is. */
export interface ServerIdentity {
  /** Of this run of the server; two nodes with one are the same server. */
  readonly runId: string | undefined;
  readonly isReplica: boolean;
}

/** One of the independent nodes of a quorum. */
export class QuorumNode {
  private open = 0;
  private isFailing = false;
  private heardAt = 0;

  constructor(
    readonly store: LeaseStore,
    /** For messages, e.g. `node 2`. */
    readonly name: string,
    /** Which server it is, as far as can be known. */
    readonly identify: () => Promise<ServerIdentity>,
    private readonly clock: Clock,
    private readonly timeoutMs: number,
  ) {}

  /** It has owed an answer for longer than a node may take: nobody waits for it while others suffice. */
  get isSilent(): boolean {
    return (this.open > 0 || this.isFailing) && this.clock.now() - this.heardAt > this.timeoutMs;
  }

  ask<T>(question: (store: LeaseStore, node: QuorumNode) => Promise<T>): Promise<T> {
    if (this.open >= MOST_OPEN && this.isSilent) return Promise.reject(NOT_SENT);
    if (this.open === 0 && !this.isFailing) this.heardAt = this.clock.now();
    this.open += 1;
    return question(this.store, this).then(
      (value) => {
        this.open -= 1;
        this.isFailing = false;
        this.heardAt = this.clock.now();
        return value;
      },
      (error: Error) => {
        this.open -= 1;
        this.isFailing = true;
        throw error;
      },
    );
  }
}

/** What a node says to a question; `undefined` while it has not answered. */
export type Vote<T> =
  { readonly value: T; readonly error?: undefined } | { readonly value?: undefined; readonly error: Error };

/** What is known of the nodes' votes on one question. */
export class Votes<T> {
  constructor(readonly votes: (Vote<T> | undefined)[]) {}

  /** What the nodes that answered said. */
  get values(): T[] {
    return this.votes.flatMap((vote) => (vote && !vote.error ? [vote.value] : []));
  }

  get errors(): Error[] {
    return this.votes.flatMap((vote) => (vote?.error ? [vote.error] : []));
  }

  /** How many have not voted. */
  get open(): number {
    return this.votes.filter((vote) => !vote).length;
  }

  /** Whether a majority has answered, or cannot any more: before that, "no" may as well be "unknown". */
  get areConclusive(): boolean {
    const majority = majorityOf(this.votes.length);
    return this.values.length >= majority || this.values.length + this.open < majority;
  }

  count(matches: (value: T) => boolean): number {
    return this.values.filter(matches).length;
  }
}

/** The same question to several nodes at once: sent before the constructor returns, so it keeps the order of its caller. */
export class Poll<T> extends Votes<T> {
  /** Hears every vote, also after `until` has resolved. */
  onVote: ((at: number, vote: Vote<T>) => void) | undefined;
  private changed: (() => void) | undefined;

  /** @param given votes of nodes that are not asked */
  constructor(
    private readonly nodes: readonly QuorumNode[],
    private readonly clock: Clock,
    question: (store: LeaseStore, node: QuorumNode) => Promise<T>,
    given: readonly (Vote<T> | undefined)[] = [],
  ) {
    super(nodes.map((_, at) => given[at]));
    nodes.forEach((node, at) => {
      if (given[at]) return;
      node.ask(question).then(
        (value) => this.hear(at, { value }),
        (error: Error) => this.hear(at, { error }),
      );
    });
  }

  /**
   * Resolves when there is `enough()`, when all have voted, when only silent nodes have not and a majority did, or after `ms`.
   */
  until(enough: () => boolean, ms: number): Promise<this> {
    return new Promise((resolve) => {
      const done = (): void => {
        cancel();
        this.changed = undefined;
        resolve(this);
      };
      // Where the event loop was blocked, the answers are there and not read yet: once more around it.
      let cancel = this.clock.setTimer(ms, () => (cancel = this.clock.setTimer(1, done)));
      this.changed = () => {
        if (enough() || this.open === 0 || this.onlySilentLeft()) done();
      };
      this.changed();
    });
  }

  private onlySilentLeft(): boolean {
    return (
      this.values.length >= majorityOf(this.nodes.length) &&
      this.nodes.every((node, at) => this.votes[at] || node.isSilent)
    );
  }

  private hear(at: number, vote: Vote<T>): void {
    this.votes[at] = vote;
    this.onVote?.(at, vote);
    this.changed?.();
  }
}

/** How many of `nodes` make a quorum: any two quorums share a node. */
export function majorityOf(nodes: number): number {
  return Math.floor(nodes / 2) + 1;
}

/** Too few nodes answered. Names each that did not, and why. */
export function tooFewAnswers(
  nodes: readonly QuorumNode[],
  votes: readonly (Vote<unknown> | undefined)[],
  key?: string,
): StoreUnavailableError {
  const silent = nodes.flatMap(({ name }, at) => {
    const vote = votes[at];
    if (!vote) return [`${name}: no answer yet`];
    return vote.error
      ? [`${name}: ${vote.error.message.replace('The lease store is unavailable: ', '')}`]
      : [];
  });
  const errors = votes.flatMap((vote) => (vote?.error ? [vote.error] : []));
  const final = errors.filter((error) => error instanceof StoreUnavailableError && !error.retryable);
  return new StoreUnavailableError(
    'lease store',
    `${nodes.length - silent.length} of ${nodes.length} nodes answered, and ${majorityOf(nodes.length)} must (${silent.join('; ')}).`,
    {
      key,
      cause: errors[0],
      // Trying again helps unless what the nodes refuse stays refused.
      retryable: nodes.length - final.length >= majorityOf(nodes.length),
    },
  );
}
