import type { DiscoveryService } from '@nestjs/core';
import { FencingConfigError } from '../core/errors.js';
import type { FencingRuntime } from './fencing.runtime.js';
import { runtimeProperty } from './tokens.js';
import { wrappedMethodsOf } from './wrap-method.js';

/**
 * Looks at every instance of the application once, at boot: gives those that a factory or a test made their runtime, and
 * refuses what would run unprotected in silence.
 * @throws FencingConfigError naming the class and the method
 */
export function adoptInstances(runtime: FencingRuntime, discovery: DiscoveryService): void {
  const property = runtimeProperty(runtime.name);
  for (const { instance, metatype } of [...discovery.getProviders(), ...discovery.getControllers()]) {
    const prototype: unknown = instance && typeof instance === 'object' ? Object.getPrototypeOf(instance) : metatype?.prototype;
    if (typeof prototype !== 'object' || prototype === null) continue;
    const methods = wrappedMethodsOf(prototype).filter(({ instanceName }) => instanceName === runtime.name);
    if (methods.length === 0) continue;
    for (const { name, where, isWrapped, needsFence } of methods) {
      if (!isWrapped) {
        throw new FencingConfigError(
          `${prototype.constructor.name}.${String(name)} overrides ${where} without its decorator and would run unprotected. ` +
            'Decorate the override as well; if it calls super, that joins the same lease.',
        );
      }
      if (needsFence && !runtime.hasFence) {
        throw new FencingConfigError(`${where} is a @FencedWrite, and FencingModule has no fence: add fence: typeOrmFence().`);
      }
    }
    if (instance && typeof instance === 'object' && !(property in instance) && Object.isExtensible(instance)) {
      Object.defineProperty(instance, property, { value: runtime, enumerable: false, configurable: true, writable: true });
    }
  }
}
