import { FencingError } from 'nestjs-fencing';
import type { EntityManager } from 'typeorm';
import type { FencedApp } from './fenced-app.js';
import { eventually } from './gate.js';

/** Leased calls with a fenced write, without pause, on few keys, into the journal of a `FaultBench`. */
export class SteadyLoad {
  readonly errors: unknown[] = [];
  /** What the slowest call took, successful or not. */
  slowestMs = 0;
  private readonly accepted = new Map<string, number>();
  private stopped = false;
  private readonly loops: Promise<void>[];

  constructor(
    apps: readonly FencedApp[],
    private readonly keys: readonly string[],
  ) {
    this.loops = apps.flatMap((app) => keys.map((key) => this.loop(app, key)));
  }

  /** Errors that are none of the package's own. */
  get strangeErrors(): unknown[] {
    return this.errors.filter((error) => !(error instanceof FencingError));
  }

  /** Resolves when so many calls have been accepted since now: of any key, or of each that is named. */
  async goesOn(calls = 30, keys?: readonly string[]): Promise<void> {
    const counts = () => (keys ? keys.map((key) => this.acceptedOf([key])) : [this.acceptedOf(this.keys)]);
    const before = counts();
    await eventually(() => counts().every((count, i) => count >= before[i]! + calls), { timeoutMs: 40_000 });
  }

  async stop(): Promise<void> {
    this.stopped = true;
    await Promise.all(this.loops);
  }

  private acceptedOf(keys: readonly string[]): number {
    return keys.reduce((sum, key) => sum + (this.accepted.get(key) ?? 0), 0);
  }

  private async loop(app: FencedApp, key: string): Promise<void> {
    while (!this.stopped) {
      const since = performance.now();
      try {
        await app.fencing.run(key, { ttlMs: 2_000, waitMs: 4_000 }, async ({ generation, owner }) => {
          await app.fencing.write({}, (manager: EntityManager) =>
            manager.query(
              `WITH report AS (
                 INSERT INTO report AS r (key, text, version) VALUES ($1, '', 1)
                 ON CONFLICT (key) DO UPDATE SET version = r.version + 1 RETURNING version
               )
               INSERT INTO journal (key, version, generation, owner, text) SELECT $1, version, $2, $3, '' FROM report`,
              [key, generation, owner],
            ),
          );
          this.accepted.set(key, this.acceptedOf([key]) + 1);
        });
      } catch (error) {
        this.errors.push(error);
      }
      this.slowestMs = Math.max(this.slowestMs, performance.now() - since);
      // Lets timers and sockets have their turn also when every call fails at once.
      await new Promise((resolve) => setImmediate(resolve));
    }
  }
}
