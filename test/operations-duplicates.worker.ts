import { Injectable } from '@nestjs/common';
import { InjectRepository } from '@nestjs/typeorm';
import { FencedWrite, Leased } from 'nestjs-fencing';
import { Column, Entity, PrimaryGeneratedColumn, type Repository } from 'typeorm';
import type { Answer, Round } from './operations-duplicates.e2e-spec.js';
import { startFencedApp } from './support/fenced-app.js';
import { tell, told } from './support/worker-side.js';

/* One of two processes that are sent the same operations at the same time. */

@Entity('duplicate_effect')
class Effect {
  @PrimaryGeneratedColumn() n!: number;
  @Column('text') operation!: string;
  @Column('int') amount!: number;
}

@Injectable()
class Counter {
  constructor(@InjectRepository(Effect) private readonly effects: Repository<Effect>) {}

  @Leased('{0}')
  async send(_key: string, operation: string, amount: number): Promise<number> {
    return this.count(operation, amount);
  }

  @FencedWrite({ operation: (operation: string) => operation })
  async count(operation: string, amount: number): Promise<number> {
    return (await this.effects.save({ operation, amount })).n;
  }
}

const app = await startFencedApp({
  entities: [Effect],
  providers: [Counter],
  poolSize: 10,
  dataSource: { synchronize: false },
});
const counter = app.get(Counter);
await tell('ready');
for (;;) {
  const round = await told<Round | null>('round');
  if (!round) break;
  const answers = await Promise.all(
    round.keys.map((key): Promise<Answer> =>
      counter.send(key, round.operation, round.amount).then(
        (n) => ({ n }),
        (error: { code?: string; message: string }) => ({ error: error.code ?? error.message }),
      ),
    ),
  );
  await tell('answers', answers);
}
await app.close();
