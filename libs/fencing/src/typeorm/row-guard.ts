import type {
  EntityManager,
  EntityMetadata,
  EntityTarget,
  FindOptionsWhere,
  ObjectLiteral,
  QueryDeepPartialEntity,
} from 'typeorm';
import {
  FencingConfigError,
  RowMissingError,
  StaleGenerationError,
  StoreUnavailableError,
} from '../core/errors.js';
import { heldLease, leaseOfCall } from '../core/lease-of-call.js';
import type { HeldLease, Lease } from '../core/lease.js';
import { containLateRefusal } from '../core/late-refusal.js';
import { settleLease } from '../core/settle-lease.js';
import { generationColumnOf } from './generation-column.js';
import { GuardedRows } from './row-guard-statements.js';

/** One row: the value of its primary key, or an object with its primary key and, if you like, further conditions. */
export type RowOf<Entity> = string | number | FindOptionsWhere<Entity>;

/** `'unchanged'`: the row is there and no newer owner has written it, but the further conditions do not hold. */
export type RowOutcome = 'written' | 'unchanged';

/** How often a row that changes between a statement and the look at why it did nothing is tried again. */
const MOST_TRIES = 10;

/**
 * Writes single rows of an entity that has a `@GenerationColumn()`: each statement itself compares the row's generation with
 * the current lease's, and stamps it. For tables where the row *is* the resource (`@Leased('account:{0}')` writes the row of
 * that account): `await this.accounts.update({ id }, { balance })`. It costs one round trip and needs no fence table and no transaction; inside a `@FencedWrite` it joins it.
 *
 * What it does not give, and `@FencedWrite` does:
 *
 * - Nothing orders **reads**: what was read before may be old when a write is accepted. Only "a row is never written by an older
 *   owner than the one that wrote it last" holds (I1 for the row), not I2 or I3. A newer owner counts from its first write.
 * - **Several rows** are several statements: put them into a `@FencedWrite`.
 * - A row that was **deleted** forgets its generation: an older owner's `upsert` or `save` makes it anew. Where that matters mark
 *   the row as deleted by `update` instead.
 * - A generation **issued twice** (a lease store that lost its data while its clock was set back) is not noticed: a row has no
 *   owner to compare. A row that is ahead of the lease store heals as the fence does: this call is stale, the next grant is above.
 * - Whoever does not go through this class is not stopped: plain repositories, SQL. `protectTable` stops those.
 *
 * Every method rejects with `StaleGenerationError`, and for a lease that has ended or is missing as a fenced write does.
 */
export class FencedRepository<Entity extends ObjectLiteral> {
  private readonly rows: GuardedRows;

  /**
   * @param manager of the DataSource, or of a transaction that you opened
   * @throws FencingConfigError where the entity has no generation column
   */
  constructor(
    private readonly manager: EntityManager,
    private readonly entity: EntityTarget<Entity>,
    private readonly chosen?: Lease,
  ) {
    const { metadata } = manager.getRepository(entity);
    this.rows = new GuardedRows(manager, metadata, generationColumn(metadata));
  }

  /** The same for one lease of several that the current call stands on. */
  under(lease: Lease): FencedRepository<Entity> {
    const held = heldLease('FencedRepository.under()', lease);
    return new FencedRepository(this.manager, this.entity, held);
  }

  /**
   * Changes one row: `UPDATE … SET …, generation = $g WHERE … AND generation <= $g`.
   * @throws RowMissingError where there is no such row
   */
  update(row: RowOf<Entity>, changes: QueryDeepPartialEntity<Entity>): Promise<RowOutcome> {
    return this.change('update', row, (criteria, generation) =>
      this.rows.update(criteria, changes, generation),
    );
  }

  /**
   * Deletes one row. The row's generation goes with it: see above.
   * @throws RowMissingError where there is no such row
   */
  delete(row: RowOf<Entity>): Promise<RowOutcome> {
    return this.change('delete', row, (criteria, generation) => this.rows.delete(criteria, generation));
  }

