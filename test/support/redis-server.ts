import { readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { Redis } from 'ioredis';
import { freePort, startRedis, temporaryFolder } from '../../scripts/services.mjs';

/**
 * A Redis server of a test's own, to be frozen, killed and brought back. It keeps its port over restarts, and writes its
 * data to disk only when told to.
 */
export class RedisServer {
  private isFrozen = false;

  private constructor(
    readonly port: number,
    private readonly dir: string,
    private readonly args: string[],
    private server: Awaited<ReturnType<typeof startRedis>>,
  ) {}

  /** `args` are settings, for example `['--maxmemory', '2mb', '--maxmemory-policy', 'noeviction']`. */
  static async start(args: string[] = []): Promise<RedisServer> {
    const port = await freePort();
    const dir = temporaryFolder('redis');
    return new RedisServer(port, dir, args, await startRedis({ port, dir, args }));
  }

  get url(): string {
    return `redis://127.0.0.1:${this.port}/0`;
  }

  /** Its process id at the moment; another one after each restart. */
  get pid(): number {
    return this.server.pid!;
  }

  /** Whether it runs and is not frozen. */
  get answers(): boolean {
    return this.server.running() && !this.isFrozen;
  }

  /** Freezes the process: connections stay open and nothing answers. */
  pause(): void {
    this.isFrozen = true;
    process.kill(this.pid, 'SIGSTOP');
  }

  resume(): void {
    this.isFrozen = false;
    process.kill(this.pid, 'SIGCONT');
  }

  /** Ends the process as a crash does: what no dump holds is lost. */
  async kill(): Promise<void> {
    this.isFrozen = false;
    await this.server.stop('SIGKILL');
  }

  /**
   * Ends the process if it still runs, and starts it again on the same port: with its data of that moment (after a
   * `kill()`: with the last dump, if any), or with none, or with that of an older dump.
   */
  async restart({ empty = false, dump }: { empty?: boolean; dump?: Buffer } = {}): Promise<void> {
    if (this.server.running()) {
      this.resume();
      if (!empty && !dump) await this.saveDump();
      await this.kill();
    }
    if (empty) await rm(this.dumpFile, { force: true });
    if (dump) await writeFile(this.dumpFile, dump);
    this.server = await startRedis({ port: this.port, dir: this.dir, args: this.args });
  }

  /** All its data, to come back to with `restart({ dump })`. */
  async saveDump(): Promise<Buffer> {
    await this.command('SAVE');
    return readFile(this.dumpFile);
  }

  /** Runs one command on a connection of its own. */
  async command(name: string, ...args: (string | number)[]): Promise<unknown> {
    const client = new Redis(this.url, { lazyConnect: true, retryStrategy: () => null });
    client.on('error', () => undefined); // told by the rejection
    try {
      await client.connect();
      return await client.call(name, ...args);
    } finally {
      client.disconnect();
    }
  }

  async stop(): Promise<void> {
    await this.kill();
    await rm(this.dir, { recursive: true, force: true });
  }

  private get dumpFile(): string {
    return path.join(this.dir, 'dump.rdb');
  }
}
