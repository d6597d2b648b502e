import { EventEmitter } from 'node:events';
import { Readable } from 'node:stream';
import { QueryFailedError } from 'typeorm';
import { CommitUnknownError } from '../core/errors.js';
import type { WriteAuthority } from '../core/fence.js';
import type { PgClient, PgQueryRunner } from './driver.js';
import { GuardedTransaction } from './guarded-transaction.js';
import { FencingSql } from './sql.js';

const authority: WriteAuthority = {
  grants: [{ key: 'key', generation: 1, owner: 'owner' }],
  remainingMs: () => 1_000,
  ended: () => undefined,
  onEnd: () => () => undefined,
  onRenewed: () => () => undefined,
};

/** A session that answers what the test says, under the query runner that TypeORM puts on top of it. */
class Session extends EventEmitter implements PgClient {
  readonly sent: string[] = [];
  thrownAway: Error | undefined;

  constructor(private readonly answers: Record<string, Error>) {
    super();
  }

  async query(text: string) {
    this.sent.push(text);
    const error = this.answers[text];
    if (error) throw error;
    return { command: text.split(' ')[0]!, rows: [] };
  }

  escapeLiteral(text: string) {
    return `'${text}'`;
  }

  runner(): PgQueryRunner {
    const runner = {
      isTransactionActive: false,
      transactionDepth: 0,
      manager: { transaction: async () => undefined },
      connect: async () => this,
      query: (text: string) => this.query(text),
      stream: async () => Readable.from(['a', 'b']),
      release: async () => undefined,
      releasePostgresConnection: async (error?: Error) => {
        this.thrownAway = error;
      },
      startTransaction: async () => {
        runner.isTransactionActive = true;
        await runner.query('START TRANSACTION');
        runner.transactionDepth = 1;
      },
      commitTransaction: async () => {
        await runner.query('COMMIT');
        runner.isTransactionActive = false;
      },
      rollbackTransaction: async () => {
        await runner.query('ROLLBACK');
        runner.isTransactionActive = false;
      },
    };
    return runner as unknown as PgQueryRunner;
  }
}

function serverError(code: string, severity: string): Error {
  return Object.assign(new Error(`${severity} ${code}`), { code, severity });
}
const gone = new Error('Connection terminated unexpectedly');

describe('an error in answer to COMMIT', () => {
  const commit = async (answers: Record<string, Error>) => {
    const session = new Session(answers);
    const transaction = new GuardedTransaction(session.runner(), authority, new FencingSql(), undefined);
    await transaction.begin();
    const error: unknown = await transaction.commit().catch((reason: unknown) => reason);
    await transaction.rollback();
    return { error: transaction.explain(error), session };
  };

  it.each(['ERROR', 'FEHLER', 'ERREUR', '错误'])(
    'with severity %s is a refusal when the session goes on',
    async (severity) => {
      const refused = serverError('23505', severity);
      const { error, session } = await commit({ COMMIT: refused });
      expect(error).toBeInstanceOf(QueryFailedError);
      expect(error).toMatchObject({ driverError: refused });
      expect(session.thrownAway).toBeUndefined();
    },
  );

  it.each([
    ['the end of the session', serverError('57P01', 'FATAL')],
    ['a crash of the server', serverError('XX000', 'PANIC')],
    ['a broken connection', gone],
  ])('that is %s leaves it unknown, and the connection is thrown away', async (_, cause) => {
    const { error, session } = await commit({ COMMIT: cause, ROLLBACK: gone });
    expect(error).toBeInstanceOf(CommitUnknownError);
    expect(error).toMatchObject({ cause });
    expect(session.thrownAway).toBeDefined();
  });

  it('that is the idle limit is a refusal: the session ended before it read the COMMIT', async () => {
    const { error } = await commit({ COMMIT: serverError('25P03', 'FATAL'), ROLLBACK: gone });
    expect(error).toMatchObject({ code: 'STORE_UNAVAILABLE', cause: { code: '25P03' } });
  });
});

it('BEGIN and the guard are one message, and nothing is sent before their answer', async () => {
  const session = new Session({});
  const transaction = new GuardedTransaction(session.runner(), authority, new FencingSql(), 'SERIALIZABLE');
  await transaction.begin();
  await transaction.commit();
  expect(session.sent).toEqual([
    `START TRANSACTION ISOLATION LEVEL SERIALIZABLE; CALL fencing_guard('key', 1, 'owner', 1000, NULL)`,
    'COMMIT',
  ]);
});

describe('a stream of rows', () => {
  const begin = async () => {
    const session = new Session({});
    const runner = session.runner();
    const transaction = new GuardedTransaction(runner, authority, new FencingSql(), undefined);
    await transaction.begin();
    const stream = (await runner.stream('SELECT 1')) as Readable;
    return { session, transaction, stream };
  };

  it('that nobody has read is destroyed, and not committed: COMMIT and the next owner would wait for it', async () => {
    const { session, transaction, stream } = await begin();
    await expect(transaction.commit()).rejects.toThrow(/A stream of rows that was not awaited/);
    await transaction.rollback();
    expect(stream.destroyed).toBe(true);
    expect(session.sent.at(-1)).toBe('ROLLBACK');
  });

  it.each<[string, (stream: Readable) => unknown]>([
    ['read', (stream) => stream.toArray()],
    ['destroyed', (stream) => stream.destroy()],
  ])('that was %s is no hindrance', async (_, end) => {
    const { session, transaction, stream } = await begin();
    await end(stream);
    await transaction.commit();
    expect(session.sent.at(-1)).toBe('COMMIT');
  });
});
