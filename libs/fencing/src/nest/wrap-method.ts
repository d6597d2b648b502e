import 'reflect-metadata';
import { Inject, UseInterceptors } from '@nestjs/common';
import { FencingConfigError } from '../core/errors.js';
import { FencingInterceptor } from './fencing.interceptor.js';
import { FencingRuntime } from './fencing.runtime.js';
import { DEFAULT_INSTANCE, runtimeProperty, runtimeToken } from './tokens.js';

export type Method = (this: unknown, ...args: unknown[]) => unknown;

export interface WrapRequest {
  /** For messages, e.g. `@Leased`. */
  readonly decorator: string;
  readonly instanceName?: string;
  readonly needsFence: boolean;
  /** What a call does instead of the method. */
  call(runtime: FencingRuntime, args: unknown[], method: (args: unknown[]) => unknown, where: string): unknown;
}

/** A decorated method of a class or of one of its ancestors. */
export interface WrappedMethod {
  readonly name: string | symbol;
  readonly where: string;
  readonly instanceName: string;
  readonly needsFence: boolean;
  /** Whether the class's own method of that name is decorated: an override may have lost it. */
  readonly isWrapped: boolean;
}

const WRAPPED = Symbol.for('nestjs-fencing/wrapped');
const NEST_INTERCEPTORS = '__interceptors__';
const NEST_PROPERTIES = 'self:properties_metadata';

/**
 * Replaces a method by one that runs `request.call` around it. Name, length, own properties and all metadata are kept, so
 * routes, guards, pipes, cron jobs and API documents stay as they were, in every order of decorators. The class gets the
 * runtime by property injection, so a missing module stops the boot.
 */
export function wrapMethod(target: object, name: string | symbol, descriptor: PropertyDescriptor, request: WrapRequest): void {
  const where = `${target.constructor.name}.${String(name)}`;
  const method = descriptor.value as Method | undefined;
  checkMethod(request.decorator, where, target, method);
  const instanceName = request.instanceName ?? DEFAULT_INSTANCE;
  const property = runtimeProperty(instanceName);
  injectOnce(target, property, instanceName);

  const wrapper = function (this: unknown, ...args: unknown[]): unknown {
    // The promise that callers get: nothing here throws before it.
    return (async () => {
      const runtime = FencingRuntime.of(this, property, instanceName, where);
      return request.call(runtime, args, (given) => method.apply(this, given), where);
    })();
  };
  copyFace(method, wrapper);
  const marks = (Reflect.getOwnMetadata(WRAPPED, method) as object[] | undefined) ?? [];
  Reflect.defineMetadata(WRAPPED, [...marks, { where, instanceName, needsFence: request.needsFence }], wrapper);
  descriptor.value = wrapper;

  const interceptors = (Reflect.getMetadata(NEST_INTERCEPTORS, wrapper) as unknown[] | undefined) ?? [];
  if (!interceptors.includes(FencingInterceptor)) UseInterceptors(FencingInterceptor)(target, name, descriptor);
}

/** The decorated methods that instances of `prototype` have or have overridden. */
export function wrappedMethodsOf(prototype: object): WrappedMethod[] {
  const found = new Map<string | symbol, WrappedMethod[]>();
  for (let level = prototype; level && level !== Object.prototype; level = Object.getPrototypeOf(level) as object) {
    for (const name of Reflect.ownKeys(level)) {
      const value: unknown = Object.getOwnPropertyDescriptor(level, name)?.value;
      if (typeof value !== 'function' || found.has(name)) continue;
      const marks = marksOf(value);
      if (marks.length === 0) continue;
      const current: unknown = Object.getOwnPropertyDescriptor(ownerOf(prototype, name), name)?.value;
      const isWrapped = typeof current === 'function' && marksOf(current).length > 0;
      found.set(name, marks.map((mark) => ({ ...mark, name, isWrapped })));
    }
  }
  return [...found.values()].flat();
}

function marksOf(method: object): Omit<WrappedMethod, 'name' | 'isWrapped'>[] {
  return (Reflect.getOwnMetadata(WRAPPED, method) as Omit<WrappedMethod, 'name' | 'isWrapped'>[] | undefined) ?? [];
}

function ownerOf(prototype: object, name: string | symbol): object {
  let level = prototype;
  while (!Object.hasOwn(level, name)) level = Object.getPrototypeOf(level) as object;
  return level;
}

function checkMethod(decorator: string, where: string, target: object, method: Method | undefined): asserts method is Method {
  if (typeof target === 'function') throw new FencingConfigError(`${decorator} on ${where}: static methods have no injected runtime; use an instance method.`);
  if (typeof method !== 'function') throw new FencingConfigError(`${decorator} on ${where}: only methods can be decorated.`);
  if (/Generator/.test(method.constructor.name)) {
    throw new FencingConfigError(`${decorator} on ${where}: a generator runs after its call has returned; return a promise, an Observable or a stream.`);
  }
}

function injectOnce(target: object, property: symbol, instanceName: string): void {
  const injected = (Reflect.getMetadata(NEST_PROPERTIES, target.constructor) as { key: unknown }[] | undefined) ?? [];
  if (!injected.some(({ key }) => key === property)) Inject(runtimeToken(instanceName))(target, property);
}

function copyFace(from: Method, to: Method): void {
  for (const name of Reflect.ownKeys(from)) {
    if (name === 'prototype') continue;
    Object.defineProperty(to, name, Object.getOwnPropertyDescriptor(from, name)!);
  }
  for (const key of Reflect.getOwnMetadataKeys(from) as unknown[]) {
    Reflect.defineMetadata(key, Reflect.getOwnMetadata(key, from), to);
  }
}
