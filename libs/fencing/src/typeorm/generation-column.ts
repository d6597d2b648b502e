import { Column, type ColumnOptions, type EntityMetadata } from 'typeorm';
import { FencingConfigError } from '../core/errors.js';
import { checkChoice } from '../core/options.js';

/** Where an entity class notes the name of its generation column; subclasses inherit it. */
const GENERATION_COLUMN = Symbol.for('nestjs-fencing/generation-column');
/** Set where the application does not want a trigger on the table. */
const WITHOUT_TRIGGER = Symbol.for('nestjs-fencing/without-trigger');

type ColumnMetadata = EntityMetadata['columns'][number];

/** Options of `@GenerationColumn()`: those of a TypeORM column, and whether the table has a trigger. */
export interface GenerationColumnOptions extends Omit<ColumnOptions, 'type' | 'array' | 'transformer'> {
  /** `false`: the table has no trigger (see `protectTable`), and the boot does not ask for one. @default true */
  trigger?: boolean;
}

/**
 * The column that says under which generation a row was written last; 0 for a row that no lease ever wrote. `bigint` in the
 * database, a `number` in the entity: generations are safe integers:
 * `@GenerationColumn() generation!: number`.
 *
 * @throws FencingConfigError where a class has two
 */
export function GenerationColumn({
  trigger = true,
  ...options
}: GenerationColumnOptions = {}): PropertyDecorator {
  checkChoice('@GenerationColumn', 'trigger', trigger, [true, false]);
  return (target, property) => {
    const entity = target.constructor as unknown as Record<symbol, string | symbol | undefined>;
    const known = entity[GENERATION_COLUMN];
    if (known !== undefined && known !== property) {
      throw new FencingConfigError(
        `${target.constructor.name} has two @GenerationColumn(): ${String(known)} and ${String(property)}. A row has one generation.`,
      );
    }
    Object.defineProperty(entity, GENERATION_COLUMN, { value: property });
    if (!trigger) Object.defineProperty(entity, WITHOUT_TRIGGER, { value: true });
    Column({
      default: 0,
      ...options,
      type: 'bigint',
      transformer: { to: (value: unknown) => value, from: toNumber },
    })(target, property);
  };
}

/** The generation column of an entity, if it has one. */
export function generationColumnOf({ target, columns }: EntityMetadata): ColumnMetadata | undefined {
  const property =
    typeof target === 'function'
      ? (target as unknown as Record<symbol, string | undefined>)[GENERATION_COLUMN]
      : undefined;
  return columns.find(({ propertyPath }) => propertyPath === property);
}

/** Whether the table of an entity should have a trigger. */
export function wantsTrigger({ target }: EntityMetadata): boolean {
  return !(target as unknown as Record<symbol, unknown>)[WITHOUT_TRIGGER];
}

function toNumber(value: unknown): unknown {
  return typeof value === 'string' ? Number(value) : value;
}
