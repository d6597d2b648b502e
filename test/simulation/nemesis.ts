import type { Application, Surroundings } from './application.js';

/** Does one bad thing at a time. */
export class Nemesis {
  private isOver = false;

  constructor(
    private readonly around: Surroundings,
    private readonly keys: readonly string[],
    private readonly apps: () => readonly Application[],
    private readonly start: () => Application,
  ) {}

  /** Nothing bad begins any more. */
  retire(): void {
    this.isOver = true;
  }

  strike(): void {
    if (this.isOver) return;
    const { random } = this.around.world;
    random.pick(
      this.pause,
      this.pause,
      this.crash,
      this.stop,
      this.pause,
      this.cutOffStore,
      this.cutOffStore,
      this.cutOffDatabase,
      this.freezeStore,
      this.freezeDatabase,
      this.loseStore,
      this.loseCounters,
      this.replaceStore,
      this.replaceStore,
      this.evict,
      this.restoreStore,
      this.moveWallClock,
      this.crashDatabase,
      this.endSessions,
    )();
  }

  private readonly pause = (): void => {
    const app = this.pick();
    if (!app) return;
    const ms = this.around.world.random.between(10, 3_000);
    this.note('pauses', { app: app.name, ms });
    app.process.pause(ms);
  };

  private readonly crash = (): void => {
    this.pick()?.crash();
    this.later(() => this.start());
  };

  /** SIGTERM: drains, and is replaced. */
  private readonly stop = (): void => {
    const app = this.pick();
    if (!app) return;
    const { world, checker, storeTimeoutMs } = this.around;
    const drainMs = world.random.pick(0, 200, 2_000);
    const { process } = app;
    const [startedAt, pausedMs] = [process.now(), process.pausedMs];
    app.isStopping = true;
    this.note('stops', { app: app.name, drainMs });
    void app.keeper.stop(drainMs).then(() => {
      const took = process.now() - startedAt - 1.1 * (process.pausedMs - pausedMs);
      checker.demand(
        app.keeper.heldLeases.length === 0,
        'I8',
        () => `${app.name} has stopped and holds leases`,
      );
      checker.demand(
        took <= drainMs + storeTimeoutMs + 50,
        'I8',
        () => `${app.name} took ${took} ms to stop`,
      );
    });
    this.later(() => this.start());
  };

  private readonly cutOffStore = (): void => {
    const app = this.pick();
    if (app) this.around.storeHost.cut(app.process, this.duration('store out of reach', app));
  };

  private readonly cutOffDatabase = (): void => {
    const app = this.pick();
    if (app) this.around.database.host.cut(app.process, this.duration('database out of reach', app));
  };

  private readonly freezeStore = (): void => this.around.storeHost.freeze(this.duration('store frozen'));
  private readonly freezeDatabase = (): void =>
    this.around.database.host.freeze(this.duration('database frozen'));
  private readonly loseStore = (): void => this.around.store.loseEverything();

  /** A new server whose clock is behind: its generations begin below what the database has seen. */
  private readonly replaceStore = (): void => {
    this.around.store.loseEverything();
    this.around.store.moveWallClock(-3_600_000);
  };

  private readonly loseCounters = (): void => this.around.store.loseCounters();
  private readonly evict = (): void => this.around.store.evict(this.around.world.random.pick(...this.keys));

  private readonly restoreStore = (): void => {
    this.around.store.save();
    this.later(() => this.isOver || this.around.store.restore());
  };

  private readonly moveWallClock = (): void =>
    this.around.store.moveWallClock(this.around.world.random.pick(-3_600_000, -1_000, 1_000));

  private readonly crashDatabase = (): void => this.around.database.crash();

  /** An operator, a pooler or a network device ends connections. */
  private readonly endSessions = (): void => {
    const { database } = this.around;
    this.note('ends sessions');
    for (const session of [...database.sessions])
      if (this.around.world.random.chance(0.5)) session.terminate('terminated by an administrator');
  };

  private pick(): Application | undefined {
    const up = this.apps().filter((app) => app.isUp && !app.process.isPaused);
    return up.length > 0 ? this.around.world.random.pick(...up) : undefined;
  }

  private later(act: () => void): void {
    const { world } = this.around;
    world.after(world.random.between(0, 2_000), act);
  }

  private duration(what: string, app?: Application): number {
    const ms = this.around.world.random.between(10, 3_000);
    this.note(what, { app: app?.name, ms });
    return ms;
  }

  private note(what: string, facts: Record<string, unknown> = {}): void {
    this.around.checker.count(`nemesis: ${what}`);
    this.around.checker.record('****', what, facts);
  }
}
