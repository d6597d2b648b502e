import { Injectable } from '@nestjs/common';
import { Cron, ScheduleModule } from '@nestjs/schedule';
import { InjectRepository } from '@nestjs/typeorm';
import { FencedWrite, Leased } from 'nestjs-fencing';
import { Column, Entity, PrimaryGeneratedColumn, type Repository } from 'typeorm';
import { startFencedApp } from './support/fenced-app.js';
import { tell, told } from './support/worker-side.js';

/* One of two pods with the same cron job; the clock of one may be shifted. */

const [pod, run] = process.argv.slice(2) as [string, string];

@Entity('cron_run')
class CronRun {
  @PrimaryGeneratedColumn() id!: number;
  @Column('text') run!: string;
  @Column('text') pod!: string;
  @Column('text') kind!: string;
  @Column('int') tick!: number;
}

@Injectable()
class Jobs {
  constructor(@InjectRepository(CronRun) private readonly runs: Repository<CronRun>) {}

  @Cron('* * * * * *')
  async onTick(): Promise<void> {
    // The second that it is for; a timer may be some milliseconds early.
    const tick = Math.floor((Date.now() + 100) / 1_000);
    await this.plain(tick);
    await this.once(tick);
    await tell('tick', tick);
  }

  @Leased('cron-plain')
  async plain(tick: number): Promise<void> {
    await this.write(tick);
  }

  @FencedWrite()
  async write(tick: number): Promise<void> {
    await this.runs.insert({ run, pod, tick, kind: 'plain' });
  }

  @Leased('cron-once')
  async once(tick: number): Promise<void> {
    await this.writeOnce(tick);
  }

  @FencedWrite({ operation: (tick: number) => `${run}:${tick}` })
  async writeOnce(tick: number): Promise<void> {
    await this.runs.insert({ run, pod, tick, kind: 'once' });
  }
}

const app = await startFencedApp({
  imports: [ScheduleModule.forRoot()],
  entities: [CronRun],
  providers: [Jobs],
  dataSource: { synchronize: false },
});
await told('stop');
await app.close();
await tell('stopped');