  /**
   * Inserts one row, or changes the one that is there:
   * `INSERT … ON CONFLICT (…) DO UPDATE SET … WHERE generation <= $g`. Columns that `values` leaves out keep what they have.
   * @param conflict the properties of a unique index, where it is not the primary key
   */
  upsert(
    values: QueryDeepPartialEntity<Entity>,
    conflict?: readonly (string & keyof Entity)[],
  ): Promise<void> {
    return this.write('upsert', async (lease) => {
      await this.insertOrUpdate(this.rows, lease, values, conflict);
      this.accepted(lease);
    });
  }

  /**
   * Writes an entity: changes its row, or inserts it where there is none. Its generation becomes the lease's, whatever it was
   * when the entity was loaded; an entity without changes is written as well, so that its owner learns that it is late. Sets
   * the generation, and what the database filled in, on the entity. Relations are not cascaded to, and listeners of the entity
   * (`@BeforeUpdate()`) not called; subscribers are.
   */
  save(entity: Entity): Promise<Entity> {
    return this.write('save', async (lease) => {
      this.rows.assertOne('save', entity);
      const rows = this.rows.of(entity);
      const updated = rows.hasId(entity) ? await rows.updateEntity(entity, lease.generation) : undefined;
      const row = updated ?? (await this.insertOrUpdate(rows, lease, rows.valuesOf(entity)));
      rows.fill(entity, row);
      this.accepted(lease);
      return entity;
    });
  }

  // ----------------------------------------------------------------------------------------------------------- parts

  private change(
    method: string,
    row: RowOf<Entity>,
    send: (criteria: ObjectLiteral, generation: number) => Promise<boolean>,
  ): Promise<RowOutcome> {
    return this.write(method, async (lease) => {
      const criteria = this.rows.criteria(method, row);
      for (let tries = 0; tries < MOST_TRIES; tries++) {
        if (await send(criteria, lease.generation)) {
          this.accepted(lease);
          return 'written';
        }
        // Told apart by statements of their own: the one above does not see what was committed while it waited for the row.
        const current = await this.rows.generationOf(criteria);
        if (current === undefined) throw new RowMissingError(lease.key, this.rows.name);
        if (current > lease.generation) await this.refuse(lease, current);
        if (!(await this.rows.matches(criteria))) return 'unchanged';
      }
      throw this.restless(lease);
    });
  }

  private write<T>(method: string, work: (lease: HeldLease) => Promise<T>): Promise<T> {
    const run = async () => {
      const lease = this.lease(method);
      const pending = settleLease(lease);
      if (pending) await pending;
      return work(lease);
    };
    return containLateRefusal(run(), `FencedRepository.${method}()`);
  }

  private async insertOrUpdate(
    rows: GuardedRows,
    lease: HeldLease,
    values: ObjectLiteral,
    conflict?: readonly string[],
  ): Promise<ObjectLiteral> {
    for (let tries = 0; tries < MOST_TRIES; tries++) {
      const row = await rows.upsert(values, lease.generation, conflict);
      if (row) return row;
      const current = await rows.generationInConflict(values, conflict);
      if (current !== undefined && current > lease.generation) await this.refuse(lease, current);
    }
    throw this.restless(lease);
  }

  private lease(method: string): HeldLease {
    const what = `FencedRepository.${method}()`;
    return this.chosen ? heldLease(what, this.chosen) : leaseOfCall(what, 'repository.under(lease)');
  }

  /** Within a transaction it is accepted with its commit, and counted there. */
  private accepted(lease: HeldLease): void {
    if (!this.manager.queryRunner?.isTransactionActive) lease.acceptedWrites += 1;
  }

  /** A newer owner has written: no renewal can bring the lease back. */
  private async refuse(lease: HeldLease, current: number): Promise<never> {
    await lease.host.raise(lease, current);
    const stale = new StaleGenerationError(lease.key, lease.generation, current);
    lease.lose(stale);
    throw stale;
  }

  private restless({ key }: HeldLease): StoreUnavailableError {
    return new StoreUnavailableError(
      'database',
      `a row changed ${MOST_TRIES} times between a statement and the look at why it did nothing.`,
      { key },
    );
  }
}

function generationColumn(metadata: EntityMetadata) {
  const column = generationColumnOf(metadata);
  if (column) return column;
  throw new FencingConfigError(
    `FencedRepository of ${metadata.name}: the entity has no generation column. Add @GenerationColumn() generation!: number.`,
  );
}
