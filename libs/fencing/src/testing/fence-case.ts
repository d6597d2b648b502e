import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import type { Fence, WriteAuthority, WriteOutcome, WriteRequest } from '../core/fence.js';
import type { Grant } from '../core/lease-store.js';
import { type ContractTools, TEST_TIMEOUT_MS } from './contract-tools.js';

/** The database that a contract proves the fence of. */
export interface FencedDatabase<Manager> {
  /** Opens a fence on it, as each process of an application does. Called once or several times in a test; each is closed. */
  open(): Fence<Manager> | Promise<Fence<Manager>>;
  /** Keeps `text`, in the transaction of a fenced write. */
  note(manager: Manager, text: string): Promise<void>;
  /** All texts that committed transactions have kept, in any order. */
  noted(): Promise<readonly string[]>;
  /** Frees it, after its fences were closed. */
  close?(): Promise<void>;
}

/** Something that a test opens by hand. */
export class Door {
  open!: () => void;
  readonly opened = new Promise<void>((resolve) => (this.open = resolve));
}

/** One test: a database, the fences of two processes, and grants as a lease store would hand them out. */
export class FenceCase<Manager = unknown> {
  private readonly opened: Fence<Manager>[] = [];
  private readonly writes: { door: Door; outcome: Promise<unknown> }[] = [];

  private constructor(
    private readonly database: FencedDatabase<Manager>,
    readonly fence: Fence<Manager>,
    readonly other: Fence<Manager>,
  ) {
    this.opened.push(fence, other);
  }

  static async begin<Manager>(database: FencedDatabase<Manager>): Promise<FenceCase<Manager>> {
    const fence = await database.open();
    await fence.check();
    const other = await database.open();
    await other.check();
    return new FenceCase(database, fence, other);
  }

  async end(): Promise<void> {
    // A test that failed may have left writes open.
    for (const { door } of this.writes) door.open();
    await Promise.allSettled(this.writes.map(({ outcome }) => outcome));
    for (const fence of this.opened) await fence.close();
    await this.database.close?.();
  }

  note(manager: Manager, text: string): Promise<void> {
    return this.database.note(manager, text);
  }

  async assertNoted(text: string): Promise<void> {
    assert.ok((await this.database.noted()).includes(text), `'${text}' must have been committed`);
  }

  async assertNothingOf(text: string): Promise<void> {
    assert.ok(!(await this.database.noted()).includes(text), `nothing of '${text}' may remain`);
  }

  /** How often a text was kept. */
  async timesNoted(text: string): Promise<number> {
    return (await this.database.noted()).filter((one) => one === text).length;
  }

  async activate(grant: Grant, fence = this.fence): Promise<void> {
    assert.deepEqual(await fence.activate({ ...grant, waitMs: 20_000 }), { activated: true });
  }

  /** A grant that is activated. */
  async activated(generation = 1, key?: string): Promise<Grant> {
    const grant = newGrant(generation, key);
    await this.activate(grant);
    return grant;
  }

  write<T>(
    by: Grant | WriteAuthority,
    body: (manager: Manager) => Promise<T>,
    more: Partial<WriteRequest<Manager, T>> = {},
    fence = this.fence,
  ): Promise<WriteOutcome<T>> {
    const authority = 'grants' in by ? by : new TestAuthority([by]);
    return fence.write({ authority, retries: 0, body, ...more });
  }

  /** Begins a write that notes `text` and then waits at a door; resolves once its body runs. */
  async openWrite(
    by: Grant | WriteAuthority,
    text: string,
  ): Promise<{ door: Door; outcome: Promise<WriteOutcome<void>> }> {
    const [door, inside] = [new Door(), new Door()];
    const outcome = this.write(by, async (manager) => {
      await this.note(manager, text);
      inside.open();
      await door.opened;
    });
    this.writes.push({ door, outcome });
    outcome.catch(() => undefined);
    await Promise.race([inside.opened, outcome]);
    return { door, outcome };
  }

  /** A write that must be refused before its body runs, and leave nothing. */
  async assertStale(by: Grant | WriteAuthority, fence = this.fence): Promise<void> {
    const text = `refused ${randomUUID()}`;
    let ran = false;
    const refused = this.write(
      by,
      async (manager) => {
        ran = true;
        await this.note(manager, text);
      },
      {},
      fence,
    );
    await assert.rejects(refused, { code: 'STALE_GENERATION' });
    assert.ok(!ran, 'the body of a stale write does not run');
    await this.assertNothingOf(text);
  }
}

/** Registers a test of a fence. */
export type FenceTest = (title: string, body: (one: FenceCase) => Promise<void>) => void;

export function fenceTests<Manager>(
  { it }: ContractTools,
  make: () => FencedDatabase<Manager> | Promise<FencedDatabase<Manager>>,
): FenceTest {
  return (title, body) => {
    it(
      title,
      async () => {
        const one = await FenceCase.begin(await make());
        try {
          await body(one);
        } finally {
          await one.end();
        }
      },
      TEST_TIMEOUT_MS,
    );
  };
}

/** A grant; of a new key, unless it is given. */
export function newGrant(generation = 1, key = `key ${randomUUID()}`): Grant {
  return { key, generation, owner: randomUUID() };
}

/** The grant of the next owner of the same key. */
export function nextOf({ key, generation }: Grant): Grant {
  return newGrant(generation + 1, key);
}

/** Leases as a fence sees them, ended by hand. */
export class TestAuthority implements WriteAuthority {
  private reason: Error | undefined;
  private readonly listeners = new Set<(reason: Error) => void>();

  constructor(readonly grants: readonly Grant[]) {}

  remainingMs(): number {
    return this.reason ? 0 : 30_000;
  }

  ended(): Error | undefined {
    return this.reason;
  }

  onEnd(listener: (reason: Error) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  onRenewed(): () => void {
    return () => undefined;
  }

  /** The leases have ended, and everybody is told. */
  end(reason: Error): void {
    this.reason = reason;
    for (const listener of [...this.listeners]) listener(reason);
  }
}
