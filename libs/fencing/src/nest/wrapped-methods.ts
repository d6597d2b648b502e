import 'reflect-metadata';
import type { KeySource } from '../core/key.js';
import type { LeaseOptions } from '../core/options.js';

/** How a `@Leased` method takes its lease, as it was written. */
export interface LeaseMark {
  readonly keys: readonly KeySource[];
  readonly options: LeaseOptions;
  /** How many parameters callers pass: those of `@CurrentLease()` and those with a default are not among them. */
  readonly parameters: number;
}

/** What is noted on a method for each decorator of this package. */
export interface WrapMark {
  /** `Class.method`, for messages. */
  readonly where: string;
  /** `@Leased` or `@FencedWrite`. */
  readonly decorator: string;
  readonly instanceName: string;
  readonly needsFence: boolean;
  /** Of `@Leased`. */
  readonly lease?: LeaseMark;
}

/** A decorated method of a class or of one of its ancestors. */
export interface WrappedMethod extends WrapMark {
  readonly name: string | symbol;
  /** Whether the class's own method of that name has the decorator: an override may have lost it. */
  readonly isWrapped: boolean;
  /** The class's own method of that name, and all its marks, the innermost first. */
  readonly method: object | undefined;
  readonly marks: readonly WrapMark[];
}

const WRAPPED = Symbol.for('nestjs-fencing/wrapped');
const WRAPPER = Symbol.for('nestjs-fencing/wrapper');

/** One list for the ESM and the CommonJS copy of the package in a process. It grows with the classes that are loaded. */
const decorated = ((globalThis as Record<symbol, unknown>)[Symbol.for('nestjs-fencing/decorated')] ??=
  []) as WrapMark[];

/** A mark for each decorator of this package that this process has applied, whatever became of the class. */
export function decoratedMethods(): readonly WrapMark[] {
  return decorated;
}

/** Notes on `wrapper` what it wraps, with the marks that `method` already had. */
export function markWrapped(wrapper: object, method: object, mark: WrapMark): void {
  Reflect.defineMetadata(WRAPPED, [...marksOf(method), mark], wrapper);
  Reflect.defineMetadata(WRAPPER, wrapper, wrapper);
  decorated.push(mark);
}

/** Whether a decorator of this package is the outermost: another that wraps the method may have copied the marks. */
export function isWrapper(method: object): boolean {
  return Reflect.getOwnMetadata(WRAPPER, method) === method;
}

/** The decorated methods that instances of `prototype` have, or have overridden. */
export function wrappedMethodsOf(prototype: object): WrappedMethod[] {
  const found: WrappedMethod[] = [];
  for (
    let level = prototype;
    level && level !== Object.prototype;
    level = Object.getPrototypeOf(level) as object
  ) {
    for (const name of Reflect.ownKeys(level)) {
      const method = methodOf(ownerOf(prototype, name), name);
      const marks = marksOf(method);
      for (const mark of marksOf(methodOf(level, name))) {
        found.push({
          ...mark,
          name,
          isWrapped: marks.some(({ decorator }) => decorator === mark.decorator),
          method,
          marks,
        });
      }
    }
  }
  return found;
}

function marksOf(method: object | undefined): readonly WrapMark[] {
  return (method && (Reflect.getOwnMetadata(WRAPPED, method) as WrapMark[] | undefined)) ?? [];
}

function methodOf(level: object, name: string | symbol): object | undefined {
  const value: unknown = Object.getOwnPropertyDescriptor(level, name)?.value;
  return typeof value === 'function' ? value : undefined;
}

function ownerOf(prototype: object, name: string | symbol): object {
  let level = prototype;
  while (!Object.hasOwn(level, name)) level = Object.getPrototypeOf(level) as object;
  return level;
}
