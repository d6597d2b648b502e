import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { Attributes, Meter } from '@opentelemetry/api';
import { type FencingEvent, type FencingEventName, fencingChannelName } from '../core/events.js';

/** OpenTelemetry measures in seconds; its default bounds are made for ms. */
const SECONDS = {
  unit: 's',
  advice: {
    explicitBucketBoundaries: [
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300,
    ],
  },
};

type Handlers = {
  [Name in FencingEventName]?: (event: Extract<FencingEvent, { readonly name: Name }>) => void;
};

/**
 * Turns the events of the process into metrics. Labels are `fencing.instance`, `fencing.outcome` and `fencing.reason`, each of a small
 * fixed set: the number of series does not grow with keys or calls.
 * @returns how to stop
 */
export function recordMetrics(meter: Meter): () => void {
  const wait = meter.createHistogram('fencing.lease.wait', {
    description: 'Time from a call to its lease, or to giving up.',
    ...SECONDS,
  });
  const hold = meter.createHistogram('fencing.lease.hold', {
    description: 'Time for which a lease was held.',
    ...SECONDS,
  });
  const margin = meter.createHistogram('fencing.lease.renewal.margin', {
    description: 'Validity that was left when a renewal was confirmed. Near 0: the ttl is too short.',
    ...SECONDS,
  });
  const uncertain = meter.createHistogram('fencing.lease.uncertain', {
    description: 'Time for which a lease was in doubt, of those that were.',
    ...SECONDS,
  });
  const held = meter.createUpDownCounter('fencing.lease.held', {
    description: 'Leases held now by running calls.',
    unit: '{lease}',
  });
  const contentions = meter.createCounter('fencing.lease.contentions', {
    description: 'Calls that found their key taken.',
    unit: '{call}',
  });
  const duration = meter.createHistogram('fencing.write.duration', {
    description: 'Time from a fenced write to its commit.',
    ...SECONDS,
  });
  const writes = meter.createCounter('fencing.writes', {
    description: 'Fenced writes by what became of them.',
    unit: '{write}',
  });
  const unavailable = meter.createCounter('fencing.unavailable', {
    description: 'Requests that the lease store or the database did not answer, or could not serve.',
    unit: '{request}',
  });
  const heals = meter.createCounter('fencing.store.heals', {
    description: 'Times that the lease store was behind the database: it lost data.',
    unit: '{time}',
  });
  const dropped = meter.createCounter('fencing.audit.dropped', {
    description: 'Rows of the audit that were given up.',
    unit: '{row}',
  });

  const label = ({ instance }: { instance: string }, outcome?: string, reason?: string): Attributes => ({
    'fencing.instance': instance,
    ...(outcome === undefined ? {} : { 'fencing.outcome': outcome }),
    ...(reason === undefined ? {} : { 'fencing.reason': reason }),
  });
  // Of leases whose beginning was seen: one that was there before must not be subtracted.
  const open = new Set<string>();
  const ended = (event: FencingEvent & { readonly owner: string; readonly uncertainMs: number }) => {
    if (event.uncertainMs > 0) uncertain.record(event.uncertainMs / 1_000, label(event));
    if (open.delete(event.owner)) held.add(-1, label(event));
  };

  return listen({
    'lease.contended': (event) => contentions.add(1, label(event)),
    'lease.busy': (event) => wait.record(event.waitedMs / 1_000, label(event, 'busy')),
    'lease.acquired': (event) => {
      wait.record(event.waitedMs / 1_000, label(event, 'acquired'));
      open.add(event.owner);
      held.add(1, label(event));
    },
    'lease.renewed': (event) => {
      margin.record(Math.max(0, event.marginMs) / 1_000, label(event));
      if (event.uncertainMs > 0) uncertain.record(event.uncertainMs / 1_000, label(event));
    },
    'lease.released': (event) => {
      hold.record(event.heldMs / 1_000, label(event, 'released'));
      ended(event);
    },
    'lease.lost': (event) => {
      hold.record(event.heldMs / 1_000, label(event, 'lost', event.reason));
      ended(event);
    },
    'write.accepted': (event) => {
      writes.add(1, label(event, 'accepted'));
      duration.record(event.tookMs / 1_000, label(event, 'accepted'));
    },
    'write.stale': (event) => writes.add(1, label(event, 'stale')),
    'write.refused': (event) => writes.add(1, label(event, 'refused', event.code)),
    'write.unknown': (event) => {
      writes.add(1, label(event, 'unknown'));
      duration.record(event.tookMs / 1_000, label(event, 'unknown'));
    },
    'operation.duplicate': (event) => writes.add(1, label(event, 'duplicate')),
    'store.unavailable': (event) => unavailable.add(1, label(event, undefined, event.store)),
    'store.healed': (event) => heals.add(1, label(event)),
    'audit.dropped': (event) => dropped.add(event.count, label(event, undefined, event.cause)),
  });
}

function listen(handlers: Handlers): () => void {
  const stops = Object.entries(handlers).map(([name, handle]) => {
    const channel = fencingChannelName(name as FencingEventName);
    const listener = (event: unknown): void => (handle as (event: unknown) => void)(event);
    subscribe(channel, listener);
    return () => void unsubscribe(channel, listener);
  });
  return () => stops.forEach((stop) => stop());
}
