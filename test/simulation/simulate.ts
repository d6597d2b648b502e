import { Application, type Surroundings } from './application.js';
import { Checker, type Violation } from './checker.js';
import { Database } from './database.js';
import { Nemesis } from './nemesis.js';
import { FAIR_WEATHER, Host, Network } from './network.js';
import { type Plant, plantInKeeper } from './plants.js';
import { StoreServer } from './store-server.js';
import { type Job, runJob } from './worker.js';
import { Spinning, World } from './world.js';

export interface RunResult {
  readonly seed: number;
  readonly violations: readonly Violation[];
  /** What happened; only with `isRecording`. */
  readonly history: readonly string[];
  /** Events that happened: timers and messages. */
  readonly steps: number;
  readonly counts: Readonly<Record<string, number>>;
  /** The same for the same seed. */
  readonly fingerprint: string;
}

/** One run: a few applications work on a few keys while things go wrong; then nothing does any more, and all must heal. */
export async function simulate(
  seed: number,
  { plant, isRecording = false }: { plant?: Plant; isRecording?: boolean } = {},
): Promise<RunResult> {
  const world = new World(seed);
  const checker = new Checker(world, isRecording);
  const takeOut = plantInKeeper(plant);
  // Jitter is part of what the seed decides. Owners are random as well, and nothing depends on what they are.
  const { random } = Math;
  Math.random = world.random.next;
  try {
    await new Run(world, checker, plant).run();
  } catch (error) {
    if (!(error instanceof Spinning)) throw error;
    checker.violated('I11', `something is done again and again, at ${world.now} ms: ${error.message}`);
  } finally {
    Math.random = random;
    takeOut();
  }
  const { violations, history, counts } = checker;
  const fingerprint = `${world.steps} ${world.now} ${JSON.stringify(counts)}`;
  return { seed, violations, history, steps: world.steps, counts, fingerprint };
}

class Run {
  private readonly network: Network;
  private readonly storeHost: Host;
  private readonly around: Surroundings;
  private readonly keys: string[];
  private readonly operations: string[];
  private readonly apps: Application[] = [];
  private readonly ttlMs: number;
  private readonly running = new Map<string, Application>();
  private jobs = 0;
  private started = 0;

  constructor(
    private readonly world: World,
    private readonly checker: Checker,
    plant: Plant | undefined,
  ) {
    const { random } = world;
    this.network = new Network(world);
    this.storeHost = new Host(world);
    this.ttlMs = random.pick(300, 600, 1_200);
    this.keys = random.chance(0.4) ? ['a'] : ['a', 'b'];
    this.operations = Array.from({ length: random.whole(1, 5) }, (_, i) => `op${i}`);
    const database = new Database(world, checker, plant);
    database.isRelaxed = random.chance(0.25);
    checker.isI2Off = database.isRelaxed;
    // What 'relaxed' may lose is what was activated just before.
    database.onActivation = () => {
      if (database.isRelaxed && random.chance(0.2))
        world.after(random.between(0, 30), () => database.crash());
    };
    const store = new StoreServer(world, checker, plant, {
      offsetUs: 0,
      standsStill: random.chance(0.3),
    });
    this.around = {
      world,
      checker,
      network: this.network,
      storeHost: this.storeHost,
      store,
      database,
      storeTimeoutMs: random.pick(100, 200, 500),
    };
    for (let i = random.whole(2, 3); i > 0; i--) this.start(random.chance(database.isRelaxed ? 0.6 : 0.3));
    // Whoever still believes in a lease of a key that somebody else gets now is wrong.
    store.onGrant = (key) => {
      for (const app of this.apps)
        for (const lease of app.keeper.heldLeases) if (lease.key === key) app.demandValid(lease);
    };
  }

  async run(): Promise<void> {
    const { world } = this;
    const { random } = world;
    const endsAt = random.between(2_000, 6_000);
    this.network.weather = {
      lostRequest: random.pick(0, 0.02, 0.1),
      lostReply: random.pick(0, 0.02, 0.1),
      doubled: random.pick(0, 0.05, 0.2),
      broken: random.pick(0, 0.02, 0.1),
      delayMs: random.pick(2, 10, 50),
      late: { chance: random.pick(0, 0.02, 0.1), ms: 2 * this.ttlMs },
    };
    for (let i = random.whole(5, 40); i > 0; i--)
      world.after(random.between(0, endsAt), () => this.sendJob());
    const nemesis = new Nemesis(
      this.around,
      this.keys,
      () => this.apps,
      () => this.start(),
    );
    for (let i = random.whole(0, 6); i > 0; i--)
      world.after(random.between(0, endsAt), () => nemesis.strike());
    await this.until(endsAt);
    nemesis.retire();
    for (const phase of ['heal', 'finalRound', 'comeToRest'] as const) {
      if (this.checker.violations.length > 0) return;
      await this[phase]();
    }
  }

  private start(isSleepwalking = false): Application {
    const app = new Application(`P${++this.started}`, this.around, isSleepwalking);
    this.apps.push(app);
    this.checker.record(app.name, isSleepwalking ? 'starts, sleepwalking' : 'starts');
    return app;
  }

  private until(ms: number, isOver = () => false): Promise<void> {
    return this.world.run(ms, () => this.checker.violations.length > 0 || isOver());
  }

  private get upApps(): Application[] {
    return this.apps.filter((app) => app.isUp);
  }

  private send(app: Application, job: Job, onBody?: () => void): Promise<boolean> {
    this.running.set(job.name, app);
    return runJob(app, job, this.checker, onBody).finally(() => this.running.delete(job.name));
  }

