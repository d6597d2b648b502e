import { createHash } from 'node:crypto';
import type { ScriptClient } from './redis-client.js';
import { STEPS } from './scripts.js';

/** One step of the script, with what it is called with. */
export interface Step {
  readonly name: 'acquire' | 'renew' | 'release' | 'handOver' | 'withdraw';
  readonly keys: readonly string[];
  readonly args: readonly (string | number)[];
}

/** Who hears the outcome of a step. */
export interface Outcome {
  readonly answered: (outcome: number, value: unknown) => void;
  readonly failed: (error: unknown) => void;
}

/** Steps in one request: as many as make a request of their own cheap, so that the server works while more are prepared. */
const LARGEST_BATCH = 8;
/** The first request of a turn leaves sooner: the server has nothing to do yet. */
const FIRST_BATCH = 4;
/** Less work than `queueMicrotask`, which makes an async resource for each. */
const RESOLVED = Promise.resolve();

/** A script, and the name that EVALSHA knows it by. */
export class Script {
  readonly sha: string;

  constructor(readonly text: string) {
    this.sha = createHash('sha1').update(text).digest('hex');
  }
}

export const STEPS_SCRIPT = new Script(STEPS);

/** A release that has not left yet. */
export interface PendingRelease {
  readonly owner: string;
  /** Made when it leaves: many are taken back. */
  readonly step: () => Step;
  readonly outcome: Outcome;
}

/**
 * Sends steps to Redis; those that are asked for together share one request.
 *
 * A step leaves in a microtask, so a release is on its way before its caller goes on. Where callers go on to the next step
 * at once (a loop over keys, many callers whose answers came together), it waits for that one: until this turn of the event loop
 * ends. The first time that no other step comes, it leaves early again. A release that waits can be taken back by the next
 * caller that wants its key: the two are one step then, a hand-over.
 */
export class StepSender {
  private keys: string[] = [];
  private args: (string | number)[] = [];
  private outcomes: Outcome[] = [];
  private readonly releases = new Map<string, PendingRelease>();
  private togetherPays = false;
  private leaving = false;
  private batch = FIRST_BATCH;
  /** Steps asked for in this turn of the event loop. */
  private asked = 0;

  constructor(
    private readonly client: ScriptClient,
    private readonly script = STEPS_SCRIPT,
  ) {}

  /** Sends a step of `key`, behind a release that still waits, and calls one of the two with its outcome. */
  send(key: string, step: Step, outcome: Outcome): void {
    this.schedule();
    this.sendWaitingRelease(key);
    this.put(step, outcome);
  }

  /** Sends a release of `key`, unless it is taken back before it leaves. */
  sendRelease(key: string, release: PendingRelease): void {
    this.schedule();
    this.sendWaitingRelease(key);
    this.releases.set(key, release);
  }

  /** The release of `key`, if it has not left yet: it is the caller's now to have it done. */
  takeBack(key: string): PendingRelease | undefined {
    const release = this.releases.get(key);
    if (release) this.releases.delete(key);
    return release;
  }

  private sendWaitingRelease(key: string): void {
    const release = this.takeBack(key);
    if (release) this.put(release.step(), release.outcome);
  }

  private schedule(): void {
    if (this.asked++ === 0) process.nextTick(this.endTurn);
    if (this.togetherPays || this.leaving) return;
    this.leaving = true;
    void RESOLVED.then(this.sendAllNow);
  }

  private readonly endTurn = (): void => {
    this.togetherPays = this.asked > 1;
    this.asked = 0;
    this.sendAllNow();
    this.batch = FIRST_BATCH;
  };

  private readonly sendAllNow = (): void => {
    this.leaving = false;
    for (const { step, outcome } of this.releases.values()) this.put(step(), outcome);
    this.releases.clear();
    this.flush();
  };

  private put(step: Step, outcome: Outcome): void {
    append(step, this.keys, this.args);
    if (this.outcomes.push(outcome) < this.batch) return;
    this.batch = LARGEST_BATCH;
    this.flush();
  }

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

  private flush(): void {
    const { keys, args, outcomes } = this;
    if (outcomes.length === 0) return;
    this.keys = [];
    this.args = [];
    this.outcomes = [];
    this.evaluate(
      keys,
      args,
      (answers) => {
        for (let i = 0; i < outcomes.length; i++)
          // A client with `stringNumbers` answers texts.
          outcomes[i]!.answered(Number(answers[2 * i]), answers[2 * i + 1]);
      },
      (error) => {
        for (const outcome of outcomes) outcome.failed(error);
      },
    );
  }

  /** EVALSHA, and EVAL on a server that does not know the script (restarted, failed over, flushed). */
  private evaluate(
    keys: readonly string[],
    args: readonly (string | number)[],
    answered: (answers: unknown[]) => void,
    failed: (error: unknown) => void,
  ): void {
    const hear = answered as (answers: unknown) => void;
    this.client.evalsha(this.script.sha, keys.length, ...keys, ...args).then(hear, (error: unknown) => {
      if (!String((error as Error | undefined)?.message).startsWith('NOSCRIPT')) return failed(error);
      this.client.eval(this.script.text, keys.length, ...keys, ...args).then(hear, failed);
    });
  }
}

function append(step: Step, keys: string[], args: (string | number)[]): void {
  for (const key of step.keys) keys.push(key);
  args.push(step.name);
  for (const arg of step.args) args.push(arg);
}
