import { createHash } from 'node:crypto';
import type { RedisClient } from './redis-client.js';
import { STEPS } from './scripts.js';

/** One step of the script, with what it is called with. */
export interface Step {
  readonly name: 'acquire' | 'renew' | 'release' | 'handOver' | 'withdraw';
  readonly keys: readonly string[];
  readonly args: readonly (string | number)[];
}

/** Who hears the outcome of a step. */
interface Outcome {
  readonly answered: (outcome: number, value: unknown) => void;
  readonly failed: (error: unknown) => void;
}

/** Steps in one request: as many as make a request of their own cheap, so that the server works while more are prepared. */
const LARGEST_BATCH = 8;
/** Less work than `queueMicrotask`, which makes an async resource for each. */
const RESOLVED = Promise.resolve();
const SHA = createHash('sha1').update(STEPS).digest('hex');

/**
 * Sends steps to Redis; those that are asked for together share one request.
 *
 * A step leaves in a microtask, so a release is on its way before its caller goes on. Where callers go on to the next step
 * at once (a loop over keys, many callers whose answers came together), it waits for that one: until this turn of the event loop
 * ends. The first time that no other step comes, it leaves early again.
 */
export class StepSender {
  private keys: string[] = [];
  private args: (string | number)[] = [];
  private outcomes: Outcome[] = [];
  private togetherPays = false;
  private sentThisTurn = 0;

  constructor(private readonly client: RedisClient) {}

  /** The script's source, for SCRIPT LOAD. */
  readonly script = STEPS;

  /** Sends a step, and calls one of the two with its outcome. */
  send(step: Step, outcome: Outcome): void {
    append(step, this.keys, this.args);
    const waiting = this.outcomes.push(outcome);
    if (waiting === LARGEST_BATCH) return this.flush();
    if (waiting > 1) return;
    if (this.sentThisTurn === 0) process.nextTick(this.endTurn);
    if (!this.togetherPays) void RESOLVED.then(this.flush);
  }

  private readonly endTurn = (): void => {
    const requests = this.sentThisTurn + (this.outcomes.length > 0 ? 1 : 0);
    this.togetherPays = requests > 1 || this.outcomes.length > 1;
    this.flush();
    this.sentThisTurn = 0;
  };

  /** Sends many steps in a request of their own. Resolves to what went with their outcomes. */
  async sendAll(steps: readonly Step[]): Promise<unknown[]> {
    const keys: string[] = [];
    const args: (string | number)[] = [];
    for (const step of steps) append(step, keys, args);
    const answers = await new Promise<unknown[]>((resolve, reject) =>
      this.evaluate(keys, args, resolve, reject),
    );
    return steps.map((_, i) => answers[2 * i + 1]);
  }

  private readonly flush = (): void => {
    const { keys, args, outcomes } = this;
    if (outcomes.length === 0) return;
    this.keys = [];
    this.args = [];
    this.outcomes = [];
    this.sentThisTurn += 1;
    this.evaluate(
      keys,
      args,
      (answers) => {
        for (let i = 0; i < outcomes.length; i++)
          outcomes[i]!.answered(answers[2 * i] as number, answers[2 * i + 1]);
      },
      (error) => {
        for (const outcome of outcomes) outcome.failed(error);
      },
    );
  };

  /** EVALSHA, and EVAL on a server that does not know the script (restarted, failed over, flushed). */
  private evaluate(
    keys: readonly string[],
    args: readonly (string | number)[],
    answered: (answers: unknown[]) => void,
    failed: (error: unknown) => void,
  ): void {
    const hear = answered as (answers: unknown) => void;
    this.client.evalsha(SHA, keys.length, ...keys, ...args).then(hear, (error: unknown) => {
      if (!String((error as Error | undefined)?.message).startsWith('NOSCRIPT')) return failed(error);
      this.client.eval(STEPS, keys.length, ...keys, ...args).then(hear, failed);
    });
  }
}

function append(step: Step, keys: string[], args: (string | number)[]): void {
  for (const key of step.keys) keys.push(key);
  args.push(step.name);
  for (const arg of step.args) args.push(arg);
}
