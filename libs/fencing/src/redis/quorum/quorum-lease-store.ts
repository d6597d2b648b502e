import { type Clock, systemClock } from '../../core/clock.js';
import { asFindings, examine, type Examination, failedCheck } from '../../core/diagnosis.js';
import {
  type AcquireAnswer,
  type AcquireRequest,
  type LeaseSnapshot,
  LeaseStore,
  type ReleaseAnswer,
  type ReleaseRequest,
  type RenewRequest,
  type StoreFinding,
  type WakeHint,
  type Watch,
} from '../../core/lease-store.js';
import { checkNodes } from './quorum-check.js';
import { Claim, type QuorumSetup } from './quorum-claim.js';
import { watchNodes } from './quorum-hints.js';
import { majorityOf, Poll, QuorumNode, type ServerIdentity, tooFewAnswers, Votes } from './quorum-poll.js';

/** A node, by its own store. */
export interface QuorumMember {
  readonly store: LeaseStore;
  readonly identify?: () => Promise<ServerIdentity>;
}

export interface QuorumLeaseStoreOptions {
  readonly nodeTimeoutMs: number;
  readonly clock?: Clock;
}

/** Node timeouts that fit into one acquisition: asking, raising, a tie or two. */
const TIMEOUTS_PER_ACQUISITION = 4;

/**
 * Leases at a majority of independent stores: the algorithm that is known as Redlock, with a generation (see `Claim`). Every step
 * goes to all nodes at once and is decided by the first majority; a node that is silent holds nobody up once that is known.
 */
export class QuorumLeaseStore extends LeaseStore {
  readonly kind = 'quorum';
  private readonly setup: QuorumSetup;
  private readonly closing = new AbortController();
  private readonly majority: number;
  /** The newest claim of each owner that has something under way. */
  private readonly claims = new Map<string, Claim>();
  /** Requests of one owner take turns: two that cross would each raise what the other was granted. */
  private readonly turns = new Map<string, Promise<unknown>>();

  constructor(
    members: readonly QuorumMember[],
    { nodeTimeoutMs, clock = systemClock }: QuorumLeaseStoreOptions,
  ) {
    super();
    this.setup = {
      nodes: members.map(
        ({ store, identify }, at) =>
          new QuorumNode(store, `node ${at + 1}`, identify ?? unknown, clock, nodeTimeoutMs),
      ),
      clock,
      nodeTimeoutMs,
      acquireTimeoutMs: nodeTimeoutMs * TIMEOUTS_PER_ACQUISITION,
      roundTrip: { quickestMs: Infinity },
      closing: this.closing.signal,
    };
    this.majority = majorityOf(members.length);
  }

  check(): Promise<StoreFinding[]> {
    return checkNodes(this.setup.nodes, this.setup.clock, this.setup.nodeTimeoutMs);
  }

  /** What each node says of itself, and the check of all of them. */
  async diagnose(): Promise<Examination> {
    const { nodes } = this.setup;
    const checked = await this.check().then(
      (found) => asFindings('quorum', found),
      (error: unknown) => [failedCheck('quorum', error)],
    );
    const answered = nodes.filter(({ isSilent }) => !isSilent);
    const each = await Promise.all(answered.map(({ name, store }) => examine(name, store)));
    const facts: Record<string, string | number | boolean> = { 'quorum.nodes': nodes.length };
    const findings = [...checked];
    each.forEach((one, at) => {
      const { name } = answered[at]!;
      for (const [fact, value] of Object.entries(one.facts)) facts[`${name}: ${fact}`] = value;
      // Warnings of a node are among those of the check.
      findings.push(
        ...one.findings
          .filter(({ severity }) => severity !== 'warning')
          .map((found) => ({ ...found, about: name })),
      );
    });
    return { facts, findings };
  }

  acquire({ key, owner, ttlMs, floor, waiter }: AcquireRequest): Promise<AcquireAnswer> {
    return this.inTurn(key, owner, () => this.claim(key, owner, ttlMs).acquire(floor, waiter));
  }

  async renew(requests: readonly RenewRequest[]): Promise<boolean[]> {
    if (requests.length === 0) return [];
    const { nodes, clock, nodeTimeoutMs } = this.setup;
    const poll = new Poll(nodes, clock, (store) => store.renew(requests));
    const isDecided = (at: number): boolean => {
      const held = poll.count((answers) => answers[at]!);
      return held >= this.majority || (held + poll.open < this.majority && poll.areConclusive);
    };
    await poll.until(() => requests.every((_, at) => isDecided(at)), nodeTimeoutMs);
    if (poll.values.length < this.majority) throw tooFewAnswers(nodes, poll.votes);
    // A majority has answered. A lease that too few of it hold is lost: whoever did not answer must not decide.
    return requests.map((_, at) => poll.count((answers) => answers[at]!) >= this.majority);
  }

  release(request: ReleaseRequest): Promise<ReleaseAnswer> {
    const { successor } = request;
    if (!successor || request.holdMs !== undefined) return this.releaseAll(request);
    return this.inTurn(request.key, successor.owner, () => this.handOver(request, successor));
  }

