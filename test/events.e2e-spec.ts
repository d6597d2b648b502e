import { readFile } from 'node:fs/promises';
import { Injectable } from '@nestjs/common';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { InjectRepository } from '@nestjs/typeorm';
import {
  CurrentLease,
  FENCING_EVENT_NAMES,
  FencedWrite,
  type FencingEvent,
  FencingEvents,
  fencingEventsToken,
  FencingModule,
  type Lease,
  Leased,
  memoryLeases,
} from 'nestjs-fencing';
import type { Subscription } from 'rxjs';
import { Column, Entity, PrimaryColumn, type Repository } from 'typeorm';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { Gate } from './support/gate.js';

@Entity('event_row')
class Row {
  @PrimaryColumn('text') id!: string;
  @Column('text') value!: string;
}

@Injectable()
class Rows {
  constructor(@InjectRepository(Row) private readonly rows: Repository<Row>) {}

  @Leased('row:{0}')
  async under(
    id: string,
    body: (rows: Rows, lease: Lease) => Promise<unknown>,
    @CurrentLease() lease?: Lease,
  ) {
    return body(this, lease!);
  }

  @FencedWrite()
  async save(id: string, value: string) {
    await this.rows.save({ id, value });
  }

  @FencedWrite({ operation: (id: string) => id })
  async once(id: string) {
    await this.rows.save({ id, value: 'once' });
  }
}

describe('the events of fenced writes', () => {
  let app: FencedApp;
  let rows: Rows;
  let heard: FencingEvent[];
  let subscription: Subscription;

  beforeAll(async () => {
    app = await startFencedApp({ entities: [Row], providers: [Rows] });
    rows = app.get(Rows);
  });
  afterAll(() => app.close());
  beforeEach(() => {
    heard = [];
    subscription?.unsubscribe();
    subscription = app.get(FencingEvents).subscribe((event) => heard.push(event));
  });
  afterAll(() => subscription.unsubscribe());

  const of = (prefix: string) => heard.filter(({ name }) => name.startsWith(prefix));

  it('write.accepted tells the grant that it was accepted under', async () => {
    let lease!: Lease;
    await rows.under('accepted', async (rows, own) => {
      lease = own;
      await rows.save('accepted', 'value');
    });
    const { key, owner, generation } = lease;
    expect(of('write.')).toEqual([
      {
        name: 'write.accepted',
        instance: 'default',
        at: expect.any(Date),
        key,
        owner,
        generation,
        keys: 1,
        tookMs: expect.any(Number),
      },
    ]);
    expect(of('lease.').at(-1)).toMatchObject({ name: 'lease.released', owner, acceptedWrites: 1 });
  });

  it('write.stale tells what the database names instead, and lease.lost that the lease was stale', async () => {
    const call = rows.under('stale', async (rows) => {
      await app.fencing.revoke('row:stale');
      await rows.save('stale', 'late');
    });
    await expect(call).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    const [stale] = of('write.') as (FencingEvent & { name: 'write.stale' })[];
    expect(stale).toMatchObject({ name: 'write.stale', key: 'row:stale' });
    expect(stale!.current).toBeGreaterThan(stale!.generation);
    expect(of('lease.lost')).toMatchObject([{ reason: 'stale' }]);
  });

  it('write.refused tells of a write that came after its call had ended', async () => {
    const gate = new Gate();
    let late!: Promise<unknown>;
    await rows.under('refused', async (rows) => {
      late = gate.wait().then(() => rows.save('refused', 'late'));
    });
    gate.open();
    await expect(late).rejects.toMatchObject({ code: 'LEASE_RELEASED' });
    expect(of('write.')).toMatchObject([
      { name: 'write.refused', code: 'LEASE_RELEASED', key: 'row:refused' },
    ]);
  });

  it('operation.duplicate tells the operation whose stored result was answered', async () => {
    const id = `operation ${Date.now()}`;
    await rows.under('operation', async (rows) => {
      await rows.once(id);
      await rows.once(id);
    });
    expect(of('write.')).toHaveLength(1);
    expect(of('operation.')).toMatchObject([
      { name: 'operation.duplicate', operation: id, key: 'row:operation' },
    ]);
  });

  it('of() hears the events of its names only', async () => {
    const only: FencingEvent[] = [];
    const some = app
      .get(FencingEvents)
      .of('lease.acquired', 'write.accepted')
      .subscribe((event) => only.push(event));
    await rows.under('of', (rows) => rows.save('of', 'value'));
    some.unsubscribe();
    await rows.under('of', (rows) => rows.save('of', 'value'));
    expect(only.map(({ name }) => name)).toEqual(['lease.acquired', 'write.accepted']);
  });
});

describe('docs/events.md', () => {
  it('lists every event that there is, and no other', async () => {
    const text = await readFile('docs/events.md', 'utf8');
    const listed = [...text.matchAll(/^\| `([a-z.]+)` \|/gm)].map(([, name]) => name);
    expect(listed).toEqual([...FENCING_EVENT_NAMES]);
  });
});

describe('the events of a named instance', () => {
  it('are its own, and carry its name', async () => {
    const named = FencingModule.forRoot({ name: 'billing', leases: memoryLeases() });
    const app = await startFencedApp({ fence: false, leases: memoryLeases(), imports: [named] });
    const heard: FencingEvent[] = [];
    app.get<FencingEvents>(fencingEventsToken('billing')).subscribe((event) => heard.push(event));
    await app.fencing.run('key', {}, async () => undefined);
    expect(heard).toEqual([]);
    await app.close();
  });
});
