import 'reflect-metadata';
import { type DiscoveryService, ModuleRef } from '@nestjs/core';
import { FencingInterceptor } from './fencing.interceptor.js';
import type { AdoptedMethod } from './adopt-instances.js';
import { isWrapper, type WrapMark } from './wrapped-methods.js';

/** What makes Nest call a method from outside any lease, by the metadata of each package; interceptors run around the first. */
const HANDLERS: Readonly<Record<string, string>> = {
  path: 'a route',
  'microservices:pattern': 'a message handler',
  'websockets:message_mapping': 'a message handler',
  'graphql:resolver_type': 'a resolver',
};
const JOBS: Readonly<Record<string, string>> = {
  SCHEDULE_CRON_OPTIONS: 'a cron job',
  SCHEDULE_INTERVAL_OPTIONS: 'an interval',
  SCHEDULE_TIMEOUT_OPTIONS: 'a timeout',
  'bull:module_queue_process': 'a queue processor',
};
/** On the class: its `process` is called for each job. */
const WORKER_HOST = 'bullmq:processor_metadata';
const CONTROLLER = '__controller__';
const NEST_INTERCEPTORS = '__interceptors__';
const APP_INTERCEPTOR = 'APP_INTERCEPTOR';

/**
 * Fenced writes that certainly fail, as sentences: what Nest calls from outside has no lease but its own. Who calls other methods
 * cannot be seen; nor can a lease that an interceptor takes, so handlers with one of their own are left alone.
 * @param interceptorsLease whether a global interceptor may take leases
 */
export function reportUnleasedEntries(
  methods: readonly AdoptedMethod[],
  interceptorsLease: boolean,
): string[] {
  const mistakes = methods.flatMap((method) => {
    if (method.decorator !== '@FencedWrite' || !method.method || !isWrapper(method.method)) return [];
    const write = method.marks.findIndex(isWrite);
    if (method.marks.slice(write).some(isLease)) return [];
    const entry = entryOf(method, method.method, interceptorsLease);
    return entry === undefined ? [] : [sentence(method.where, entry, method.marks.some(isLease))];
  });
  // Descendants bring the methods of their ancestors again.
  return [...new Set(mistakes)];
}

/** Whether a global interceptor can reach what takes leases. One that `app.useGlobalInterceptors()` is given is not seen. */
export function interceptorsMayLease(discovery: DiscoveryService): boolean {
  const known = new Set(
    discovery.getProviders().filter(({ token }) => String(token).startsWith(APP_INTERCEPTOR)),
  );
  for (const wrapper of known) {
    if (takesLeases(wrapper.token)) return true;
    for (const one of wrapper.getCtorMetadata() ?? []) known.add(one);
    for (const one of wrapper.getPropertiesMetadata() ?? []) known.add(one.wrapper);
  }
  return false;
}

/** By name: the other copy (ESM or CommonJS) of the package has a class of its own. `ModuleRef` gets whatever there is. */
function takesLeases(token: unknown): boolean {
  if (typeof token === 'symbol') return token.description?.startsWith('nestjs-fencing/service/') ?? false;
  return token === ModuleRef || (token as { name?: unknown }).name === 'FencingService';
}

const isWrite = ({ decorator }: WrapMark) => decorator === '@FencedWrite';
const isLease = ({ decorator }: WrapMark) => decorator === '@Leased';

function sentence(where: string, entry: string, isLeasedInside: boolean): string {
  const what = `@FencedWrite on ${where}: it is ${entry}`;
  return isLeasedInside
    ? `${what}, and its @Leased stands below: the write would begin before its lease, so it is refused when Nest calls it. Put @Leased above @FencedWrite.`
    : `${what}, and takes no lease: when Nest calls it, it is refused with NoLeaseError. Put @Leased(key) above it, or @AcceptFencing(…) where ` +
        'its caller sends a lease; or move the write to a method that a leased one calls.';
}

/** What kind of entry point a method certainly is, if it is one. */
function entryOf(
  { constructor, name }: AdoptedMethod,
  method: object,
  interceptorsLease: boolean,
): string | undefined {
  const job = kindOf(JOBS, method);
  if (job) return job;
  if (name === 'process' && Reflect.hasMetadata(WORKER_HOST, constructor)) return 'a queue processor';
  if (interceptorsLease || isIntercepted(method) || isIntercepted(constructor)) return undefined;
  const handler = kindOf(HANDLERS, method);
  return handler === 'a route' && !Reflect.hasMetadata(CONTROLLER, constructor) ? undefined : handler;
}

function kindOf(kinds: Readonly<Record<string, string>>, method: object): string | undefined {
  const key = Object.keys(kinds).find((one) => Reflect.hasOwnMetadata(one, method));
  return key === undefined ? undefined : kinds[key];
}

/** Also by `@AcceptFencing`. */
function isIntercepted(target: object): boolean {
  const interceptors = (Reflect.getMetadata(NEST_INTERCEPTORS, target) ?? []) as { name?: string }[];
  return interceptors.some(({ name }) => name !== FencingInterceptor.name);
}
