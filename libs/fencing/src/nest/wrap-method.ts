import 'reflect-metadata';
import { Inject, UseInterceptors } from '@nestjs/common';
import { FencingConfigError } from '../core/errors.js';
import { containLateRefusal } from '../core/late-refusal.js';
import { currentLeasePositions } from './current-lease.decorator.js';
import { FencingInterceptor } from './fencing.interceptor.js';
import { FencingRuntime } from './fencing.runtime.js';
import { DEFAULT_INSTANCE, runtimeProperty, runtimeToken } from './tokens.js';
import { type LeaseMark, markWrapped } from './wrapped-methods.js';

export type Method = (this: unknown, ...args: unknown[]) => unknown;

export interface WrapRequest {
  /** For messages, e.g. `@Leased`. */
  readonly decorator: string;
  readonly instanceName?: string;
  readonly needsFence: boolean;
  /** Of `@Leased`, for the boot report and the key map. */
  readonly lease?: Omit<LeaseMark, 'parameters'>;
  /** What a call does instead of the method. */
  call(runtime: FencingRuntime, args: unknown[], method: (args: unknown[]) => unknown): Promise<unknown>;
}

const NEST_INTERCEPTORS = '__interceptors__';
const NEST_PROPERTIES = 'self:properties_metadata';

/**
 * Replaces a method by one that runs `request.call` around it. Name, length, own properties and all metadata are kept, so
 * routes, guards, pipes, cron jobs and API documents stay as they were, in every order of decorators. The class gets the
 * runtime by property injection, so a missing module stops the boot.
 */
export function wrapMethod(
  target: object,
  name: string | symbol,
  descriptor: PropertyDescriptor,
  request: WrapRequest,
): void {
  const where = `${target.constructor.name}.${String(name)}`;
  // A field (`run = async () => …`) comes without one; compilers that look at no types let it pass.
  const method = (descriptor as PropertyDescriptor | undefined)?.value as Method | undefined;
  checkMethod(request.decorator, where, target, method);
  const instanceName = request.instanceName ?? DEFAULT_INSTANCE;
  const property = runtimeProperty(instanceName);
  injectOnce(target, property, instanceName);

  // Not `async`: each layer of promises is paid for by every call. Callers get a promise all the same: nothing throws before it.
  const wrapper = function (this: unknown, ...args: unknown[]): Promise<unknown> {
    let outcome: Promise<unknown>;
    try {
      const runtime = FencingRuntime.of(this, property, instanceName, where);
      outcome = request.call(runtime, args, (given) => method.apply(this, given));
    } catch (error) {
      outcome = Promise.reject(error);
    }
    return containLateRefusal(outcome, where);
  };
  copyFace(method, wrapper);
  const { decorator, needsFence } = request;
  const lease = request.lease && { ...request.lease, parameters: parametersOf(target, name, method) };
  markWrapped(wrapper, method, { where, decorator, instanceName, needsFence, lease });
  descriptor.value = wrapper;

  const interceptors = (Reflect.getMetadata(NEST_INTERCEPTORS, wrapper) as unknown[] | undefined) ?? [];
  if (!interceptors.includes(FencingInterceptor))
    UseInterceptors(FencingInterceptor)(target, name, descriptor);
}

function checkMethod(
  decorator: string,
  where: string,
  target: object,
  method: Method | undefined,
): asserts method is Method {
  if (typeof method !== 'function')
    throw new FencingConfigError(
      `${decorator} on ${where}: only methods can be decorated, with "experimentalDecorators" in tsconfig.json.`,
    );
  if (typeof target === 'function')
    throw new FencingConfigError(
      `${decorator} on ${where}: static methods have no injected runtime; use an instance method.`,
    );
  if (/Generator/.test(method.constructor.name)) {
    throw new FencingConfigError(
      `${decorator} on ${where}: a generator runs after its call has returned; return a promise, an Observable, a stream or an async iterable.`,
    );
  }
}

function parametersOf(target: object, name: string | symbol, method: Method): number {
  const leases = currentLeasePositions(target, name).filter((position) => position < method.length);
  return method.length - leases.length;
}

/** Has Nest inject the runtime, and the runtime look at each class that it is injected into, also long after the boot. */
function injectOnce(target: object, property: symbol, instanceName: string): void {
  const injected =
    (Reflect.getMetadata(NEST_PROPERTIES, target.constructor) as { key: unknown }[] | undefined) ?? [];
  if (injected.some(({ key }) => key === property)) return;
  Inject(runtimeToken(instanceName))(target, property);
  Object.defineProperty(target, property, {
    configurable: true,
    set(this: object, runtime: Partial<FencingRuntime>) {
      // A test may have mocked it: then each call says so.
      runtime.adopt?.(this);
    },
  });
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
