/** The name of the instance that `FencingModule.forRoot()` without a name makes. */
export const DEFAULT_INSTANCE = 'default';

/**
 * Token of an instance's runtime. Its description is what Nest prints when the module is missing. `Symbol.for`, so that the ESM
 * and the CommonJS copy of the package mean the same.
 */
export function runtimeToken(name = DEFAULT_INSTANCE): symbol {
  const call =
    name === DEFAULT_INSTANCE ? 'FencingModule.forRoot()' : `FencingModule.forRoot({ name: '${name}' })`;
  return Symbol.for(`nestjs-fencing: import ${call} in the root module`);
}

/** The property under which decorated classes get the runtime of an instance. */
export function runtimeProperty(name = DEFAULT_INSTANCE): symbol {
  return Symbol.for(`nestjs-fencing/runtime/${name}`);
}

/**
 * Token of the `FencingService` of a named instance. The default one is injected by its class; without a name, this is a token of
 * it that the ESM and the CommonJS copy of the package share, for a process that loads both.
 *
 * ```ts
 * constructor(@Inject(fencingServiceToken('billing')) private readonly fencing: FencingService) {}
 * ```
 */
export function fencingServiceToken(name = DEFAULT_INSTANCE): symbol {
  return Symbol.for(`nestjs-fencing/service/${name}`);
}

/** Token of the `FencingHealthIndicator` of a named instance, for `@Inject`; that of the default one is injected by its class. */
export function fencingHealthToken(name: string): symbol {
  return Symbol.for(`nestjs-fencing/health/${name}`);
}

/** Token of the `FencingEvents` of a named instance, for `@Inject`; those of the default one are injected by their class. */
export function fencingEventsToken(name: string): symbol {
  return Symbol.for(`nestjs-fencing/events/${name}`);
}