  private sendJob(): void {
    const { random } = this.world;
    const up = this.upApps;
    if (up.length === 0) return;
    const keys = random.chance(0.3) ? this.keys : [random.pick(...this.keys)];
    const activate = random.chance(0.15) ? 'write' : 'start';
    const app = random.pick(...up);
    const job: Job = {
      name: `${app.name}/${++this.jobs}`,
      keys,
      options: {
        ttlMs: this.ttlMs,
        waitMs: random.pick(0, 100, 1_000, 5_000),
        onBusy: random.pick('fail', 'skip'),
        onUncertain: random.pick('stop', 'withhold', 'reconcile'),
        holdAtLeastMs: random.chance(0.1) ? random.whole(0, 500) : 0,
        activate,
      },
      operation: random.chance(0.4) ? random.pick(...this.operations) : undefined,
      abortAfterMs: random.chance(0.1) ? random.between(0, 500) : undefined,
      dawdles: app.isSleepwalking ? random.pick(0.1, 1, 3) : random.pick(0, 0.1, 1),
      writes: random.whole(0, 2),
      throws: random.chance(0.05),
      leavesWork: random.chance(0.1),
    };
    this.world.after(0, () => void this.send(app, job), app.process);
    if (job.operation === undefined || !random.chance(0.5)) return;
    // Delivered twice, and this time to whoever holds the other key: only the receipt is between the two.
    const other = random.pick(...up);
    const again = { ...job, name: `${other.name}/${++this.jobs}`, keys: [random.pick(...this.keys)] };
    this.world.after(random.between(0, 20), () => void this.send(other, again), other.process);
  }

  /** The weather is fair again, and all that was going on must come to an end. */
  private async heal(): Promise<void> {
    this.network.weather = FAIR_WEATHER;
    this.storeHost.heal();
    this.around.database.host.heal();
    for (const app of this.apps) {
      app.process.pausedUntil = 0;
      if (app.isSleepwalking && !app.process.isDead) app.crash(1);
    }
    this.around.database.onActivation = () => undefined;
    this.checker.record('----', 'from here on nothing goes wrong any more');
    const isOver = (): boolean => [...this.running.values()].every((app) => app.process.isDead);
    await this.until(this.world.now + 60_000, isOver);
    this.demand(isOver(), 'I9', () => `${[...this.running.keys()].join(', ')} never ended`);
  }

  /** Every application wants every key, and every operation is sent again: all of it must work, and in turn. */
  private async finalRound(): Promise<void> {
    // Late messages arrive first: the activation of a grant that is dead by now could still put a living one out.
    await this.until(this.world.now + 5_000);
    for (let i = this.upApps.length; i < 2; i++) this.start();
    const order: string[] = [];
    const open = new Set<string>();
    const failed: string[] = [];
    const [key] = this.keys;
    const final = (
      app: Application,
      keys: readonly string[],
      operation?: string,
      isCounted = false,
    ): void => {
      const name = `${app.name}/final${++this.jobs}`;
      open.add(name);
      const job = {
        name,
        keys,
        options: { ttlMs: this.ttlMs, waitMs: 30_000 },
        operation,
        dawdles: 0.1,
        writes: 1,
        throws: false,
        leavesWork: false,
      };
      void this.send(app, job, isCounted ? () => order.push(app.name) : undefined).then((isDone) => {
        open.delete(name);
        if (!isDone) failed.push(name);
      });
    };
    const apps = this.upApps;
    for (const operation of this.operations) final(this.world.random.pick(...apps), this.keys, operation);
    await this.until(this.world.now + 60_000, () => open.size === 0);
    for (let i = 0; i < FINAL_CALLS; i++) for (const app of apps) final(app, [key!], undefined, true);
    await this.until(this.world.now + 60_000, () => open.size === 0);
    this.demand(failed.length === 0, 'I7', () => `${failed.join(', ')} failed after everything had healed`);
    this.demand(
      open.size === 0,
      'I9',
      () => `${[...open].join(', ')} never ended after everything had healed`,
    );
    for (const operation of this.operations)
      this.demand(this.checker.isDone(operation), 'I10', () => `${operation} was never done`);
    this.demandFair(order, apps.length);
  }

  /** While all of them wait, no application is served much more often than another. */
  private demandFair(order: readonly string[], apps: number): void {
    const whileAllWait = order.slice(0, apps * (FINAL_CALLS - 2));
    const turns = new Map<string, number>();
    for (const name of whileAllWait) turns.set(name, (turns.get(name) ?? 0) + 1);
    this.demand(
      [...turns.values()].every((count) => count <= FINAL_CALLS - 1),
      'I9',
      () => `the turns went to ${order.join(' ')}`,
    );
  }

  /** Nothing may be left: no lease, no timer, no listener. */
  private async comeToRest(): Promise<void> {
    await this.until(this.world.now + 10 * this.ttlMs + 10_000);
    const { store } = this.around;
    this.demand(store.heldKeys.length === 0, 'I8', () => `${store.heldKeys.join(', ')} is held for ever`);
    this.demand(store.listening === 0, 'I11', () => `${store.listening} keys are listened to for ever`);
    for (const { process, keeper, name } of this.apps) {
      if (process.isDead) continue;
      this.demand(keeper.heldLeases.length === 0, 'I11', () => `${name} still has leases`);
      this.demand(process.pending === 0, 'I11', () => `${name} still has ${process.pending} timers`);
    }
  }

  private demand(holds: boolean, invariant: Violation['invariant'], says: () => string): void {
    // What is left undone because a violation has ended the run is none itself.
    if (this.checker.violations.length === 0) this.checker.demand(holds, invariant, says);
  }
}

const FINAL_CALLS = 6;
