import type { EntityManager, EntityMetadata, InsertQueryBuilder, ObjectLiteral } from 'typeorm';
import { FencingConfigError } from '../core/errors.js';
import { dataSourceOf } from './driver.js';
import { generationColumnOf } from './generation-column.js';

type ColumnMetadata = EntityMetadata['columns'][number];
type Insert = InsertQueryBuilder<ObjectLiteral>;

/** The statements of `FencedRepository`: each compares the row's generation with the writer's, and stamps it. */
export class GuardedRows {
  constructor(
    private readonly manager: EntityManager,
    private readonly metadata: EntityMetadata,
    private readonly generation: ColumnMetadata,
  ) {}

  get name(): string {
    return this.metadata.name;
  }

  /** Those of the class of an entity, where several share the table. */
  of(entity: ObjectLiteral): GuardedRows {
    const metadata = this.metadata.findInheritanceMetadata(entity);
    if (metadata === this.metadata) return this;
    return new GuardedRows(this.manager, metadata, generationColumnOf(metadata)!);
  }

  /** @returns whether a row was changed */
  async update(criteria: ObjectLiteral, changes: ObjectLiteral, generation: number): Promise<boolean> {
    for (const column of this.metadata.primaryColumns) {
      if (column.getEntityValue(changes) !== undefined)
        throw this.wrong('update', `must not change the primary key (${column.propertyPath})`);
    }
    const { affected } = await this.updateStatement(criteria, changes, generation).execute();
    return affected !== 0;
  }

  /** @returns the row as it is now, where it was there and not newer */
  async updateEntity(entity: ObjectLiteral, generation: number): Promise<ObjectLiteral | undefined> {
    const changes: ObjectLiteral = {};
    for (const column of this.writable(entity)) {
      if (!column.isPrimary && column.isUpdate) column.setEntityValue(changes, column.getEntityValue(entity));
    }
    const { raw } = (await this.updateStatement(this.idOf(entity), changes, generation)
      .returning(this.readable)
      .execute()) as { raw: ObjectLiteral[] };
    return raw[0];
  }

  /** @returns whether a row was deleted */
  async delete(criteria: ObjectLiteral, generation: number): Promise<boolean> {
    const builder = this.manager.createQueryBuilder().delete().from(this.metadata.target).where(criteria);
    const { affected } = await builder.andWhere(this.notNewer(), { fencingGeneration: generation }).execute();
    return affected !== 0;
  }

  /** @returns the row as it is now, unless a newer one is there */
  async upsert(
    values: ObjectLiteral,
    generation: number,
    conflict?: readonly string[],
  ): Promise<ObjectLiteral | undefined> {
    const target = this.conflictColumns(conflict);
    const overwritten = this.writable(values).filter(
      (column) => column.isInsert && column.isUpdate && !column.isPrimary && !target.includes(column),
    );
    const row = this.stamped(values, generation);
    const builder = this.manager.createQueryBuilder().insert().into(this.metadata.target).values(row);
    // The name that the statement gives to its table, which TypeORM picks.
    const { tablePath } = this.metadata;
    const name = (builder.alias === tablePath ? tablePath.split('.') : [builder.alias])
      .map((part) => builder.escape(part))
      .join('.');
    const [set, of] = [[...overwritten, this.generation], target].map((columns) =>
      columns.map(({ databaseName }) => databaseName),
    ) as [string[], string[]];
    const where = this.notNewer(`${name}.`);
    builder.orUpdate(set, of, {
      overwriteCondition: { where, parameters: { fencingGeneration: generation } },
    });
    // Before TypeORM 0.3.25 the condition is left out, without a word.
    if (!(builder.expressionMap.onUpdate as { overwriteCondition?: unknown }).overwriteCondition)
      this.onConflict(builder, set, of, where).setParameter('fencingGeneration', generation);
    const { raw } = (await builder.updateEntity(false).returning(this.readable).execute()) as {
      raw: ObjectLiteral[];
    };
    return raw[0];
  }

  /** The generation of the row with the primary key in `criteria`, as it is committed now. */
  generationOf(criteria: ObjectLiteral): Promise<number | undefined> {
    return this.readGeneration(this.idOf(criteria));
  }

  /** The generation of the row that an upsert of `values` runs into. */
  generationInConflict(values: ObjectLiteral, conflict?: readonly string[]): Promise<number | undefined> {
    const criteria: ObjectLiteral = {};
    for (const column of this.conflictColumns(conflict))
      column.setEntityValue(criteria, column.getEntityValue(values));
    return this.readGeneration(criteria);
  }

  async matches(criteria: ObjectLiteral): Promise<boolean> {
    return (await this.readGeneration(criteria)) !== undefined;
  }

  /** Sets on an entity what a statement answered: the generation, and what the entity left to the database. */
  fill(entity: ObjectLiteral, row: ObjectLiteral): void {
    const { driver } = dataSourceOf(this.metadata)!;
    for (const column of this.metadata.columns) {
      const value: unknown = row[column.databaseName];
      // Virtual: of a relation, or the discriminator; the entity has no property of its own for it.
      if (value === undefined || column.isVirtual) continue;
      if (!this.isOurs(column) && column.getEntityValue(entity) !== undefined) continue;
      column.setEntityValue(entity, driver.prepareHydratedValue(value, column));
    }
  }

