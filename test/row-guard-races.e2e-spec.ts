import { Injectable } from '@nestjs/common';
import {
  CurrentLease,
  FencedWrite,
  InjectFencedRepository,
  type Lease,
  Leased,
  LeaseLostError,
  StaleGenerationError,
} from 'nestjs-fencing';
import { FencedRepositoriesModule, FencedRepository, GenerationColumn } from 'nestjs-fencing/typeorm';
import { Column, DataSource, Entity, PrimaryColumn } from 'typeorm';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { eventually, Gate } from './support/gate.js';

@Entity('raced_account')
class Account {
  @PrimaryColumn('text') id!: string;
  @Column('int') balance!: number;
  @GenerationColumn() generation!: number;
}

@Injectable()
class Bank {
  constructor(
    @InjectFencedRepository(Account) readonly accounts: FencedRepository<Account>,
    readonly dataSource: DataSource,
  ) {}

  @Leased('account:{0}', { ttlMs: 60_000 })
  with<T>(_id: string, work: (lease: Lease) => Promise<T>, @CurrentLease() lease?: Lease): Promise<T> {
    return work(lease!);
  }

  @FencedWrite()
  write<T>(work: () => Promise<T>): Promise<T> {
    return work();
  }
}

describe('the row guard beside other writers', () => {
  let app: FencedApp;
  let bank: Bank;

  beforeAll(async () => {
    app = await startFencedApp({
      entities: [Account],
      imports: [FencedRepositoriesModule.forFeature([Account])],
      providers: [Bank],
    });
    bank = app.get(Bank);
  });
  afterAll(() => app.close());
  beforeEach(async () => {
    await app.dataSource.query('TRUNCATE raced_account');
    await app.dataSource.query(`INSERT INTO raced_account VALUES ('a', 10)`);
  });

  const rows = () => app.dataSource.getRepository(Account).find();
  /** Another transaction holds the row, and commits when the gate opens. */
  const holdRow = async (sql: string, parameters: unknown[]) => {
    const [held, mayCommit] = [new Gate(), new Gate()];
    const committed = app.dataSource.transaction(async (manager) => {
      await manager.query(sql, parameters);
      held.open();
      await mayCommit.wait();
    });
    await held.wait();
    return { commit: () => (mayCommit.open(), committed) };
  };
  const someoneWaits = () =>
    eventually(async () => {
      const [{ waiting }] = await app.dataSource.query(
        `SELECT count(*)::int AS waiting FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() AND query ILIKE '%raced_account%'`,
      );
      return waiting > 0;
    });
  const lost = (error: unknown) => expect(error).toBeInstanceOf(LeaseLostError);

  it('a write that waited for a newer owner to commit is stale, although the row was older when it began', async () => {
    await bank
      .with('a', async (lease) => {
        const other = await holdRow('UPDATE raced_account SET balance = 99, generation = $1', [
          lease.generation + 1,
        ]);
        const refused = expect(bank.accounts.update('a', { balance: 1 })).rejects.toThrow(
          StaleGenerationError,
        );
        await someoneWaits();
        await other.commit();
        await refused;
      })
      .catch(lost);
    expect(await rows()).toMatchObject([{ balance: 99 }]);
  });

  it('an upsert that ran into the uncommitted row of a newer owner is stale', async () => {
    await bank
      .with('b', async (lease) => {
        const other = await holdRow(`INSERT INTO raced_account VALUES ('b', 99, $1)`, [lease.generation + 1]);
        const refused = expect(bank.accounts.upsert({ id: 'b', balance: 1 })).rejects.toThrow(
          StaleGenerationError,
        );
        await someoneWaits();
        await other.commit();
        await refused;
      })
      .catch(lost);
    expect((await rows()).find(({ id }) => id === 'b')).toMatchObject({ balance: 99 });
  });

  it('a write that waited for an older owner to commit is accepted', async () => {
    await bank.with('a', async (lease) => {
      const other = await holdRow('UPDATE raced_account SET balance = 99, generation = $1', [
        lease.generation - 1,
      ]);
      const written = bank.accounts.update('a', { balance: 1 });
      await someoneWaits();
      await other.commit();
      expect(await written).toBe('written');
    });
    expect(await rows()).toMatchObject([{ balance: 1 }]);
  });

  it('a row that was put in between the statement and the look at it is written after all', async () => {
    const { manager } = app.dataSource;
    const query = manager.query.bind(manager) as (...args: unknown[]) => Promise<never>;
    await bank.with('late', async () => {
      manager.query = async (...args: unknown[]) => {
        manager.query = query;
        await query(`INSERT INTO raced_account VALUES ('late', 5)`);
        return query(...args);
      };
      expect(await bank.accounts.update('late', { balance: 6 })).toBe('written');
    });
    expect((await rows()).find(({ id }) => id === 'late')).toMatchObject({ balance: 6 });
  });

  it('two owners that write one row in turns, each from what it last read: no write of the older one follows one of the newer', async () => {
    const log: { generation: string }[] = [];
    await app.dataSource.query('CREATE TABLE raced_log (n serial, generation bigint)');
    await app.dataSource.query(
      `CREATE FUNCTION raced_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO raced_log (generation) VALUES (NEW.generation); RETURN NEW; END $$`,
    );
    await app.dataSource.query(
      'CREATE TRIGGER raced_note AFTER UPDATE ON raced_account FOR EACH ROW EXECUTE FUNCTION raced_note()',
    );
    try {
      const outcomes: string[] = [];
      await bank
        .with('a', (one) =>
          bank.with('b', async (other) => {
            const [older, newer] = [one, other].sort((a, b) => a.generation - b.generation);
            const newerBegins = new Gate();
            const inTurns = async (lease: Lease, balance: number) => {
              const repository = bank.accounts.under(lease);
              for (let i = 0; i < 40; i++) {
                const write = repository.update('a', { balance: balance + i });
                outcomes.push(await write.catch((error: { code: string }) => error.code));
                if (outcomes.length > 5) newerBegins.open();
              }
            };
            await Promise.all([inTurns(older!, 0), newerBegins.wait().then(() => inTurns(newer!, 100))]);
          }),
        )
        .catch(lost);
      log.push(...(await app.dataSource.query('SELECT generation FROM raced_log ORDER BY n')));
      const generations = log.map(({ generation }) => Number(generation));
      expect(generations).toEqual([...generations].sort((a, b) => a - b));
      expect(new Set(generations).size).toBe(2);
      expect(outcomes).toContain('STALE_GENERATION');
    } finally {
      await app.dataSource.query('DROP TRIGGER raced_note ON raced_account');
      await app.dataSource.query('DROP FUNCTION raced_note');
      await app.dataSource.query('DROP TABLE raced_log');
    }
  });

  it('inside a fenced write it is part of its transaction', async () => {
    const call = bank.with('a', () =>
      bank.write(async () => {
        await bank.accounts.update('a', { balance: 1 });
        await bank.accounts.upsert({ id: 'b', balance: 2 });
        throw new Error('at the end');
      }),
    );
    await expect(call).rejects.toThrow('at the end');
    expect(await rows()).toMatchObject([{ id: 'a', balance: 10 }]);
  });

  it('in a transaction of the application it is part of it, with the manager of that transaction', async () => {
    const call = bank.with('a', () =>
      bank.dataSource.transaction(async (manager) => {
        await new FencedRepository(manager, Account).update('a', { balance: 1 });
        throw new Error('at the end');
      }),
    );
    await expect(call).rejects.toThrow('at the end');
    expect(await rows()).toMatchObject([{ id: 'a', balance: 10 }]);
  });

  describe('the holes that the docs name', () => {
    it('a plain save writes the old generation of its entity back: the guard is the statement, not the table', async () => {
      const plain = app.dataSource.getRepository(Account);
      const old = await bank.with('a', async () => {
        await bank.accounts.update('a', { balance: 20 });
        return plain.findOneByOrFail({ id: 'a' });
      });
      await bank.with('a', () => bank.accounts.update('a', { balance: 30 }));
      await plain.save(Object.assign(old, { balance: 1 }));
      expect(await rows()).toMatchObject([{ balance: 1, generation: old.generation }]);
    });

    it('a deleted row forgets its generation: an older owner can make it anew', async () => {
      await bank.with('a', async (older) => {
        await bank.with('b', (newer) => bank.accounts.under(newer).delete('a'));
        await bank.accounts.under(older).upsert({ id: 'a', balance: 1 });
      });
      expect(await rows()).toMatchObject([{ id: 'a', balance: 1 }]);
    });

    it('a newer owner counts from its first write: before it, the older one still writes', async () => {
      await bank.with('a', async (older) => {
        await bank.with('b', async () => {
          expect(await bank.accounts.under(older).update('a', { balance: 1 })).toBe('written');
        });
      });
    });
  });
});
