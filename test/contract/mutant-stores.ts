import { setImmediate } from 'node:timers/promises';
import {
  type AcquireAnswer,
  type AcquireRequest,
  LeaseStore,
  type ReleaseAnswer,
  type ReleaseRequest,
  type RenewRequest,
  type WakeHint,
  type Watch,
} from 'nestjs-fencing';
import { memoryLeases, type MemoryLeaseStore } from 'nestjs-fencing/testing';

/** A store that is right; each mutant spoils one thing of it. */
class Passing extends LeaseStore {
  readonly kind = 'mutant';
  constructor(protected readonly inner: MemoryLeaseStore = memoryLeases()) {
    super();
  }
  check() {
    return this.inner.check();
  }
  acquire(request: AcquireRequest): Promise<AcquireAnswer> {
    return this.inner.acquire(request);
  }
  renew(requests: readonly RenewRequest[]): Promise<boolean[]> {
    return this.inner.renew(requests);
  }
  release(request: ReleaseRequest): Promise<ReleaseAnswer> {
    return this.inner.release(request);
  }
  withdraw(key: string, waiterId: string): Promise<void> {
    return this.inner.withdraw(key, waiterId);
  }
  inspect(key: string) {
    return this.inner.inspect(key);
  }
  // eslint-disable-next-line @typescript-eslint/no-unused-vars
  watch(key: string, listener: (hint: WakeHint) => void, since: number): Watch {
    return this.inner.watch(key, listener);
  }
  close(): Promise<void> {
    return this.inner.close();
  }
  forget(): void {
    this.inner.forget();
  }
}

/** Releases whoever holds the key. */
class ReleaseByKey extends Passing {
  override async release(request: ReleaseRequest) {
    const held = await this.inner.inspect(request.key);
    return this.inner.release({ ...request, owner: held?.owner ?? request.owner });
  }
}

/** "Extend or set": a renewal that comes late takes the key again. */
class RenewalCreates extends Passing {
  override async renew(requests: readonly RenewRequest[]) {
    const answers = await this.inner.renew(requests);
    for (const [i, request] of requests.entries())
      if (!answers[i]) answers[i] = (await this.inner.acquire({ ...request, floor: 0 })).granted;
    return answers;
  }
}

/** Renews for anybody. */
class RenewalByKey extends Passing {
  override async renew(requests: readonly RenewRequest[]) {
    const owners = await Promise.all(requests.map(async ({ key }) => (await this.inner.inspect(key))?.owner));
    return this.inner.renew(requests.map((request, i) => ({ ...request, owner: owners[i] ?? '' })));
  }
}

class NoFloor extends Passing {
  override acquire(request: AcquireRequest) {
    return this.inner.acquire({ ...request, floor: 0 });
  }
}

/** Grants above the floor, and goes on below it. */
class FloorForgotten extends Passing {
  override async acquire(request: AcquireRequest) {
    const answer = await this.inner.acquire(request);
    if (request.floor > 0) this.inner.loseCounter((performance.timeOrigin + performance.now()) * 1_000);
    return answer;
  }
}

/** A bare counter beside the lease, gone when the lease is. */
class CounterGoesWithTheLease extends Passing {
  override async release(request: ReleaseRequest) {
    const answer = await this.inner.release(request);
    this.inner.loseCounter();
    return answer;
  }
}

/** A bare counter: it starts anew after a loss. */
class CounterWithoutClock extends Passing {
  constructor() {
    super(memoryLeases({ wallClockUs: () => 0 }));
  }
}

/** At the end it begins at 1 again. */
class CounterWraps extends Passing {
  override async acquire(request: AcquireRequest): Promise<AcquireAnswer> {
    try {
      return await this.inner.acquire(request);
    } catch {
      return { granted: true, generation: 1 };
    }
  }
}

/** A retry is a grant of its own: whoever holds the first answer is stale at once. */
class RetryIsANewGrant extends Passing {
  override async acquire(request: AcquireRequest) {
    const held = await this.inner.inspect(request.key);
    const floor = held?.owner === request.owner ? held.generation : 0;
    return this.inner.acquire({ ...request, floor: Math.max(floor, request.floor) });
  }
}

