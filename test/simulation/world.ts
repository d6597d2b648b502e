import type { CancelTimer, Clock } from '../../libs/fencing/src/core/clock.js';
import { Random } from './random.js';

/** More than any run needs by far: a run with as many has code that spins. */
const MOST_STEPS = 200_000;

export class Spinning extends Error {}

interface Event {
  at: number;
  /** Decides between events of one moment: their order is part of what the seed decides. */
  tie: number;
  readonly act: () => void;
  /** Whose code it runs; nothing runs while that process is paused, or after it has crashed. */
  readonly on: VirtualProcess | undefined;
  cancelled: boolean;
}

/**
 * Virtual time, and everything that is going to happen in it. Events happen one after the other; between two of them all
 * promises settle, so that real promise code runs deterministically: what happens next is decided by the seed alone.
 */
export class World {
  now = 0;
  readonly random: Random;
  /** Events that have happened. */
  steps = 0;
  private readonly queue = new Heap();

  constructor(readonly seed: number) {
    this.random = new Random(seed);
  }

  after(ms: number, act: () => void, on?: VirtualProcess): CancelTimer {
    const event: Event = {
      at: this.now + Math.max(0, ms),
      tie: this.random.next(),
      act,
      on,
      cancelled: false,
    };
    if (on) on.pending += 1;
    this.queue.push(event);
    return () => this.drop(event);
  }

  /** Runs until `until` ms, or until `isOver`. */
  async run(until: number, isOver: () => boolean = () => false): Promise<void> {
    await settle();
    while (!isOver()) {
      const event = this.queue.peek();
      if (!event || event.at > until) break;
      this.queue.pop();
      if (event.cancelled) continue;
      this.now = Math.max(this.now, event.at);
      const { on } = event;
      if (on?.isDead) {
        this.drop(event);
      } else if (on && on.pausedUntil > this.now) {
        event.at = on.pausedUntil;
        this.queue.push(event);
      } else {
        this.drop(event);
        if (++this.steps > MOST_STEPS) throw new Spinning(`more than ${MOST_STEPS} steps`);
        event.act();
        await settle();
      }
    }
    if (!isOver()) this.now = Math.max(this.now, until);
  }

  private drop(event: Event): void {
    if (event.cancelled) return;
    event.cancelled = true;
    if (event.on) event.on.pending -= 1;
  }
}

/**
 * A process of the application: code that runs on timers and messages. While it is paused none of it runs, and its clock goes
 * on, as after SIGSTOP or with a blocked event loop.
 */
export class VirtualProcess implements Clock {
  isDead = false;
  pausedUntil = 0;
  /** How long it has been paused, all told. */
  pausedMs = 0;
  /** Timers and messages that are on their way to it. */
  pending = 0;

  constructor(
    readonly world: World,
    readonly name: string,
    /** How fast its monotonic clock runs. */
    readonly rate: number,
  ) {}

  now(): number {
    return this.world.now * this.rate;
  }

  setTimer(afterMs: number, fire: () => void): CancelTimer {
    // A little late, as real timers are: never before its time by rounding.
    return this.world.after(Math.max(0, afterMs) / this.rate + 0.001, fire, this);
  }

  /** Waits for something outside: it takes as long as it takes, whatever this process's clock shows. */
  wait(ms: number): Promise<void> {
    return new Promise((resolve) => this.world.after(ms, resolve, this));
  }

  pause(ms: number): void {
    this.pausedMs += ms;
    this.pausedUntil = Math.max(this.pausedUntil, this.world.now + ms);
  }

  get isPaused(): boolean {
    return this.pausedUntil > this.world.now;
  }
}

/** Lets everything that is already settled run on. */
function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/** The next event first. */
class Heap {
  private readonly events: Event[] = [];

  peek(): Event | undefined {
    return this.events[0];
  }

  push(event: Event): void {
    let at = this.events.push(event) - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!before(event, this.events[parent]!)) break;
      this.events[at] = this.events[parent]!;
      at = parent;
    }
    this.events[at] = event;
  }

  pop(): void {
    const last = this.events.pop()!;
    const size = this.events.length;
    if (size === 0) return;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= size) break;
      if (child + 1 < size && before(this.events[child + 1]!, this.events[child]!)) child += 1;
      if (!before(this.events[child]!, last)) break;
      this.events[at] = this.events[child]!;
      at = child;
    }
    this.events[at] = last;
  }
}

function before(a: Event, b: Event): boolean {
  return a.at < b.at || (a.at === b.at && a.tie < b.tie);
}