  async withdraw(key: string, waiterId: string): Promise<void> {
    const { nodes, clock, nodeTimeoutMs } = this.setup;
    const poll = new Poll(nodes, clock, (store) => store.withdraw(key, waiterId));
    await poll.until(() => false, nodeTimeoutMs);
    if (poll.values.length < this.majority) throw tooFewAnswers(nodes, poll.votes, key);
  }

  async inspect(key: string): Promise<LeaseSnapshot | undefined> {
    const { nodes, clock, nodeTimeoutMs } = this.setup;
    const poll = new Poll(nodes, clock, (store) => store.inspect(key));
    const holders = (seen: LeaseSnapshot | undefined): LeaseSnapshot[] =>
      poll.values.flatMap((other) => (seen && other?.owner === seen.owner ? [other] : []));
    await poll.until(() => false, nodeTimeoutMs);
    if (poll.values.length < this.majority) throw tooFewAnswers(nodes, poll.votes, key);
    const held = poll.values.map(holders).find(({ length }) => length >= this.majority);
    if (!held) return undefined;
    const generations = held.map(({ generation }) => generation);
    const times = (one: number): number => generations.filter((other) => other === one).length;
    const [generation] = generations.sort((a, b) => times(b) - times(a) || b - a);
    const left = held.map(({ remainingMs }) => remainingMs).sort((a, b) => b - a);
    return { owner: held[0]!.owner, generation: generation!, remainingMs: left[this.majority - 1]! };
  }

  watch(key: string, listener: (hint: WakeHint) => void, since: number): Watch {
    return watchNodes(this.setup.nodes, this.setup.clock, key, listener, since);
  }

  async close(): Promise<void> {
    this.closing.abort();
    await Promise.all(this.setup.nodes.map(({ store }) => store.close()));
  }

  private async releaseAll(request: ReleaseRequest): Promise<ReleaseAnswer> {
    const { nodes, clock, nodeTimeoutMs } = this.setup;
    const poll = new Poll(nodes, clock, (store) => store.release(request));
    const isDecided = (): boolean => {
      const held = poll.count((answer) => answer.held);
      return held >= this.majority || (held + poll.open < this.majority && poll.areConclusive);
    };
    await poll.until(isDecided, nodeTimeoutMs);
    return { held: this.wasHeld(poll, request.key) };
  }

  private async handOver(
    request: ReleaseRequest,
    { owner, ttlMs }: NonNullable<ReleaseRequest['successor']>,
  ): Promise<ReleaseAnswer> {
    const { nodes, clock, nodeTimeoutMs } = this.setup;
    const sentAt = clock.now();
    const claim = this.claim(request.key, owner, ttlMs);
    const poll = new Poll(nodes, clock, (store) => store.release(request));
    const votes = new Votes<AcquireAnswer>(nodes.map(() => undefined));
    claim.expect(nodes.length);
    poll.onVote = (at, vote) => {
      votes.votes[at] = vote.error ? vote : { value: asGrant(vote.value) };
      claim.hear(at, votes.votes[at]);
    };
    // Whether the successor gets the key is known when all have answered that will.
    await poll.until(() => false, nodeTimeoutMs);
    const generation = await claim.takeOver(votes, sentAt);
    if (generation !== undefined) return { held: true, successor: { generation } };
    if (!this.wasHeld(poll, request.key)) return { held: false };
    const waits = poll.values.flatMap(({ successor }) =>
      successor && 'waitMs' in successor ? [successor.waitMs] : [],
    );
    return waits.length > 0 ? { held: true, successor: { waitMs: Math.max(...waits) } } : { held: true };
  }

  /** @throws StoreUnavailableError where the votes that are missing would decide */
  private wasHeld(poll: Poll<ReleaseAnswer>, key: string): boolean {
    const held = poll.count((answer) => answer.held);
    if (held >= this.majority) return true;
    if (poll.values.length >= this.majority) return false;
    throw tooFewAnswers(this.setup.nodes, poll.votes, key);
  }

  private claim(key: string, owner: string, ttlMs: number): Claim {
    const id = idOf(key, owner);
    const before = this.claims.get(id);
    if (before) before.superseded = true;
    const claim = new Claim(this.setup, key, owner, ttlMs, () => {
      if (this.claims.get(id) === claim) this.claims.delete(id);
    });
    this.claims.set(id, claim);
    return claim;
  }

  private inTurn<T>(key: string, owner: string, work: () => Promise<T>): Promise<T> {
    const id = idOf(key, owner);
    const before = this.turns.get(id);
    const result = before ? before.then(work) : work();
    const over = result.then(
      () => undefined,
      () => undefined,
    );
    this.turns.set(id, over);
    void over.then(() => {
      if (this.turns.get(id) === over) this.turns.delete(id);
    });
    return result;
  }
}

const unknown = async (): Promise<ServerIdentity> => ({ runId: undefined, isReplica: false });

/** One claim: an owner is new for each grant, but nothing here relies on it. */
function idOf(key: string, owner: string): string {
  return `${owner.length} ${owner} ${key}`;
}

/** What a node's answer to a hand-over means for the successor. */
function asGrant({ successor }: ReleaseAnswer): AcquireAnswer {
  if (successor && 'generation' in successor) return { granted: true, generation: successor.generation };
  return { granted: false, remainingMs: successor?.waitMs ?? 0 };
}
