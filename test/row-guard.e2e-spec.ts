import { jest } from '@jest/globals';
import { Injectable, Logger } from '@nestjs/common';
import {
  CurrentLease,
  FencingConfigError,
  InjectFencedRepository,
  type Lease,
  Leased,
  LeaseLostError,
  LeaseReleasedError,
  NoLeaseError,
  RowMissingError,
  StaleGenerationError,
} from 'nestjs-fencing';
import { MemoryLeaseStore } from 'nestjs-fencing/testing';
import { FencedRepositoriesModule, FencedRepository, GenerationColumn } from 'nestjs-fencing/typeorm';
import {
  ChildEntity,
  Column,
  DeleteDateColumn,
  Entity,
  In,
  ManyToOne,
  PrimaryColumn,
  PrimaryGeneratedColumn,
  TableInheritance,
  UpdateDateColumn,
  VersionColumn,
} from 'typeorm';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { eventually, Gate } from './support/gate.js';

@Entity('guarded_account')
class Account {
  @PrimaryColumn('text', { name: 'account_id' }) id!: string;
  @Column('int', { name: 'balance_cents' }) balance!: number;
  @Column('text', { name: 'display_name', default: 'nobody' }) label!: string;
  @Column('jsonb', { nullable: true }) tags!: string[] | null;
  @VersionColumn() version!: number;
  @UpdateDateColumn({ type: 'timestamptz' }) touchedAt!: Date;
  @DeleteDateColumn({ type: 'timestamptz' }) closedAt!: Date | null;
  @GenerationColumn({ name: 'written_under' }) generation!: number;
}

/** A composite key, and one that the database makes. */
@Entity('guarded_seat')
class Seat {
  @PrimaryColumn('int') row!: number;
  @PrimaryColumn('text') letter!: string;
  @Column('text') guest!: string;
  @GenerationColumn() generation!: number;
}

@Entity('guarded_ticket')
class Ticket {
  @PrimaryGeneratedColumn('uuid') id!: string;
  @Column('text', { unique: true }) code!: string;
  @Column('text') holder!: string;
  @GenerationColumn() generation!: number;
}

/** Two classes in one table. */
@Entity('guarded_animal')
@TableInheritance({ column: { name: 'kind', type: 'text' } })
class Animal {
  @PrimaryColumn('text') id!: string;
  @GenerationColumn() generation!: number;
}

@ChildEntity()
class Cat extends Animal {
  @Column('int') lives!: number;
}

@Entity('guarded_kennel')
class Kennel {
  @PrimaryColumn('text') id!: string;
  @Column({ type: 'text', insert: false, default: 'new' }) state!: string;
  @ManyToOne(() => Account, { nullable: true, cascade: true }) payer?: Account | null;
  @GenerationColumn() generation!: number;
}

@Entity('unguarded_note')
class Note {
  @PrimaryColumn('text') id!: string;
}

@Injectable()
class Bank {
  constructor(
    @InjectFencedRepository(Account) readonly accounts: FencedRepository<Account>,
    @InjectFencedRepository(Seat) readonly seats: FencedRepository<Seat>,
    @InjectFencedRepository(Ticket) readonly tickets: FencedRepository<Ticket>,
    @InjectFencedRepository(Animal) readonly animals: FencedRepository<Animal>,
    @InjectFencedRepository(Kennel) readonly kennels: FencedRepository<Kennel>,
  ) {}

  @Leased('account:{0}', { ttlMs: 60_000 })
  with<T>(_id: string, work: (lease: Lease) => Promise<T>, @CurrentLease() lease?: Lease): Promise<T> {
    return work(lease!);
  }

  @Leased(['account:{0}', 'account:{1}'])
  withBoth<T>(_a: string, _b: string, work: () => Promise<T>): Promise<T> {
    return work();
  }
}

const LATER = 1_000_000;

