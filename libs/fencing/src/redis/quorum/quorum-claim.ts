import type { Clock } from '../../core/clock.js';
import { GenerationsExhaustedError, StoreUnavailableError } from '../../core/errors.js';
import {
  type AcquireAnswer,
  type AcquireRequest,
  type LeaseSnapshot,
  MAX_GENERATION,
} from '../../core/lease-store.js';
import { backoff, sleep, within } from '../../core/timing.js';
import {
  majorityOf,
  NOT_SENT,
  Poll,
  type QuorumNode,
  tooFewAnswers,
  type Vote,
  type Votes,
} from './quorum-poll.js';

/** What the claims of one quorum share. */
export interface QuorumSetup {
  readonly nodes: readonly QuorumNode[];
  readonly clock: Clock;
  /** How long a node may take to answer, ms. */
  readonly nodeTimeoutMs: number;
  /** How long an acquisition may take in all, ms. */
  readonly acquireTimeoutMs: number;
  /** The quickest answers of a majority lately, ms. */
  readonly roundTrip: { quickestMs: number };
  /** Aborts when the store is closed. */
  readonly closing: AbortSignal;
}

/** How much faster a node's clock may run than ours, ms: a hundredth of the ttl, and its whole milliseconds. */
const driftOf = (ttlMs: number): number => ttlMs / 100 + 2;
/** Whoever meets a tie comes back after up to this long, ms; twice as long each time, so that one of them is first. */
const TIE_MS = 4;
const LONGEST_TIE_MS = 100;
/** A generation to agree on is so far ahead of the clocks, µs, beside a round trip, in which they go on. */
const LEAD_US = 500;
/** Where that was not enough: so much more. */
const MORE_LEAD = 4;
/** How often a node that does not answer is told to free what it may have granted; its ttl does it otherwise. */
const MOST_RELEASES = 5;

/**
 * One owner's way to a majority of the nodes.
 *
 * A grant is given only when a majority of nodes has stored this owner under **the same** generation G. So generations increase:
 * let G1 be given for a key, and later G2. Two majorities share a node. That node stored G1 first, and then G2 for another owner
 * (or for the same, above a floor), and its counter only grows: G2 > G1. This holds whichever nodes answered, and needs no clock. A
 * shared node that lost its counter breaks it, as it does with one Redis; then the clock and the fence heal it (I7).
 *
 * Nodes issue their clocks' microseconds, which differ. What a majority issued is then raised: acquired again with a floor ahead of
 * those clocks, which makes every node answer just that floor + 1. From the lowest generation that a majority has below it: a node
 * whose counter is far ahead (or wrong) does not drag the others along.
 */
export class Claim {
  /** The owner has asked again since: what it holds belongs to that request. */
  superseded = false;
  private readonly majority: number;
  /** Set when it is over: whether the owner holds the key. */
  private won: boolean | undefined;
  private waiterId: string | undefined;
  /** It asks for a higher generation of what it may hold already: that is its owner's to give back. */
  private isRaise = false;
  /** Nodes that were told to free what they granted, since they were asked last. */
  private readonly freed = new Set<number>();
  /** Answers that are still to come. */
  private open = 0;

  /** @param onSettled called when it is over, and so is all that it had under way */
  constructor(
    private readonly setup: QuorumSetup,
    private readonly key: string,
    private readonly owner: string,
    private readonly ttlMs: number,
    private readonly onSettled: () => void,
  ) {
    this.majority = majorityOf(setup.nodes.length);
  }

  async acquire(floor: number, waiter: AcquireRequest['waiter']): Promise<AcquireAnswer> {
    const { clock, acquireTimeoutMs, closing } = this.setup;
    const until = clock.now() + acquireTimeoutMs;
    this.waiterId = waiter?.id;
    this.isRaise = floor > 0;
    for (let tries = 0; ; tries++) {
      const sentAt = clock.now();
      const first = await this.ask(floor, waiter);
      const { generation, votes } = await this.agree(first, sentAt, until);
      if (generation !== undefined) {
        this.end(true, votes);
        return { granted: true, generation };
      }
      const granted = votes.count(isGranted);
      const isTie = granted > 0 && !(await this.isHeldByAnother(votes));
      await this.undo(votes);
      if (isTie && clock.now() < until && !closing.aborted) {
        await sleep(clock, Math.random() * Math.min(LONGEST_TIE_MS, TIE_MS * 2 ** tries), closing);
        continue;
      }
      this.end(false, votes);
      if (votes.values.length < this.majority) throw this.failure(votes);
      if (granted >= this.majority) throw this.tooSlow();
      return { granted: false, remainingMs: this.freeInMs(votes) };
    }
  }

