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
  type OperationRequest,
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

/** An open write: it keeps newer grants of its keys from being activated until it is over. */
class MemoryTransaction {
  isOver = false;
  /** What is committed with it. */
  readonly receipts = new Map<string, StoredReceipt>();
  private end!: () => void;
  readonly ended = new Promise<void>((resolve) => (this.end = resolve));

  constructor(readonly authority: WriteAuthority) {}

  guards(grants: readonly Grant[]): boolean {
    return grants.every(({ key, owner }) =>
      this.authority.grants.some((own) => own.key === key && own.owner === owner),
    );
  }

  finish(): void {
    this.isOver = true;
    this.end();
  }
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
    const { authority, operation, body } = request;
    const outer = this.surrounding();
    if (outer) {
      if (!outer.guards(authority.grants)) throw new LeaseOrderError(authority.grants[0]!.key);
      return { ...(await this.once(outer, operation, () => body(this.given()))), committed: false };
    }
    const transaction = new MemoryTransaction(authority);
    assertGoesOn(authority);
    this.guard(authority.grants);
    this.open.add(transaction);
    try {
      const effect = () => runInTransaction(this, transaction, () => body(this.given()));
      const outcome = await this.once(transaction, operation, effect);
      // As with a database: what ended its lease meanwhile is not committed.
      assertGoesOn(authority);
      for (const [id, receipt] of transaction.receipts) this.receipts.set(id, receipt);
      return { ...outcome, committed: !outcome.duplicate };
    } finally {
      this.open.delete(transaction);
      transaction.finish();
    }
  }

  inTransaction(): boolean {
    return this.surrounding() !== undefined;
  }

  async inspect(key: string): Promise<FenceSnapshot | undefined> {
    return this.rows.get(key);
  }

  async receipt(id: string): Promise<Receipt | undefined> {
    const stored = this.surrounding()?.receipts.get(id) ?? this.receipts.get(id);
    return stored && read(stored);
  }

  async pruneReceipts(olderThanMs: number): Promise<number> {
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
    const transaction = transactionOf(this) as MemoryTransaction | undefined;
    return transaction && !transaction.isOver ? transaction : undefined;
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
  private async once<T>(
    transaction: MemoryTransaction,
    operation: OperationRequest | undefined,
    effect: () => Promise<T>,
  ): Promise<{ result: T; duplicate: boolean }> {
    if (!operation) return { result: await effect(), duplicate: false };
    const { id, fingerprint, where } = operation;
    const known = transaction.receipts.get(id) ?? (await this.settled(id, transaction));
    if (known) {
      if (known.fingerprint !== fingerprint) throw new OperationConflictError(id);
      return { result: read(known).result as T, duplicate: true };
    }
    this.claimed.set(id, transaction);
    try {
      const result = await effect();
      assertJson(where, result);
      const [{ key, generation, owner }] = transaction.authority.grants as [Grant];
      const accepted = { id, key, generation, owner, fingerprint, acceptedAt: new Date() };
      transaction.receipts.set(id, { ...accepted, result: JSON.stringify(result) });
      return { result, duplicate: false };
    } catch (error) {
      this.claimed.delete(id);
      throw error;
    }
  }

  /** Which transaction runs the effect of an operation. */
  private readonly claimed = new Map<string, MemoryTransaction>();

  /** The receipt of an operation, once no other write is at it. */
  private async settled(id: string, own: MemoryTransaction): Promise<StoredReceipt | undefined> {
    for (let other; (other = this.claimed.get(id)) && other !== own && !other.isOver;) await other.ended;
    return this.receipts.get(id);
  }

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