/** `SET NX`, and no look at whose token is there: an own retry finds the key busy. */
class RetryIsBusy extends Passing {
  override async acquire(request: AcquireRequest): Promise<AcquireAnswer> {
    const held = await this.inner.inspect(request.key);
    if (held) return { granted: false, remainingMs: held.remainingMs };
    return this.inner.acquire(request);
  }
}

/** Looks first and takes then. */
class AcquireInTwoSteps extends Passing {
  override async acquire(request: AcquireRequest): Promise<AcquireAnswer> {
    const held = await this.inner.inspect(request.key);
    await setImmediate();
    if (held && held.owner !== request.owner) return { granted: false, remainingMs: held.remainingMs };
    if (!held) this.inner.expireNow(request.key);
    return this.inner.acquire(request);
  }
}

const FOREVER_MS = 1_000_000;

class HandOverNeverExpires extends Passing {
  override release(request: ReleaseRequest) {
    const { successor } = request;
    return this.inner.release({
      ...request,
      successor: successor && { ...successor, ttlMs: FOREVER_MS },
    });
  }
}

/** Writes the lease anew above a floor, and forgets the ttl. */
class FloorNeverExpires extends Passing {
  override acquire(request: AcquireRequest) {
    return this.inner.acquire(request.floor > 0 ? { ...request, ttlMs: FOREVER_MS } : request);
  }
}

class ExpiresEarly extends Passing {
  override acquire(request: AcquireRequest) {
    return this.inner.acquire({ ...request, ttlMs: request.ttlMs / 2 });
  }
}

/** Compares its expiry with the clock of whoever asks. */
class ExpiryByTheClientsClock extends Passing {
  constructor() {
    super(memoryLeases({ clock: { now: () => Date.now(), setTimer: () => () => undefined } }));
  }
}

/** Says that it renewed, and did not. */
class RenewalWithoutEffect extends Passing {
  override async renew(requests: readonly RenewRequest[]) {
    const seen = await Promise.all(requests.map(({ key }) => this.inner.inspect(key)));
    return requests.map(({ owner }, i) => seen[i]?.owner === owner);
  }
}

class RenewalsMixedUp extends Passing {
  override async renew(requests: readonly RenewRequest[]) {
    return (await this.inner.renew(requests)).reverse();
  }
}

class HoldIgnored extends Passing {
  override release(request: ReleaseRequest) {
    return this.inner.release({ ...request, holdMs: undefined });
  }
}

/** The release comes after what its process asks for next. */
class ReleaseOvertaken extends Passing {
  override async release(request: ReleaseRequest) {
    await setImmediate();
    return this.inner.release(request);
  }
}

class SuccessorOvertakes extends Passing {
  override release(request: ReleaseRequest) {
    const { successor } = request;
    return this.inner.release({ ...request, successor: successor && { ...successor, mayOvertake: true } });
  }
}

/** Nobody waits in line: whoever comes first takes the key. */
class NoLine extends Passing {
  override acquire(request: AcquireRequest) {
    return this.inner.acquire({ ...request, waiter: undefined });
  }
}

/** Whoever was woken, or found the key free, still stands in line. */
class LineNotLeft extends Passing {
  override async acquire(request: AcquireRequest) {
    const answer = await this.inner.acquire(request);
    if (answer.granted && request.waiter) await this.inner.acquire({ ...request, owner: 'nobody' });
    return answer;
  }
}

/** Makes the line anew with each hand-over. */
class LineLostByHandOver extends Passing {
  private readonly waiters = new Set<string>();
  override acquire(request: AcquireRequest) {
    if (request.waiter) this.waiters.add(request.waiter.id);
    return this.inner.acquire(request);
  }
  override async release(request: ReleaseRequest) {
    const answer = await this.inner.release(request);
    if (request.successor) for (const id of this.waiters) await this.inner.withdraw(request.key, id);
    return answer;
  }
}

class WithdrawalIgnored extends Passing {
  override async withdraw() {}
}