  /**
   * The owner is the successor of a release: what the nodes answered to that becomes a grant of a majority, or nothing.
   * @param votes as of an acquisition. Each is told to `hear`, and was expected
   */
  async takeOver(votes: Votes<AcquireAnswer>, sentAt: number): Promise<number | undefined> {
    const agreed = await this.agree(votes, sentAt, sentAt + this.setup.acquireTimeoutMs);
    if (agreed.generation === undefined) await this.undo(agreed.votes);
    this.end(agreed.generation !== undefined, agreed.votes);
    return agreed.generation;
  }

  expect(answers: number): void {
    this.open += answers;
  }

  /** A node has answered. Before the claim is over that is a vote; later, what it did must be taken back. */
  hear(at: number, vote: Vote<AcquireAnswer>): void {
    this.open -= 1;
    if (this.won !== undefined) this.tidy(at, vote);
    this.settle();
  }

  // ---------------------------------------------------------------------------------------------------------- deciding

  private async ask(
    floor: number,
    waiter?: AcquireRequest['waiter'],
    given?: readonly (Vote<AcquireAnswer> | undefined)[],
  ): Promise<Votes<AcquireAnswer>> {
    const { nodes, clock, nodeTimeoutMs } = this.setup;
    const request = { key: this.key, owner: this.owner, ttlMs: this.ttlMs, floor, waiter };
    const poll = new Poll(nodes, clock, (store) => store.acquire(request), given);
    this.freed.clear();
    this.expect(poll.open);
    poll.onVote = (at, vote) => this.hear(at, vote);
    return poll.until(() => this.isDecided(poll), nodeTimeoutMs);
  }

  /** Raises what the nodes issued until a majority has the same; `undefined` where there is no majority, or the time is over. */
  private async agree(first: Votes<AcquireAnswer>, sentAt: number, until: number) {
    const { clock } = this.setup;
    let votes = first;
    let askedAt = sentAt;
    for (let raises = 0; ; raises++) {
      const now = clock.now();
      const issued = generationsOf(votes).sort((a, b) => a - b);
      // What was granted first may be over by now at its node.
      const isOver = now - sentAt >= this.ttlMs - driftOf(this.ttlMs);
      if (issued.length < this.majority || isOver) return { votes };
      const generation = issued.find((one) => countOf(one, issued) >= this.majority);
      if (generation !== undefined || now >= until) return { generation, votes };
      const lead = (this.roundTripUs(now - askedAt) + LEAD_US * (1 + Math.random())) * MORE_LEAD ** raises;
      const wanted = Math.min(issued[this.majority - 1]! + Math.ceil(lead), MAX_GENERATION);
      askedAt = now;
      const refused = votes.votes.map((vote) => (vote?.value?.granted === false ? vote : undefined));
      votes = await this.ask(wanted - 1, undefined, refused);
    }
  }

  /** Of a usual request, also where this one was slow: generations should not run ahead of the clocks more than they must. */
  private roundTripUs(passedMs: number): number {
    const { roundTrip } = this.setup;
    roundTrip.quickestMs = Math.min(passedMs, roundTrip.quickestMs * 1.1);
    return roundTrip.quickestMs * 1_000;
  }

  /** Whether the votes that are missing can change nothing any more. */
  private isDecided(votes: Votes<AcquireAnswer>): boolean {
    const issued = generationsOf(votes);
    const most = Math.max(0, ...issued.map((one) => countOf(one, issued)));
    if (most >= this.majority) return true;
    const needed = issued.length >= this.majority ? most : issued.length;
    return needed + votes.open < this.majority && votes.areConclusive;
  }

  /** Whether one other owner has so many nodes that a majority is out of reach; otherwise it is a tie, which settles. */
  private async isHeldByAnother(votes: Votes<AcquireAnswer>): Promise<boolean> {
    const { nodes, clock, nodeTimeoutMs } = this.setup;
    const others = votes.votes.map((vote) => (vote?.value?.granted === false ? undefined : NOBODY));
    const seen = new Poll(nodes, clock, (store) => store.inspect(this.key), others);
    await seen.until(() => false, nodeTimeoutMs);
    const owners = seen.values.flatMap((snapshot) => (snapshot ? [snapshot.owner] : []));
    const rival = Math.max(0, ...owners.map((owner) => countOf(owner, owners)));
    return votes.values.length - rival < this.majority;
  }

