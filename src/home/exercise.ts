import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { Inject, Injectable, Logger, type OnModuleDestroy } from '@nestjs/common';
import { type FencingEvent, FencingService, LeaseBusyError } from 'nestjs-fencing';
import { BehaviorSubject, Subject } from 'rxjs';
import { DataSource } from 'typeorm';
import {
  customerOf,
  type Figures,
  type Order,
  type RunRecord,
  type Side,
  type Step,
  type Told,
  TTL_MS,
  type Worker,
} from './exercise-record.js';

/** What happens in the worker processes, for the board of this one. */
export const workerEvents = new Subject<FencingEvent>();

/** How a worker is started: a token, so that tests run it from its source. */
export const WORKER = Symbol('exercise worker');
export const worker = {
  file: fileURLToPath(new URL('./exercise.worker.js', import.meta.url)),
  execArgv: ['--enable-source-maps'],
};

const SIDES: readonly Side[] = ['lock', 'fence'];
const LONGEST_STEP_MS = 60_000;

/** Runs the exercise with two worker processes of its own, on the servers of the application. One run at a time. */
@Injectable()
export class Exercise implements OnModuleDestroy {
  readonly record = new BehaviorSubject<RunRecord>({ state: 'idle', steps: [], atMs: 0, ttlMs: TTL_MS });
  private readonly logger = new Logger('Exercise');
  private readonly children = new Set<ChildProcess>();
  private running: Promise<void> | undefined;
  private began = 0;
  private steps: Step[] = [];

  constructor(
    private readonly fencing: FencingService,
    private readonly database: DataSource,
    @Inject(WORKER) private readonly worker: { file: string; execArgv: string[] },
  ) {}

  /** Begins a run, unless one is under way. Resolves at its end. */
  run(): Promise<void> {
    this.running ??= this.play().finally(() => (this.running = undefined));
    return this.running;
  }

  async onModuleDestroy(): Promise<void> {
    for (const child of this.children) child.kill('SIGKILL');
    await this.running;
    this.record.complete();
  }

  private async play(): Promise<void> {
    this.steps = [];
    this.publish('starting');
    try {
      if (process.platform === 'win32')
        throw new Error('It stops a process with SIGSTOP, which Windows lacks.');
      // Two instances of this application would play on one report.
      await this.fencing.run('exercise', { waitMs: 0 }, () => this.playAlone());
      this.publish('done');
    } catch (error) {
      const problem =
        error instanceof LeaseBusyError
          ? 'Another instance of this application plays it now.'
          : String((error as Error).message);
      this.logger.warn(`The exercise broke off: ${problem}`);
      this.publish('failed', problem);
    } finally {
      for (const child of this.children) child.kill('SIGKILL');
    }
  }

  private async playAlone(): Promise<void> {
    await this.tidyUp();
    for (const side of SIDES) for (const cents of [100, 200, 300]) await this.addEntry(side, cents);
    const [A, B] = await Promise.all([this.start('A'), this.start('B')]);
    this.began = performance.now();
    this.publish('running');

    A.send({ order: 'rebuild', waits: true });
    await A.told('read');
    A.child.kill('SIGSTOP');
    this.step({ kind: 'stopped', who: 'A' });
    for (const side of SIDES) await this.addEntry(side, 400);
    this.step({ kind: 'added' });

    // It waits until the leases of A are over.
    B.send({ order: 'rebuild', waits: false });
    await B.told('ended');

    A.send({ order: 'write' });
    A.child.kill('SIGCONT');
    this.step({ kind: 'resumed', who: 'A' });
    await A.told('ended');
    for (const side of SIDES) this.step({ kind: 'found', side, ...(await this.report(side)) });
    await this.tidyUp();
  }

  private async start(who: Worker) {
    const child = fork(this.worker.file, {
      execArgv: this.worker.execArgv,
      env: { ...process.env, NODE_OPTIONS: '' },
      serialization: 'advanced',
    });
    this.children.add(child);
    // A stopped process would not even notice that this one is gone.
    const kill = () => child.kill('SIGKILL');
    process.once('exit', kill);
    child.once('exit', () => {
      process.off('exit', kill);
      this.children.delete(child);
    });
    const seen = new Set<string>();
    child.on('message', (message: Told) => {
      if (message.told === 'event') return workerEvents.next(message.event);
      if (message.told === 'ready') return void seen.add('ready');
      const { told, ...facts } = message;
      seen.add(`${told} ${facts.side}`);
      this.step({ kind: told, who, ...facts });
    });
    const until = async (...messages: string[]) => {
      const late = AbortSignal.timeout(LONGEST_STEP_MS);
      while (!messages.every((message) => seen.has(message))) {
        if (!child.connected) throw new Error(`Worker ${who} ended early.`);
        await once(child, 'message', { signal: late });
      }
    };
    await until('ready');
    return {
      child,
      send: (order: Order) => child.send(order),
      told: (what: Told['told']) => until(...SIDES.map((side) => `${what} ${side}`)),
    };
  }

  private step(step: Omit<Step, 'atMs'>): void {
    this.steps.push({ atMs: this.atMs, ...step });
    this.publish('running');
  }

  private get atMs(): number {
    return this.steps.length === 0 && this.record.value.state === 'starting'
      ? 0
      : Math.round(performance.now() - this.began);
  }

  private publish(state: RunRecord['state'], problem?: string): void {
    const atMs = state === 'starting' ? 0 : this.atMs;
    this.record.next({ state, steps: [...this.steps], atMs, ttlMs: TTL_MS, problem });
  }

  private async addEntry(side: Side, cents: number): Promise<void> {
    const row = [customerOf(side), cents];
    await this.database.query('INSERT INTO ledger_entry (customer_id, amount_cents) VALUES ($1, $2)', row);
  }

  private async report(side: Side): Promise<{ figures: Figures; generation: number }> {
    const [row] = await this.database.query<[{ entries: number; total: string; generation: string }]>(
      'SELECT entries, total_cents AS total, generation FROM report WHERE customer_id = $1',
      [customerOf(side)],
    );
    const { entries, total, generation } = row;
    return { figures: { entries, totalCents: total }, generation: Number(generation) };
  }

  /** Nothing of a run stays behind, not even of one that broke off. */
  private async tidyUp(): Promise<void> {
    for (const table of ['ledger_entry', 'report'])
      await this.database.query(`DELETE FROM ${table} WHERE customer_id = ANY($1)`, [SIDES.map(customerOf)]);
  }
}