  valuesOf(entity: ObjectLiteral): ObjectLiteral {
    const values: ObjectLiteral = {};
    for (const column of this.writable(entity)) column.setEntityValue(values, column.getEntityValue(entity));
    return values;
  }

  hasId(entity: ObjectLiteral): boolean {
    return this.metadata.primaryColumns.every((column) => isGiven(column.getEntityValue(entity)));
  }

  /** @throws FencingConfigError unless it is one entity */
  assertOne(method: string, entity: unknown): void {
    if (typeof entity === 'object' && entity !== null && !Array.isArray(entity)) return;
    throw this.wrong(method, 'takes one entity; several rows belong into a @FencedWrite');
  }

  /**
   * The conditions of one row.
   * @throws FencingConfigError where they could fit several, or one of them is missing
   */
  criteria(method: string, row: unknown): ObjectLiteral {
    const { primaryColumns } = this.metadata;
    const criteria: ObjectLiteral =
      typeof row === 'object' && row !== null
        ? row
        : primaryColumns.length === 1 && isGiven(row)
          ? this.metadata.ensureEntityIdMap(row)
          : {};
    for (const column of primaryColumns) {
      const value: unknown = column.getEntityValue(criteria);
      if (!isGiven(value) || isOperator(value))
        throw this.wrong(method, `needs the primary key (${column.propertyPath}) of one row`);
    }
    for (const [name, value] of Object.entries(criteria)) {
      // TypeORM may leave such a condition out, or never find it true.
      if (!isGiven(value)) throw this.wrong(method, `has the condition ${name}, which is ${String(value)}`);
    }
    return criteria;
  }

  // ----------------------------------------------------------------------------------------------------------- parts

  private updateStatement(criteria: ObjectLiteral, changes: ObjectLiteral, generation: number) {
    return this.manager
      .createQueryBuilder()
      .update(this.metadata.target)
      .set(this.stamped(changes, generation))
      .where(criteria)
      .andWhere(this.notNewer(), { fencingGeneration: generation });
  }

  /** The clause in words of SQL, as `orUpdate` makes it in later versions. */
  private onConflict(builder: Insert, set: readonly string[], of: readonly string[], where: string): Insert {
    const quoted = (names: readonly string[]) => names.map((name) => builder.escape(name));
    const updates = [
      ...quoted(set).map((name) => `${name} = EXCLUDED.${name}`),
      ...this.metadata.columns
        .filter(({ isUpdateDate }) => isUpdateDate)
        .map(({ databaseName }) => `${builder.escape(databaseName)} = DEFAULT`),
    ];
    return (builder as Insert & { onConflict(clause: string): Insert }).onConflict(
      `(${quoted(of).join(', ')}) DO UPDATE SET ${updates.join(', ')} WHERE ${where}`,
    );
  }

  /** A row that has no generation yet was never written under a lease. */
  private notNewer(table = ''): string {
    return `(${table}"${this.generation.databaseName}" <= :fencingGeneration) IS NOT FALSE`;
  }

  private stamped(values: ObjectLiteral, generation: number): ObjectLiteral {
    const stamped = { ...values };
    this.generation.setEntityValue(stamped, generation);
    return stamped;
  }

  private async readGeneration(criteria: ObjectLiteral): Promise<number | undefined> {
    const [text, parameters] = this.manager
      .createQueryBuilder(this.metadata.target, 'row')
      .select(`coalesce(row.${this.generation.propertyPath}, 0)`, 'generation')
      .where(criteria)
      .withDeleted()
      .getQueryAndParameters();
    // As plain SQL it goes to the primary: a replica may not have what was just refused.
    const [row] = await this.manager.query<{ generation: string }[]>(text, parameters);
    return row && Number(row.generation);
  }

  private conflictColumns(conflict?: readonly string[]): ColumnMetadata[] {
    if (!conflict) return this.metadata.primaryColumns;
    return conflict.flatMap((path) => {
      const columns = this.metadata.findColumnsWithPropertyPath(path);
      if (columns.length === 0) throw this.wrong('upsert', `knows no property '${path}'`);
      return columns;
    });
  }

  /** The columns that `values` has something for and that the database does not keep itself. */
  private writable(values: ObjectLiteral): ColumnMetadata[] {
    return this.metadata.columns.filter(
      (column) =>
        column.getEntityValue(values) !== undefined &&
        !column.isVirtualProperty &&
        column.generatedType === undefined &&
        !this.isOurs(column),
    );
  }

  /** Whose values the database, or this class, decides. */
  private isOurs(column: ColumnMetadata): boolean {
    return column === this.generation || column.isVersion || column.isUpdateDate;
  }

  private get readable(): string[] {
    return this.metadata.columns
      .filter(({ isSelect, isVirtualProperty }) => isSelect && !isVirtualProperty)
      .map(({ propertyPath }) => propertyPath);
  }

  private idOf(values: ObjectLiteral): ObjectLiteral {
    const id: ObjectLiteral = {};
    for (const column of this.metadata.primaryColumns)
      column.setEntityValue(id, column.getEntityValue(values));
    return id;
  }

  private wrong(method: string, problem: string): FencingConfigError {
    return new FencingConfigError(`FencedRepository.${method}() of ${this.name} ${problem}.`);
  }
}

function isGiven(value: unknown): boolean {
  return value !== undefined && value !== null;
}

/** `In(…)`, `MoreThan(…)` and the like. */
function isOperator(value: unknown): boolean {
  return typeof value === 'object' && value !== null && '@instanceof' in value;
}