/** A waiter that gives up is taken for the one that the key is kept for. */
class WithdrawalFreesTheKey extends Passing {
  override async withdraw(key: string, waiterId: string) {
    await this.inner.withdraw(key, waiterId);
    this.inner.expireNow(key);
  }
}

class Deaf extends Passing {
  override watch(): Watch {
    return { live: undefined, stop: () => undefined };
  }
}

/** Hears only what comes after the watch began. */
class HintsOvertaken extends Passing {
  override watch(key: string, listener: (hint: WakeHint) => void): Watch {
    let begun = false;
    const watch = this.inner.watch(key, (hint) => begun && listener(hint));
    begun = true;
    return watch;
  }
}

class WatchGoesOn extends Passing {
  override watch(key: string, listener: (hint: WakeHint) => void): Watch {
    this.inner.watch(key, listener);
    return { live: undefined, stop: () => undefined };
  }
}

/** Makes names of keys without care. */
class KeysAlike extends Passing {
  override acquire(request: AcquireRequest) {
    return this.inner.acquire({ ...request, key: request.key.trim().normalize('NFC') });
  }
}

class LinesOfAKeyLost extends Passing {
  override acquire(request: AcquireRequest) {
    return this.inner.acquire({ ...request, key: request.key.split('\n')[0]! });
  }
}

/** Each mistake, and a part of the title of a test that finds it. */
export const MUTANT_STORES: readonly (readonly [new () => Passing, string])[] = [
  [ReleaseByKey, 'I5: release by a non-owner'],
  [ReleaseByKey, 'I6: a release that is sent again'],
  [RenewalCreates, 'never creates a key by renewing'],
  [RenewalByKey, 'I5: renewal by a non-owner'],
  [NoFloor, 'issues above the floor'],
  [NoFloor, 'I7: a floor from the fence'],
  [FloorForgotten, 'issues above the floor'],
  [CounterGoesWithTheLease, 'I1: issues strictly increasing'],
  [CounterWithoutClock, 'I7: after it lost everything'],
  [CounterWithoutClock, "its clock's microseconds"],
  [CounterWraps, 'reaches the largest safe integer'],
  [RetryIsANewGrant, 'I6: answers a repeated acquisition'],
  [RetryIsBusy, 'I6: answers a repeated acquisition'],
  [AcquireInTwoSteps, 'grants a key once where many ask'],
  [HandOverNeverExpires, 'I8: a hand-over expires'],
  [FloorNeverExpires, 'I8: a grant above a floor expires'],
  [ExpiresEarly, 'does not free the key before its ttl'],
  [ExpiryByTheClientsClock, 'a wall clock of one process that jumps'],
  [RenewalWithoutEffect, 'renews for the owner'],
  [RenewalsMixedUp, 'answers each of several renewals'],
  [HoldIgnored, 'keeps a released key taken for holdMs'],
  [ReleaseOvertaken, 'keeps the order of one process'],
  [SuccessorOvertakes, 'refuses the hand-over'],
  [NoLine, 'serves waiting processes first come'],
  [LineNotLeft, 'leaves the line'],
  [LineLostByHandOver, 'forgets nobody who waits'],
  [WithdrawalIgnored, 'forgets a waiter that withdraws'],
  [WithdrawalIgnored, 'passes what was kept for a waiter on'],
  [WithdrawalFreesTheKey, 'a waiter that withdraws while others wait'],
  [Deaf, 'wakes a waiting process when the key is released'],
  [HintsOvertaken, 'a hint that came before the watch began'],
  [WatchGoesOn, 'a watch that was stopped'],
  [KeysAlike, 'keeps different keys apart'],
  [LinesOfAKeyLost, 'treats the key "line'],
  // What the random load finds by itself.
  [ReleaseByKey, 'whatever many workers send'],
  [RenewalCreates, 'whatever many workers send'],
  [RetryIsANewGrant, 'whatever many workers send'],
  [AcquireInTwoSteps, 'whatever many workers send'],
  [ExpiresEarly, 'whatever many workers send'],
  [WithdrawalFreesTheKey, 'whatever many workers send'],
];

/** The same without a mistake. */
export { Passing as RightStore };
