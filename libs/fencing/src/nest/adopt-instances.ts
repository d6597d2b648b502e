import type { DiscoveryService } from '@nestjs/core';
import { FencingConfigError } from '../core/errors.js';
import type { FencingRuntime } from './fencing.runtime.js';
import { runtimeProperty } from './tokens.js';
import { type WrappedMethod, wrappedMethodsOf } from './wrapped-methods.js';

/** A decorated method of a class of the application. */
export interface AdoptedMethod extends WrappedMethod {
  /** The class, which may have it from an ancestor. */
  readonly constructor: object;
}

type Wrapper = ReturnType<DiscoveryService['getProviders']>[number];

/**
 * Gives instances of decorated classes their runtime. Nest injects it into those that it makes itself; a factory's, a given
 * object and a test's are looked for here, once at boot. What would run unprotected in silence is refused, however and
 * whenever the instance was made.
 */
export class InstanceAdopter {
  private readonly checked = new WeakSet<object>();
  /** The decorated methods of the classes that were checked, until they are asked for. */
  private found: AdoptedMethod[] = [];
  /** What Nest did not make may outlive this application, and belongs to the next one then. */
  private readonly adopted = new Set<object>();

  constructor(private readonly runtime: FencingRuntime) {}

  /**
   * @returns the decorated methods of all classes
   * @throws FencingConfigError naming the class and the method
   */
  adoptAll(discovery: DiscoveryService): readonly AdoptedMethod[] {
    for (const wrapper of [...discovery.getProviders(), ...discovery.getControllers()]) {
      if (wrapper.isFactory && !wrapper.isDependencyTreeStatic()) this.watchFactory(wrapper);
      const { instance } = wrapper as { instance: unknown };
      const transients = wrapper.getStaticTransientInstances().map((one): unknown => one?.instance);
      for (const one of [instance, ...transients]) {
        if (this.adopt(one)) this.adopted.add(one as object);
      }
      const prototype = (wrapper.metatype as { prototype?: unknown } | null)?.prototype;
      if (isObject(prototype)) this.check(prototype);
    }
    const { found } = this;
    this.found = [];
    return found;
  }

  /**
   * @param isMarked whether its class is known to have decorated methods: another decorator may hide them
   * @returns whether the instance got its runtime now
   * @throws FencingConfigError naming the class and the method
   */
  adopt(instance: unknown, isMarked = false): boolean {
    if (!isObject(instance)) return false;
    const property = runtimeProperty(this.runtime.name);
    const decorated = this.check(Object.getPrototypeOf(instance) as object | null);
    if (!(decorated || isMarked) || Object.hasOwn(instance, property) || !Object.isExtensible(instance))
      return false;
    Object.defineProperty(instance, property, { value: this.runtime, enumerable: false, configurable: true });
    return true;
  }

  /** Lets go what may outlive the application. */
  close(): void {
    const property = runtimeProperty(this.runtime.name);
    for (const instance of this.adopted) Reflect.deleteProperty(instance, property);
    this.adopted.clear();
  }

  // ----------------------------------------------------------------------------------------------------------- parts

  /**
   * Whether the class has decorated methods of this runtime.
   * @throws FencingConfigError naming the class and the method
   */
  private check(prototype: object | null): boolean {
    if (!prototype) return false;
    const methods = wrappedMethodsOf(prototype).filter(
      ({ instanceName }) => instanceName === this.runtime.name,
    );
    if (methods.length === 0 || this.checked.has(prototype)) return methods.length > 0;
    for (const { name, where, decorator, isWrapped, needsFence } of methods) {
      if (!isWrapped) {
        throw new FencingConfigError(
          `${prototype.constructor.name}.${String(name)} overrides ${where} without ${decorator} and would run unprotected. ` +
            'Decorate the override as well; if it calls super, that joins the same lease.',
        );
      }
      if (needsFence && !this.runtime.hasFence) {
        throw new FencingConfigError(
          `${where} is a @FencedWrite, and FencingModule has no fence: add fence: typeOrmFence().`,
        );
      }
    }
    this.checked.add(prototype);
    this.found.push(...methods.map((one) => ({ ...one, constructor: prototype.constructor })));
    return true;
  }

  /** A factory that runs per request (or per injection) gives its instances only when they are needed. */
  private watchFactory(wrapper: Wrapper): void {
    const factory = wrapper.metatype as (...args: unknown[]) => unknown;
    wrapper.metatype = async (...args: unknown[]) => {
      const instance = await factory(...args);
      this.adopt(instance);
      return instance;
    };
  }
}

function isObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null;
}
