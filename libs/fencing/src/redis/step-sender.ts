import { createHash } from 'node:crypto';
import type { RedisClient } from './redis-client.js';
import { STEPS } from './scripts.js';

/** One step of the script, with what it is called with. */
export interface Step {
  readonly name: 'acquire' | 'renew' | 'release' | 'withdraw';
  readonly keys: readonly string[];
  readonly args: readonly (string | number)[];
}

interface Waiting {
  readonly step: Step;
  readonly answered: (answer: unknown) => void;
  readonly failed: (error: unknown) => void;
}

/** Steps in one request: bounded, so that no request holds the server for long. */
const LARGEST_BATCH = 128;
const SHA = createHash('sha1').update(STEPS).digest('hex');

/**
 * Sends steps to Redis; those that are asked for together share one request.
 *
 * A step leaves in a microtask, so a release is on its way before its caller goes on. Where callers go on to the next step
 * at once (a loop over keys, many callers whose answers came together), it waits for that one: until this turn of the event loop
 * ends. The first time that no other step comes, it leaves early again.
 */
export class StepSender {
  private waiting: Waiting[] = [];
  private togetherPays = false;
  private sentThisTurn = 0;

  constructor(private readonly client: RedisClient) {}

  /** The script's source, for SCRIPT LOAD. */
  readonly script = STEPS;

  /** Sends a step, and calls one of the two with its outcome. */
  send(step: Step, answered: (answer: unknown) => void, failed: (error: unknown) => void): void {
    if (this.waiting.push({ step, answered, failed }) > 1) return;
    if (this.sentThisTurn === 0) process.nextTick(this.endTurn);
    if (!this.togetherPays) queueMicrotask(this.flush);
  }

  private readonly endTurn = (): void => {
    const requests = this.sentThisTurn + (this.waiting.length > 0 ? 1 : 0);
    this.togetherPays = requests > 1 || this.waiting.length > 1;
    this.flush();
    this.sentThisTurn = 0;
  };

  /** Sends many steps in requests of their own. */
  sendAll(steps: readonly Step[]): Promise<unknown[]> {
    return this.evaluate(steps);
  }

  private readonly flush = (): void => {
    const waiting = this.waiting;
    if (waiting.length === 0) return;
    this.waiting = [];
    this.sentThisTurn += 1;
    for (let from = 0; from < waiting.length; from += LARGEST_BATCH) {
      const batch = waiting.slice(from, from + LARGEST_BATCH);
      this.evaluate(batch.map(({ step }) => step)).then(
        (answers) => batch.forEach(({ answered }, i) => answered(answers[i])),
        (error: unknown) => batch.forEach(({ failed }) => failed(error)),
      );
    }
  };

  /** EVALSHA, and EVAL on a server that does not know the script (restarted, failed over, flushed). */
  private evaluate(steps: readonly Step[]): Promise<unknown[]> {
    const keys: string[] = [];
    const args: (string | number)[] = [];
    for (const step of steps) {
      for (const key of step.keys) keys.push(key);
      args.push(step.name);
      for (const arg of step.args) args.push(arg);
    }
    return this.client.evalsha(SHA, keys.length, ...keys, ...args).catch((error: unknown) => {
      if (!String((error as Error | undefined)?.message).startsWith('NOSCRIPT')) throw error;
      return this.client.eval(STEPS, keys.length, ...keys, ...args);
    }) as Promise<unknown[]>;
  }
}
