import path from 'node:path';
import { eventually } from '../support/gate.js';
import { TcpProxy } from '../support/proxy.js';
import { forkWorker, type WorkerProcess } from '../support/workers.js';
import type { HistoryFile } from './history.js';
import type { Random } from './random.js';
import type { WorkerSettings } from './settings.js';

const WORKER = new URL('./worker.ts', import.meta.url);
const SHIM = new URL('./clock-shim.mjs', import.meta.url).href;

/** A place in the crew: a worker process, another one after each restart, and its own proxies to both servers. */
export class Member {
  process!: WorkerProcess;
  who = '';
  ready: Promise<unknown> = Promise.resolve();
  expected = false;
  gone = true;
  private incarnation = 0;

  constructor(
    readonly index: number,
    readonly redis: TcpProxy,
    readonly database: TcpProxy,
    private readonly folder: string,
    private readonly seed: number,
    private readonly isControl: boolean,
    private readonly history: HistoryFile,
    private readonly onEnd: (member: Member) => void,
  ) {}

  start(): void {
    const incarnation = ++this.incarnation;
    const who = (this.who = `w${this.index}.${incarnation}`);
    const settings: WorkerSettings = {
      who,
      index: this.index,
      seed: (this.seed * 1_000 + this.index) * 1_000 + incarnation,
      history: path.join(this.folder, `${who}.jsonl`),
      redisUrl: this.redis.url,
      databaseUrl: this.database.url,
      isControl: this.isControl,
    };
    const worker = forkWorker(WORKER, [JSON.stringify(settings)], {
      NODE_OPTIONS: `--import ${SHIM} --disable-warning=ExperimentalWarning`,
    });
    this.process = worker;
    this.expected = this.gone = false;
    this.ready = worker.waitFor('ready', { timeoutMs: 60_000 });
    this.ready.catch(() => undefined);
    void worker.exited.then(({ code, signal }) => {
      const how = `${signal ?? code}${this.expected ? '' : ` ${worker.stderr.slice(-600)}`}`;
      this.history.note({ e: 'exit', worker: who, expected: this.expected, how });
      this.gone = true;
      this.onEnd(this);
    });
  }

  /** Ends it as a crash does. */
  async kill(): Promise<void> {
    this.expected = true;
    await this.process.kill();
  }

  /** Asks it to end as an application does; after that, makes sure. */
  async shutDown(): Promise<void> {
    this.expected = true;
    this.process.send('shut down');
    const impatience = setTimeout(() => void this.process.kill(), 30_000);
    const { code } = await this.process.exited;
    clearTimeout(impatience);
    if (code !== 0) this.history.note({ e: 'crash', error: `a shutdown ended with ${code}` });
  }
}

/** All workers, kept alive: one that ends is replaced. */
export class Crew {
  readonly members: Member[] = [];
  private closed = false;

  static async start(options: {
    size: number;
    folder: string;
    seed: number;
    isControl: boolean;
    redisUrl: string;
    databaseUrl: string;
    history: HistoryFile;
  }): Promise<Crew> {
    const crew = new Crew();
    for (let index = 0; index < options.size; index++) {
      const member = new Member(
        index,
        await TcpProxy.start(options.redisUrl),
        await TcpProxy.start(options.databaseUrl),
        options.folder,
        options.seed,
        options.isControl,
        options.history,
        (ended) => {
          if (!crew.closed) ended.start();
        },
      );
      crew.members.push(member);
      member.start();
    }
    process.on('exit', () => crew.members.forEach((member) => void member.process.kill()));
    await crew.allReady();
    return crew;
  }

  /** A worker that is up. */
  pick(random: Random): Member {
    return random.pick(this.members);
  }

  /** Resolves once every worker is up, those included that take the place of others meanwhile. */
  async allReady(timeoutMs = 60_000): Promise<void> {
    await eventually(
      async () => {
        for (const member of this.members) await member.ready;
        return this.members.every(({ gone }) => !gone);
      },
      { timeoutMs },
    );
  }

  /** The proxies keep what they saw; it is not needed. */
  forget(): void {
    for (const { redis, database } of this.members) {
      redis.forget();
      database.forget();
    }
  }

  async close(): Promise<void> {
    this.closed = true;
    for (const member of this.members) {
      member.expected = true;
      if (!member.gone) await member.kill();
      await member.redis.stop();
      await member.database.stop();
    }
  }
}
