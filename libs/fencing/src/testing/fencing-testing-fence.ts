import type { Clock } from '../core/clock.js';
import { runInTransaction, transactionOf } from '../core/context.js';
import {
  FencingConfigError,
  LeaseOrderError,
  OperationConflictError,
  StaleGenerationError,
  StoreUnavailableError,
} from '../core/errors.js';
import {
  type ActivationAnswer,
  type ActivationRequest,
  Fence,
  type FenceSnapshot,
  type IsolationLevel,
  type Receipt,
  type Revocation,
  type RevocationRequest,
  type WriteAuthority,
  type WriteOutcome,
  type WriteRequest,
} from '../core/fence.js';
import type { Grant } from '../core/lease-store.js';
import { assertJson } from '../core/operation.js';
import { within } from '../core/timing.js';

interface StoredReceipt extends Omit<Receipt, 'result'> {
  /** As JSON, which a database would keep. */
  readonly result: string | undefined;
}

/** An open write, which keeps newer grants of its keys from being activated until it is over; or an operation inside one. */
class MemoryTransaction {
  isOver = false;
  /** What is committed with it. */
  readonly receipts = new Map<string, StoredReceipt>();
  /** The operation that was started inside it last: they run one after another, as savepoints do. */
  last: Promise<unknown> = Promise.resolve();
  private end!: () => void;
  readonly ended = new Promise<void>((resolve) => (this.end = resolve));

  constructor(
    readonly authority: WriteAuthority,
    readonly isolation: IsolationLevel | undefined,
    readonly outer?: MemoryTransaction,
  ) {}

  get root(): MemoryTransaction {
    return this.outer?.root ?? this;
  }

  receipt(id: string): StoredReceipt | undefined {
    return this.receipts.get(id) ?? this.outer?.receipt(id);
  }

  guards(grants: readonly Grant[]): boolean {
    return grants.every(({ key, owner }) =>
      this.authority.grants.some((own) => own.key === key && own.owner === owner),
    );
  }

  readonly finish = (): void => {
    this.isOver = true;
    this.end();
  };
}

/**
 * The fence in the memory of one process, for unit tests without a database. What it decides is real: generations by equality,
 * activations that wait for open writes, receipts of operations, and the refusal before the body runs. What it cannot do is
 * take back what a body did to the objects of the test: there is no rollback, no isolation and no retry.
 */
export class MemoryFence<Manager = unknown> extends Fence<Manager> {
  private readonly rows = new Map<string, FenceSnapshot>();
  private readonly open = new Set<MemoryTransaction>();
  private readonly receipts = new Map<string, StoredReceipt>();
  private beforeNextGuard: ((grant: Grant) => void) | undefined;

  constructor(
    private readonly clock: Clock,
    /** What bodies of `FencingService.write` get. */
    private readonly manager: Manager | undefined,
  ) {
    super();
  }

  async check(): Promise<void> {}

  async activate({ waitMs, ...grant }: ActivationRequest): Promise<ActivationAnswer> {
    const { key, generation, owner } = grant;
    for (const until = this.clock.now() + waitMs; ;) {
      const row = this.rows.get(key);
      if (row && row.generation >= generation) {
        const isThisGrant = row.generation === generation && row.owner === owner;
        return isThisGrant ? { activated: true } : { activated: false, generation: row.generation };
      }
      const inTheWay = [...this.open].filter(({ authority }) =>
        authority.grants.some((own) => own.key === key),
      );
      if (inTheWay.length === 0) {
        this.rows.set(key, { generation, owner, activatedAt: new Date() });
        return { activated: true };
      }
      await within(
        this.clock,
        Math.max(0, until - this.clock.now()),
        Promise.all(inTheWay.map(({ ended }) => ended)),
        () =>
          new StoreUnavailableError(
            'database',
            `the previous owner's transaction was still open after ${Math.ceil(waitMs)} ms.`,
            { key },
          ),
      );
    }
  }

  async write<T>(request: WriteRequest<Manager, T>): Promise<WriteOutcome<T>> {
    const { authority, isolation } = request;
    const outer = this.surrounding();
    if (outer) return { ...(await this.join(outer, request)), committed: false };
    const transaction = new MemoryTransaction(authority, isolation);
    assertGoesOn(authority);
    this.guard(authority.grants);
    this.open.add(transaction);
    const end = () => {
      this.open.delete(transaction);
      transaction.finish();
    };
    // As with a database: what ended its lease meanwhile holds up nobody, and is not committed.
    const stop = authority.onEnd(end);
    try {
      const outcome = await this.runIn(transaction, request);
      assertGoesOn(authority);
      for (const [id, receipt] of transaction.receipts) this.receipts.set(id, receipt);
      return { ...outcome, committed: !outcome.duplicate };
    } finally {
      stop();
      end();
    }
  }

  inTransaction(): boolean {
    return this.surrounding() !== undefined;
  }

  async inspect(key: string): Promise<FenceSnapshot | undefined> {
    return this.rows.get(key);
  }

  async receipt(id: string): Promise<Receipt | undefined> {
    const stored = this.surrounding()?.receipt(id) ?? this.receipts.get(id);
    return stored && read(stored);
  }

