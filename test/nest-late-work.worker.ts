import { setTimeout as sleep } from 'node:timers/promises';
import { Injectable } from '@nestjs/common';
import { EventEmitter2, EventEmitterModule, OnEvent } from '@nestjs/event-emitter';
import { InjectDataSource } from '@nestjs/typeorm';
import { FencedWrite, FencingService, Leased } from 'nestjs-fencing';
import type { DataSource } from 'typeorm';
import { startFencedApp } from './support/fenced-app.js';
import { gate, tell } from './support/worker-side.js';

/*
 * A leased method that leaves work behind and returns at once, for nest-late-work.e2e-spec.ts. Runs under
 * --unhandled-rejections=strict: nobody awaits most of that work.
 */

const late = gate('late');
const outcomes: Record<string, unknown> = {};
const settled: Promise<unknown>[] = [];

@Injectable()
class Leaving {
  constructor(
    private readonly emitter: EventEmitter2,
    private readonly fencing: FencingService,
    @InjectDataSource() private readonly dataSource: DataSource,
  ) {}

  @Leased('left-behind')
  async leave(): Promise<number> {
    await this.write('in time');
    // 1. un-awaited, sent while the lease is held, and still under way when the method returns
    void this.write('un-awaited');
    // 2. un-awaited, long after
    void late.then(() => void this.write('after a while'));
    void late.then(() => void this.fencing.write({}, () => this.insert('by the service')));
    // 3. an event with an async listener
    this.emitter.emit('left');
    // 4. an interval
    let ticks = 0;
    const interval = setInterval(() => {
      void this.write('by an interval');
      if (++ticks === 3) clearInterval(interval);
    }, 20);
    // 5. somebody does await it, much later
    settled.push(late.then(() => this.write('awaited')).catch((error) => this.note('awaited', error)));
    // 6. a repository that is used outside of any fenced write stays what it is
    settled.push(late.then(() => this.fencing.current()?.state).then((state) => (outcomes.current = state)));
    // 7. work that takes a lease of its own, of another key and of the same
    settled.push(late.then(() => this.own()).then((generation) => (outcomes.own = generation)));
    return this.fencing.current()!.generation;
  }

  @OnEvent('left')
  async onLeft(): Promise<void> {
    await late;
    await this.write('by a listener').catch((error) => this.note('listener', error));
    outcomes.listenerOfItsOwn = await this.again();
    await this.write('by a listener, uncaught'); // Nest logs it
  }

  @Leased('another')
  async own(): Promise<number> {
    await this.write('under another lease');
    return this.fencing.current()!.generation;
  }

  @Leased('left-behind')
  async again(): Promise<number> {
    await this.write('under a new lease');
    return this.fencing.current()!.generation;
  }

  @FencedWrite()
  async write(text: string): Promise<void> {
    await sleep(text === 'in time' ? 0 : 100);
    await this.insert(text);
  }

  private async insert(text: string): Promise<void> {
    await this.dataSource.query('INSERT INTO late_work VALUES ($1)', [text]);
  }

  private note(name: string, error: unknown): void {
    outcomes[name] = (error as { code?: string }).code;
  }
}

const app = await startFencedApp({ imports: [EventEmitterModule.forRoot()], providers: [Leaving] });
await tell('returned', await app.get(Leaving).leave());
await late;
await Promise.all(settled);
while (outcomes.listenerOfItsOwn === undefined) await sleep(10);
await tell('outcomes', outcomes);
await gate('the end');
await app.close();
