import { type ChildProcess, fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const loader = new URL('./swc-loader.mjs', import.meta.url).href;

/** What both sides send: a name, and anything JSON can carry. */
export interface Message {
  readonly name: string;
  readonly payload?: unknown;
}

/**
 * Starts a real process that runs a TypeScript file, with decorators and `nestjs-fencing` as in Jest:
 *
 *     const worker = forkWorker(new URL('./holder.worker.ts', import.meta.url), ['report:42']);
 *     const { generation } = await worker.waitFor<{ generation: number }>('acquired');
 *     worker.pause();
 *
 * The other side uses `worker-side.ts`.
 */
export function forkWorker(file: URL, args: string[] = [], env: NodeJS.ProcessEnv = {}): WorkerProcess {
  return new WorkerProcess(
    fork(fileURLToPath(file), args, {
      env: { ...process.env, NODE_OPTIONS: '', ...env },
      execArgv: ['--enable-source-maps', '--import', loader],
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    }),
  );
}

export interface Exit {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

interface Waiter {
  readonly name: string;
  readonly take: (payload: unknown) => void;
}

export class WorkerProcess {
  /** Resolves when the process has ended and all that it printed is in `stdout` and `stderr`. */
  readonly exited: Promise<Exit>;

  stdout = '';
  stderr = '';

  private readonly unread: Message[] = [];
  private readonly waiting: Waiter[] = [];

  constructor(private readonly child: ChildProcess) {
    child.stdout!.on('data', (data) => (this.stdout += String(data)));
    child.stderr!.on('data', (data) => (this.stderr += String(data)));
    child.on('message', (message) => this.received(message as Message));
    const closed = new Promise<Exit>((resolve) => {
      child.once('close', (code, signal) => resolve({ code, signal }));
    });
    const disconnected = new Promise((resolve) => child.once('disconnect', resolve)); // the last message is in
    this.exited = Promise.all([closed, disconnected]).then(([exit]) => exit);
  }

  get pid(): number {
    return this.child.pid!;
  }

  /**
   * The payload of the next message of this name, one that came earlier and was not yet asked for included. Rejects, with
   * what the worker printed, when it ends first or nothing comes in time.
   */
  waitFor<T = unknown>(name: string, { timeoutMs = 60_000 } = {}): Promise<T> {
    const index = this.unread.findIndex((message) => message.name === name);
    if (index >= 0) return Promise.resolve(this.unread.splice(index, 1)[0]!.payload as T);

    return new Promise<T>((resolve, reject) => {
      const fail = (reason: string) => {
        this.waiting.splice(this.waiting.indexOf(waiter), 1);
        const others = this.unread.map((message) => message.name).join(', ') || 'none';
        reject(new Error(`no message '${name}': ${reason}; unread messages: ${others}\n${this.stderr}`));
      };
      const timer = setTimeout(() => fail(`none came in ${timeoutMs} ms`), timeoutMs);
      const waiter: Waiter = {
        name,
        take: (payload) => {
          clearTimeout(timer);
          resolve(payload as T);
        },
      };
      this.waiting.push(waiter);
      void this.exited.then(({ code, signal }) => {
        if (!this.waiting.includes(waiter)) return;
        clearTimeout(timer);
        fail(`the worker has ended (${signal ?? code})`);
      });
    });
  }

  /** What the worker gets from `told(name)`. */
  send(name: string, payload?: unknown): void {
    this.child.send({ name, payload } satisfies Message);
  }

  /** Waits until the worker stands at `gate(name)`. */
  async atGate(name: string): Promise<void> {
    await this.waitFor(`at ${name}`);
  }

  /** Lets it pass `gate(name)`, now or when it gets there. */
  openGate(name: string): void {
    this.send(`open ${name}`);
  }

  /** Stops the process, with all its timers and sockets, as a long garbage collection or a suspended machine does. */
  pause(): void {
    this.child.kill('SIGSTOP');
  }

  resume(): void {
    this.child.kill('SIGCONT');
  }

  /** Ends the process as a crash does; harmless when it has ended. */
  async kill(): Promise<Exit> {
    this.child.kill('SIGKILL');
    return this.exited;
  }

  private received(message: Message): void {
    const index = this.waiting.findIndex((waiter) => waiter.name === message.name);
    if (index < 0) this.unread.push(message);
    else this.waiting.splice(index, 1)[0]!.take(message.payload);
  }
}