  async pruneReceipts(olderThanMs: number): Promise<number> {
    if (this.inTransaction())
      throw new FencingConfigError(
        'pruneReceipts was called inside a transaction, which would hold its locks. Call it outside, e.g. in a cron job.',
      );
    const old = [...this.receipts.values()].filter(
      ({ acceptedAt }) => Date.now() - acceptedAt.getTime() > olderThanMs,
    );
    for (const { id } of old) this.receipts.delete(id);
    return old.length;
  }

  async revoke({ key, held, waitMs }: RevocationRequest): Promise<Revocation> {
    for (;;) {
      const newest = Math.max(held?.generation ?? 0, this.rows.get(key)?.generation ?? 0);
      const generation = newest + 1;
      const answer = await this.activate({ key, owner: `revoked-${generation}`, generation, waitMs });
      if (answer.activated) return { supersededGeneration: newest || undefined, generation };
    }
  }

  /** There is no audit to keep. */
  async pruneAudit(): Promise<number> {
    return 0;
  }

  async close(): Promise<void> {}

  // ------------------------------------------------------------------------------------------------ faults, for tests

  /** A newer owner is activated between this and the guard of the next write, which is then refused. */
  refuseNextWrite(): void {
    this.beforeNextGuard = ({ key, generation }) =>
      this.rows.set(key, {
        generation: generation + 1,
        owner: `newer-than-${generation}`,
        activatedAt: new Date(),
      });
  }

  // ----------------------------------------------------------------------------------------------------------- parts

  private surrounding(): MemoryTransaction | undefined {
    let transaction = transactionOf(this) as MemoryTransaction | undefined;
    while (transaction?.isOver) transaction = transaction.outer;
    return transaction;
  }

  /** A fenced write inside a fenced write. What an operation left behind that fails is not committed with the rest. */
  private async join<T>(
    outer: MemoryTransaction,
    request: WriteRequest<Manager, T>,
  ): Promise<Omit<WriteOutcome<T>, 'committed'>> {
    const { authority, isolation, operation } = request;
    if (!outer.guards(authority.grants)) throw new LeaseOrderError(authority.grants[0]!.key);
    if (isolation && isolation !== outer.isolation)
      throw new FencingConfigError(
        `A fenced write asks for ${isolation} inside one that runs in ${outer.isolation ?? 'the default isolation'}.`,
      );
    if (!operation) return { result: await request.body(this.given()), duplicate: false };
    const turn = outer.last.then(async () => {
      const inner = new MemoryTransaction(outer.authority, outer.isolation, outer);
      try {
        const outcome = await this.runIn(inner, request);
        for (const [id, receipt] of inner.receipts) outer.receipts.set(id, receipt);
        return outcome;
      } finally {
        inner.finish();
      }
    });
    outer.last = turn.catch(() => undefined);
    return turn;
  }

  private guard(grants: readonly Grant[]): void {
    const fault = this.beforeNextGuard;
    this.beforeNextGuard = undefined;
    fault?.(grants[0]!);
    for (const { key, generation, owner } of grants) {
      const row = this.rows.get(key);
      if (row?.generation !== generation || row.owner !== owner)
        throw new StaleGenerationError(key, generation, row?.generation);
    }
  }

  /** Runs the effect of an operation at most once; what is not an operation, always. */
  private async runIn<T>(
    transaction: MemoryTransaction,
    { operation, body }: WriteRequest<Manager, T>,
  ): Promise<Omit<WriteOutcome<T>, 'committed'>> {
    const effect = () => runInTransaction(this, transaction, () => body(this.given()));
    if (!operation) return { result: await effect(), duplicate: false };
    const { id, fingerprint, where } = operation;
    const { root } = transaction;
    // From here to the claim without a pause: another sender may be as far.
    for (let other; (other = this.claimed.get(id)) && other !== root && !other.isOver;) await other.ended;
    const known = transaction.receipt(id) ?? this.receipts.get(id);
    if (known) {
      if (known.fingerprint !== fingerprint) throw new OperationConflictError(id);
      return { result: read(known).result as T, duplicate: true };
    }
    this.claimed.set(id, root);
    const [{ key, generation, owner }] = root.authority.grants as [Grant];
    const claim = { id, key, generation, owner, fingerprint, acceptedAt: new Date(), result: undefined };
    transaction.receipts.set(id, claim);
    const result = await effect();
    assertJson(where, result);
    transaction.receipts.set(id, { ...claim, result: JSON.stringify(result) });
    return { result, duplicate: false };
  }

  /** Which transaction runs the effect of an operation. */
  private readonly claimed = new Map<string, MemoryTransaction>();

  private given(): Manager {
    return this.manager ?? (NO_MANAGER as Manager);
  }
}

function read({ result, ...facts }: StoredReceipt): Receipt {
  return { ...facts, result: result === undefined ? undefined : JSON.parse(result) };
}

function assertGoesOn(authority: WriteAuthority): void {
  const reason = authority.ended();
  if (reason) throw reason;
}

/** A body that uses its manager although the test gave none is told what to do. */
const NO_MANAGER: unknown = new Proxy(Object.create(null) as object, {
  get(_, name) {
    if (typeof name === 'symbol' || name === 'then') return undefined;
    throw new FencingConfigError(
      `A fenced write uses ${name} of its manager, and there is none without a database: give FencingTestingModule.forRoot({ manager }) an object that has it.`,
    );
  },
});