describe('the row guard', () => {
  let app: FencedApp;
  let bank: Bank;

  beforeAll(async () => {
    app = await startFencedApp({
      entities: [Account, Seat, Ticket, Note, Animal, Cat, Kennel],
      imports: [FencedRepositoriesModule.forFeature([Account, Seat, Ticket, Animal, Kennel])],
      providers: [Bank],
      // No fence: nothing but the rows themselves refuses here.
      fence: false,
    });
    bank = app.get(Bank);
  });
  afterAll(() => app.close());
  beforeEach(async () => {
    await app.dataSource.query(
      'TRUNCATE guarded_account, guarded_seat, guarded_ticket, guarded_animal, guarded_kennel',
    );
    await app.dataSource.query(
      `INSERT INTO guarded_account (account_id, balance_cents, version) VALUES ('a', 10, 1)`,
    );
  });

  const rowOf = (id: string) =>
    app.dataSource.getRepository(Account).findOne({ where: { id }, withDeleted: true });
  /** A newer owner has written the row. */
  const overtake = (lease: Lease, balance = 99) =>
    app.dataSource.query(
      `UPDATE guarded_account SET balance_cents = $1, written_under = $2 WHERE account_id = 'a'`,
      [balance, lease.generation + LATER],
    );
  /** The statements that PostgreSQL gets meanwhile, transaction control included. */
  const statementsOf = async (work: () => Promise<unknown>): Promise<string[]> => {
    const sent: string[] = [];
    const create = app.dataSource.createQueryRunner.bind(app.dataSource);
    app.dataSource.createQueryRunner = (mode) => {
      const runner = create(mode);
      const query = runner.query.bind(runner);
      runner.query = ((text: string, ...rest: []) => {
        sent.push(text);
        return query(text, ...rest);
      }) as typeof runner.query;
      return runner;
    };
    try {
      await work();
    } finally {
      app.dataSource.createQueryRunner = create;
    }
    return sent;
  };

  const WRITES: Record<string, () => Promise<unknown>> = {
    'update by id': () => bank.accounts.update('a', { balance: 1 }),
    'update by object': () => bank.accounts.update({ id: 'a', balance: In([10, 99]) }, { balance: 1 }),
    'update by an SQL expression': () => bank.accounts.update('a', { balance: () => 'balance_cents - 9' }),
    upsert: () => bank.accounts.upsert({ id: 'a', balance: 1 }),
    save: () => bank.accounts.save(Object.assign(new Account(), { id: 'a', balance: 1 })),
  };

  describe.each(Object.entries(WRITES))('%s', (_, write) => {
    it('changes the row and stamps it with the generation, in one statement', async () => {
      let statements: string[] = [];
      const generation = await bank.with('a', async (lease) => {
        statements = await statementsOf(write);
        return lease.generation;
      });
      expect(statements).toHaveLength(1);
      expect(await rowOf('a')).toMatchObject({ balance: 1, label: 'nobody', generation });
    });

    it('of an older generation is refused as stale, leaves the row as it is, and ends the lease', async () => {
      await bank
        .with('a', async (lease) => {
          await overtake(lease);
          const before = await rowOf('a');
          const refused = await write().catch((error: unknown) => error);
          expect(refused).toBeInstanceOf(StaleGenerationError);
          expect(refused).toMatchObject({
            generation: lease.generation,
            currentGeneration: lease.generation + LATER,
          });
          expect(await rowOf('a')).toEqual(before);
          expect(lease.state).toBe('lost');
          await expect(write()).rejects.toThrow(StaleGenerationError);
        })
        .catch((error: unknown) => expect(error).toBeInstanceOf(LeaseLostError));
    });

    it('of the same generation again is accepted', async () => {
      await bank.with('a', async () => {
        await write();
        await app.dataSource.query(`UPDATE guarded_account SET balance_cents = 10`);
        await write();
      });
      expect(await rowOf('a')).toMatchObject({ balance: 1 });
    });

    it('needs a lease', () => expect(write()).rejects.toThrow(NoLeaseError));

    it('after its call has ended is refused before anything is sent', async () => {
      let late!: () => Promise<unknown>;
      const { AsyncResource } = await import('node:async_hooks');
      await bank.with('a', async () => {
        late = AsyncResource.bind(write);
      });
      const sent = await statementsOf(() => expect(late()).rejects.toThrow(LeaseReleasedError));
      expect(sent).toEqual([]);
    });
  });

  it('a late write that nobody awaits is reported: an unhandled rejection would end the process', async () => {
    const report = jest.spyOn(Logger.prototype, 'error').mockImplementation(() => undefined);
    const over = new Gate();
    await bank.with('a', async () => {
      void over.wait().then(() => {
        void bank.accounts.update('a', { balance: 1 });
        void bank.accounts.delete('a');
        void bank.accounts.upsert({ id: 'a', balance: 1 });
        void bank.accounts.save(Object.assign(new Account(), { id: 'a', balance: 1 }));
      });
    });
    over.open();
    await eventually(() => report.mock.calls.length >= 4);
    expect(
      report.mock.calls.map(([line]) => /^FencedRepository\.(\w+)\(\) was refused/.exec(String(line))?.[1]),
    ).toEqual(['update', 'delete', 'upsert', 'save']);
    report.mockRestore();
  });

  it('deletes a row, in one statement, unless a newer owner has written it', async () => {
    await bank
      .with('a', async (lease) => {
        await overtake(lease);
        await expect(bank.accounts.delete('a')).rejects.toThrow(StaleGenerationError);
        expect(await rowOf('a')).not.toBeNull();
      })
      .catch((error: unknown) => expect(error).toBeInstanceOf(LeaseLostError));
    await bank.with('a', async () => {
      expect(await statementsOf(() => bank.accounts.delete('a'))).toHaveLength(1);
    });
    expect(await rowOf('a')).toBeNull();
  });

  it('an entity that was loaded under an older generation is saved under the current one, not pushed back', async () => {
    const loaded = (await bank.with('a', async () => {
      await bank.accounts.update('a', { balance: 20 });
      return rowOf('a');
    }))!;
    const first = loaded.generation;
    await bank.with('a', async (lease) => {
      await bank.accounts.update('a', { balance: 30 });
      const saved = await bank.accounts.save(Object.assign(loaded, { label: 'mine' }));
      expect(saved).toBe(loaded);
      expect(loaded.generation).toBe(lease.generation);
      expect(loaded.generation).toBeGreaterThan(first);
      expect(await rowOf('a')).toMatchObject({ balance: 20, label: 'mine', generation: lease.generation });
    });
  });

  it('an unchanged entity that is saved late is refused too: nobody believes to own a row that he lost', async () => {
    const call = bank.with('a', async (lease) => {
      await bank.accounts.update('a', { balance: 20 });
      const loaded = (await rowOf('a'))!;
      await overtake(lease);
      await bank.accounts.save(loaded);
    });
    await expect(call).rejects.toThrow(StaleGenerationError);
  });

  it('a save makes a row that is not there, and fills in what the database decided', async () => {
    await bank.with('b', async (lease) => {
      const saved = await bank.accounts.save(
        Object.assign(new Account(), { id: 'b', balance: 5, tags: ['x'] }),
      );
      expect(saved).toMatchObject({ label: 'nobody', version: 1, generation: lease.generation, tags: ['x'] });
      expect(saved.touchedAt).toBeInstanceOf(Date);
      expect(await rowOf('b')).toEqual(saved);
      await bank.accounts.save(Object.assign(saved, { balance: 6 }));
      expect(saved.version).toBe(2);
      expect(await rowOf('b')).toEqual(saved);
    });
  });

  it('a save of an entity whose id the database makes inserts it', async () => {
    await bank.with('b', async (lease) => {
      const ticket = await bank.tickets.save(Object.assign(new Ticket(), { code: 'c1', holder: 'ann' }));
      expect(ticket).toMatchObject({
        id: expect.stringMatching(/^[\da-f-]{36}$/),
        generation: lease.generation,
      });
    });
  });

  it('an upsert goes by another unique index where it is told to', async () => {
    await bank
      .with('b', async (lease) => {
        await bank.tickets.upsert({ code: 'c1', holder: 'ann' }, ['code']);
        await bank.tickets.upsert({ code: 'c1', holder: 'ben' }, ['code']);
        expect(await app.dataSource.getRepository(Ticket).find()).toMatchObject([
          { holder: 'ben', generation: lease.generation },
        ]);
        await app.dataSource.query('UPDATE guarded_ticket SET generation = $1', [lease.generation + LATER]);
        await expect(bank.tickets.upsert({ code: 'c1', holder: 'cid' }, ['code'])).rejects.toMatchObject({
          code: 'STALE_GENERATION',
          currentGeneration: lease.generation + LATER,
        });
      })
      .catch((error: unknown) => expect(error).toBeInstanceOf(LeaseLostError));
  });

  it('a save goes by the class of the entity, where several share a table', async () => {
    await bank.with('tom', async (lease) => {
      await bank.animals.save(Object.assign(new Cat(), { id: 'tom', lives: 9 }));
      const cat = await app.dataSource.getRepository(Animal).findOneByOrFail({ id: 'tom' });
      expect(cat).toBeInstanceOf(Cat);
      await bank.animals.save(Object.assign(cat, { lives: 8 }));
      expect(await app.dataSource.getRepository(Cat).find()).toEqual([
        Object.assign(new Cat(), { id: 'tom', lives: 8, generation: lease.generation }),
      ]);
    });
  });

  it('a save sets no relation that the entity did not have: the next cascade would make a row of it', async () => {
    await bank.with('k', async () => {
      const kennel = await bank.kennels.save(Object.assign(new Kennel(), { id: 'k' }));
      expect(kennel).toMatchObject({ state: 'new' });
      expect(kennel.payer).toBeUndefined();
      kennel.payer = Object.assign(new Account(), { id: 'a' });
      await bank.kennels.save(kennel);
      await bank.kennels.save(Object.assign(new Kennel(), { id: 'k' }));
    });
    const stored = await app.dataSource.getRepository(Kennel).find({ relations: { payer: true } });
    expect(stored).toMatchObject([{ payer: { id: 'a' } }]);
  });

  it('an upsert keeps what it may not insert: the database would take the default for it', async () => {
    await bank.with('k', async () => {
      await bank.kennels.upsert({ id: 'k' });
      await bank.kennels.update('k', { state: 'used' });
      await bank.kennels.upsert({ id: 'k', state: 'clean' });
    });
    expect(await app.dataSource.getRepository(Kennel).find()).toMatchObject([{ state: 'used' }]);
  });

  it('works on rows with a key of several columns', async () => {
    await bank.with('seat', async () => {
      await bank.seats.upsert({ row: 1, letter: 'A', guest: 'ann' });
      await bank.seats.save(Object.assign(new Seat(), { row: 1, letter: 'B', guest: 'ben' }));
      expect(await bank.seats.update({ row: 1, letter: 'A' }, { guest: 'cid' })).toBe('written');
      expect(await bank.seats.delete({ row: 1, letter: 'B' })).toBe('written');
    });
    expect(await app.dataSource.getRepository(Seat).find()).toMatchObject([
      { row: 1, letter: 'A', guest: 'cid' },
    ]);
  });

  it('a row that was never written under a lease, with 0 or NULL as its generation, may be written', async () => {
    await app.dataSource.query('ALTER TABLE guarded_account ALTER written_under DROP NOT NULL');
    await app.dataSource.query('UPDATE guarded_account SET written_under = NULL');
    await bank.with('a', async () => expect(await bank.accounts.update('a', { balance: 1 })).toBe('written'));
  });

  describe('where no row was written', () => {
    it('a missing row is told by its own error', async () => {
      await bank.with('x', async () => {
        await expect(bank.accounts.update('x', { balance: 1 })).rejects.toThrow(RowMissingError);
        await expect(bank.accounts.delete('x')).rejects.toMatchObject({
          code: 'ROW_MISSING',
          entity: 'Account',
        });
      });
    });

    it('a further condition that does not hold is "unchanged", and the row stays as it is', async () => {
      await bank.with('a', async () => {
        expect(await bank.accounts.update({ id: 'a', balance: 11 }, { balance: 1 })).toBe('unchanged');
        expect(await bank.accounts.delete({ id: 'a', balance: 11 })).toBe('unchanged');
      });
      expect(await rowOf('a')).toMatchObject({ balance: 10, generation: 0 });
    });

    it('a newer owner goes before a condition that does not hold: stale, not "unchanged"', async () => {
      await bank
        .with('a', async (lease) => {
          await overtake(lease);
          await expect(bank.accounts.update({ id: 'a', balance: 11 }, { balance: 1 })).rejects.toThrow(
            StaleGenerationError,
          );
        })
        .catch((error: unknown) => expect(error).toBeInstanceOf(LeaseLostError));
    });

    it('a row that was only marked as deleted is not missing', async () => {
      await app.dataSource.query('UPDATE guarded_account SET "closedAt" = now()');
      await bank
        .with('a', async (lease) => {
          expect(await bank.accounts.update({ id: 'a', balance: 11 }, { balance: 1 })).toBe('unchanged');
          expect(await bank.accounts.update('a', { closedAt: null })).toBe('written');
          await overtake(lease);
          await app.dataSource.query('UPDATE guarded_account SET "closedAt" = now()');
          await expect(bank.accounts.update('a', { balance: 1 })).rejects.toThrow(StaleGenerationError);
        })
        .catch((error: unknown) => expect(error).toBeInstanceOf(LeaseLostError));
    });
  });

  describe('with several leases', () => {
    it('no lease is picked by guessing', () =>
      expect(bank.withBoth('a', 'b', () => bank.accounts.update('a', { balance: 1 }))).rejects.toThrow(
        FencingConfigError,
      ));

    it('each row is written under the lease that is named', async () => {
      await bank.with('a', (a) =>
        bank.with('b', async (b) => {
          await bank.accounts.under(a).update('a', { balance: 1 });
          await bank.accounts.under(b).upsert({ id: 'b', balance: 2 });
          expect(await rowOf('a')).toMatchObject({ generation: a.generation });
          expect(await rowOf('b')).toMatchObject({ generation: b.generation });
        }),
      );
    });

    it('something that is no lease is refused', () =>
      expect(() => bank.accounts.under({ generation: 1 } as Lease)).toThrow(FencingConfigError));
  });

  it('a row that is ahead of the lease store heals: one call is stale, the next grant is above it', async () => {
    const ahead = (Date.now() + 3_600_000) * 1_000;
    await app.dataSource.query('UPDATE guarded_account SET written_under = $1', [ahead]);
    // A key of its own: what it heals is the counter in Redis.
    const key = `ahead-${process.pid}`;
    const write = () => bank.accounts.update('a', { balance: 1 });
    await expect(bank.with(key, write)).rejects.toThrow(StaleGenerationError);
    await bank.with(key, async (lease) => {
      expect(lease.generation).toBeGreaterThan(ahead);
      await write();
    });
    expect(await rowOf('a')).toMatchObject({ balance: 1 });
  });

  describe('refuses what could touch more than one row', () => {
    const wrong: Record<string, () => Promise<unknown>> = {
      'a missing key': () => bank.accounts.update(undefined as never, { balance: 1 }),
      'a key that is undefined': () => bank.accounts.update({ id: undefined }, { balance: 1 }),
      'an operator as the key': () => bank.accounts.delete({ id: In(['a', 'b']) }),
      'a part of a composite key': () => bank.seats.delete({ row: 1 }),
      'one value for a composite key': () => bank.seats.delete(1),
      'a condition that is undefined': () =>
        bank.accounts.update({ id: 'a', balance: undefined }, { balance: 1 }),
      'a condition that is null': () =>
        bank.accounts.update({ id: 'a', tags: null } as never, { balance: 1 }),
      'a change of the key': () => bank.accounts.update('a', { id: 'b' }),
      'a list of entities': () => bank.accounts.save([new Account()] as never),
      'an unknown conflict target': () => bank.tickets.upsert({ code: 'c' }, ['nothing' as never]),
    };
    it.each(Object.entries(wrong))('%s', async (_, call) => {
      await bank.with('a', () => expect((async () => call())()).rejects.toThrow(FencingConfigError));
      expect(await rowOf('a')).toMatchObject({ balance: 10, generation: 0 });
    });
  });

  it('an entity without a generation column is refused where its repository is provided: at boot', () => {
    const [provider] = FencedRepositoriesModule.forFeature([Note]).providers;
    expect(() => provider!.useFactory(app.dataSource)).toThrow(
      /FencedRepository of Note: .*@GenerationColumn/,
    );
  });

  it('a fenced repository that no module provides is named at boot', async () => {
    @Injectable()
    class Lonely {
      constructor(@InjectFencedRepository(Note) readonly notes: FencedRepository<Note>) {}
    }
    const start = startFencedApp({ providers: [Lonely], fence: false, leases: new MemoryLeaseStore() });
    await expect(start).rejects.toThrow(/import FencedRepositoriesModule\.forFeature\(\[Note\]\)/);
  });

  it('two generation columns in one entity are refused', () => {
    expect(() => {
      class Twice {
        @GenerationColumn() a!: number;
        @GenerationColumn() b!: number;
      }
      return Twice;
    }).toThrow(FencingConfigError);
  });
});