  /** When a majority may be free, as far as the nodes said. */
  private freeInMs(votes: Votes<AcquireAnswer>): number {
    const free = votes.values.map((answer) => (answer.granted ? 0 : answer.remainingMs));
    return Math.max(1, free.sort((a, b) => a - b)[this.majority - 1]!);
  }

  private failure(votes: Votes<AcquireAnswer>): Error {
    const exhausted = votes.errors.filter((error) => error instanceof GenerationsExhaustedError).length;
    if (exhausted > 0 && votes.values.length + exhausted >= this.majority)
      return new GenerationsExhaustedError(this.key);
    return tooFewAnswers(this.setup.nodes, votes.votes, this.key);
  }

  private tooSlow(): StoreUnavailableError {
    return new StoreUnavailableError(
      'lease store',
      `the nodes granted the lease and did not agree on its generation in time (ttlMs ${this.ttlMs}, nodeTimeoutMs ${this.setup.nodeTimeoutMs}).`,
      { key: this.key },
    );
  }

  // -------------------------------------------------------------------------------------------------------- taking back

  /**
   * Frees the nodes that granted the key, or may have. What is asked of a node takes effect in order, so it comes after the grant;
   * a node that has not voted is told when it does. Resolves when those that granted it have answered, or had their time.
   */
  private async undo({ votes }: Votes<AcquireAnswer>): Promise<void> {
    if (this.isRaise) return;
    const { clock, nodeTimeoutMs } = this.setup;
    const freed: Promise<void>[] = [];
    votes.forEach((vote, at) => {
      if (!vote || !mayBeGranted(vote)) return;
      const answered = this.release(at);
      if (!vote.error) freed.push(answered);
    });
    const slow = () => new Error('no answer');
    await within(clock, nodeTimeoutMs, Promise.all(freed), slow).catch(() => undefined);
  }

  private async release(at: number): Promise<void> {
    const { nodes, clock, closing } = this.setup;
    this.freed.add(at);
    const request = { key: this.key, owner: this.owner };
    this.open += 1;
    for (let attempt = 0; attempt < MOST_RELEASES && !closing.aborted; attempt++) {
      // Sent late, it would free what a later request of the owner was granted.
      if (attempt > 0 && this.superseded) break;
      const answer = await nodes[at]!.ask((store) => store.release(request)).catch((error: unknown) => error);
      if (answer === NOT_SENT || !(answer instanceof StoreUnavailableError)) break;
      await sleep(clock, backoff(attempt), closing);
    }
    this.open -= 1;
    this.settle();
  }

  private withdraw(at: number): void {
    const { key, waiterId } = this;
    if (waiterId !== undefined)
      this.setup.nodes[at]!.ask((store) => store.withdraw(key, waiterId)).catch(() => undefined);
  }

  private end(won: boolean, { votes }: Votes<AcquireAnswer>): void {
    this.won = won;
    votes.forEach((vote, at) => vote && this.tidy(at, vote));
    this.settle();
  }

  /** A node must not keep what nobody holds, nor a place in its line for who holds the key without it. */
  private tidy(at: number, vote: Vote<AcquireAnswer>): void {
    if (this.won && vote.value?.granted === false) this.withdraw(at);
    const isLeft = !this.won && !this.isRaise && !this.superseded && mayBeGranted(vote);
    if (isLeft && !this.freed.has(at)) void this.release(at);
  }

  private settle(): void {
    if (this.won !== undefined && this.open === 0) this.onSettled();
  }
}

const NOBODY: Vote<LeaseSnapshot | undefined> = { value: undefined };

function isGranted({ granted }: AcquireAnswer): boolean {
  return granted;
}

/** An error may be that of the answer only; not where the node says that it has nothing to grant. */
function mayBeGranted({ value, error }: Vote<AcquireAnswer>): boolean {
  return value ? value.granted : error !== NOT_SENT && !(error instanceof GenerationsExhaustedError);
}

function generationsOf(votes: Votes<AcquireAnswer>): number[] {
  return votes.values.flatMap((answer) => (answer.granted ? [answer.generation] : []));
}

function countOf<T>(one: T, all: readonly T[]): number {
  return all.filter((other) => other === one).length;
}
