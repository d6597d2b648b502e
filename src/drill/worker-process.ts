import { fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { WorkerProcess } from '../../test/support/workers.js';
import type { Ended, Granted, Order, PausePoint, Refused, Wrote } from './orders.js';

const file = fileURLToPath(new URL('./worker.js', import.meta.url));

/** A real process that runs `worker.ts`, as the drill sees it. */
export class DrillWorker {
  private calls = 0;

  private constructor(
    readonly name: string,
    private readonly process: WorkerProcess,
  ) {}

  static async start(name: string, env: NodeJS.ProcessEnv): Promise<DrillWorker> {
    const child = fork(file, {
      env: { ...process.env, ...env, DRILL_NAME: name },
      execArgv: ['--enable-source-maps'],
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    });
    // A stopped process would not even notice that the drill is gone.
    const kill = () => child.kill('SIGKILL');
    process.once('exit', kill);
    child.once('exit', () => process.off('exit', kill));
    const worker = new DrillWorker(name, new WorkerProcess(child));
    await worker.process.waitFor('ready', { timeoutMs: 60_000 });
    return worker;
  }

  get pid(): number {
    return this.process.pid;
  }

  order(order: Omit<Order, 'call'>): Call {
    const call = `${order.method}-${++this.calls}`;
    this.process.send('order', { ...order, call } satisfies Order);
    return new Call(call, this.process);
  }

  /** SIGSTOP: with all its timers and sockets. */
  stop(): void {
    this.process.pause();
  }

  /** SIGCONT */
  goOn(): void {
    this.process.resume();
  }

  async kill(): Promise<void> {
    await this.process.kill();
  }
}

/** A call that a worker was told to make. */
export class Call {
  private readonly ending: Promise<Ended>;

  constructor(
    private readonly name: string,
    private readonly process: WorkerProcess,
  ) {
    this.ending = process.waitFor<Ended>(`${name} ended`, { timeoutMs: 120_000 });
    this.ending.catch(() => undefined); // told to whoever awaits it
  }

  granted(): Promise<Granted> {
    return this.next(`${this.name} granted`);
  }

  wrote<T extends Wrote>(): Promise<T> {
    return this.next(`${this.name} wrote`);
  }

  refused(): Promise<Refused> {
    return this.next(`${this.name} refused`);
  }

  /** The signal of its lease was aborted. */
  aborted(): Promise<void> {
    return this.next(`${this.name} aborted`);
  }

  state(): Promise<string> {
    return this.next(`${this.name} state`);
  }

  pausedAt(point: PausePoint | `write ${number}`): Promise<void> {
    return this.next(`at ${this.name} ${point}`);
  }

  passOn(point: PausePoint | `write ${number}`): void {
    this.process.openGate(`${this.name} ${point}`);
  }

  ended(): Promise<Ended> {
    return this.ending;
  }

  /** The next message of this name; where the call ends without it, the error says how it ended. */
  private next<T>(message: string): Promise<T> {
    const wanted = this.process.waitFor<T>(message);
    const missed = this.ending.then(({ error }): never => {
      const how = error ? `with ${error.code}: ${error.message}` : 'without an error';
      throw new Error(`no message '${message}': the call ended ${how}`);
    });
    return Promise.race([wanted, missed]);
  }
}
