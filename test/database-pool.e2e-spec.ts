import { randomUUID } from 'node:crypto';
import { Injectable } from '@nestjs/common';
import { InjectRepository } from '@nestjs/typeorm';
import { FencedWrite, FencingService, Leased } from 'nestjs-fencing';
import { Column, Entity, PrimaryColumn, type Repository } from 'typeorm';
import { poolOf } from './support/bare-fence.js';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { Barrier } from './support/gate.js';

@Entity('pool_entry')
class Entry {
  @PrimaryColumn('text') id!: string;
  @Column('text') text!: string;
}

@Injectable()
class Entries {
  /** Resolves once all calls of a test hold their lease. */
  barrier = new Barrier(1);

  constructor(@InjectRepository(Entry) private readonly entries: Repository<Entry>) {}

  @Leased('entry:{0}')
  async run(id: string): Promise<string> {
    await this.barrier.arrive();
    return this.write(id);
  }

  @FencedWrite()
  async write(id: string): Promise<string> {
    await this.entries.save({ id, text: 'outer' });
    return this.inner(id);
  }

  @FencedWrite()
  async inner(id: string): Promise<string> {
    await this.entries.update({ id }, { text: 'inner' });
    return this.operate(id);
  }

  @FencedWrite({ operation: (id: string) => `operation:${id}` })
  async operate(id: string): Promise<string> {
    await this.entries.update({ id }, { text: 'operated' });
    return (await this.entries.findOneByOrFail({ id })).text;
  }
}

/** Field report 12: the connections of the pool are all that there is, and nobody needs a second one. */
describe.each([1, 2])('with a pool of %i', (poolSize) => {
  let app: FencedApp;
  let entries: Entries;

  beforeAll(async () => {
    app = await startFencedApp({ entities: [Entry], providers: [Entries], poolSize });
    entries = app.get(Entries);
  });
  afterAll(() => app.close());

  /** The largest number of fenced writes, and of connections, that were in use at the same moment. */
  const watch = () => {
    const pool = poolOf(app.dataSource);
    let out = pool.totalCount - pool.idleCount;
    const seen = { most: 0, checkouts: 0 };
    pool.on('acquire', () => {
      seen.checkouts += 1;
      seen.most = Math.max(seen.most, ++out);
    });
    pool.on('release', () => (out -= 1));
    return seen;
  };
  const ids = (count: number) => Array.from({ length: count }, () => randomUUID());

  it('ten leased calls at once, each with fenced writes in fenced writes and an operation, all finish', async () => {
    entries.barrier = new Barrier(10);
    const results = await Promise.all(ids(10).map((id) => entries.run(id)));
    expect(results).toEqual(results.map(() => 'operated'));
    const pool = poolOf(app.dataSource);
    expect([pool.totalCount - pool.idleCount, pool.waitingCount]).toEqual([0, 0]);
  });

  it('a call takes one connection for its activation and one for its fenced write, and never two at a time', async () => {
    entries.barrier = new Barrier(1);
    const seen = watch();
    await entries.run(randomUUID());
    expect(seen).toEqual({ most: 1, checkouts: 2 });
  });

  it('a fenced write that activates first never holds two connections', async () => {
    const fencing = app.get(FencingService);
    const seen = watch();
    await fencing.run(randomUUID(), { activate: 'write' }, () => entries.write(randomUUID()));
    expect(seen).toEqual({ most: 1, checkouts: 2 });
  });
});
