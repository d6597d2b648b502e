import {
  type Attributes,
  context,
  INVALID_SPAN_CONTEXT,
  type Span,
  SpanStatusCode,
  trace,
  type Tracer,
} from '@opentelemetry/api';
import {
  CommitUnknownError,
  FencingError,
  LeaseBusyError,
  LeaseLostError,
  LeaseReleasedError,
  LeaseUncertainError,
  StaleGenerationError,
  StoreUnavailableError,
} from '../core/errors.js';
import { keyLabel } from '../core/key-label.js';
import type { Lease } from '../core/lease.js';
import { type FencingTracer, tracing } from '../core/tracing.js';
import { GrantSpans } from './grant-spans.js';

/**
 * Makes a span of each leased call (with its wait) and each fenced write; what they call is inside. Spans carry no message of an error
 * and nothing that a caller passed in, but the key where `keys` is 'text'.
 * @returns how to stop
 */
export function traceCalls(tracer: Tracer, keys: 'hash' | 'text'): () => void {
  const own = new OtelTracer(tracer, keys === 'text' ? (key) => key : keyLabel);
  tracing.tracer = own;
  return () => {
    if (tracing.tracer === own) tracing.tracer = undefined;
  };
}

class OtelTracer implements FencingTracer {
  private readonly grants = new GrantSpans();

  constructor(
    private readonly tracer: Tracer,
    private readonly nameOf: (key: string) => string,
  ) {}

  leased<T>(
    instance: string,
    keys: readonly string[],
    call: (onLeased: (leases: readonly Lease[]) => void) => Promise<T>,
  ): Promise<T> {
    const attributes = {
      'fencing.instance': instance,
      'fencing.key': this.nameOf(keys[0]!),
      ...(keys.length > 1 ? { 'fencing.keys': keys.length } : {}),
    };
    return this.inSpan('fencing.lease', attributes, async (span) => {
      let begun = false;
      const result = await call((leases) => {
        begun = true;
        span.setAttribute('fencing.generation', leases[0]!.generation);
        span.addEvent('fencing.lease.granted');
        for (const lease of leases) this.grants.remember(lease, span.spanContext());
      });
      span.setAttribute('fencing.outcome', begun ? 'released' : 'busy');
      return result;
    });
  }

  write<T>(
    instance: string,
    where: string,
    leases: readonly Lease[],
    call: (onOutcome: (outcome: { duplicate: boolean; committed: boolean }) => void) => Promise<T>,
  ): Promise<T> {
    const [first] = leases;
    const attributes = {
      'fencing.instance': instance,
      'code.function.name': where.replace(/^@FencedWrite on /, ''),
      ...(first ? { 'fencing.key': this.nameOf(first.key), 'fencing.generation': first.generation } : {}),
      ...(leases.length > 1 ? { 'fencing.keys': leases.length } : {}),
    };
    return this.inSpan('fencing.write', attributes, (span) =>
      call(({ duplicate, committed }) =>
        span.setAttribute('fencing.outcome', duplicate ? 'duplicate' : committed ? 'accepted' : 'joined'),
      ),
    );
  }

  private inSpan<T>(name: string, attributes: Attributes, work: (span: Span) => Promise<T>): Promise<T> {
    const span = this.begin(name, attributes);
    return context.with(trace.setSpan(context.active(), span), async () => {
      try {
        return await work(span);
      } catch (error) {
        this.fail(span, error);
        throw error;
      } finally {
        try {
          span.end();
        } catch {
          // What a span processor throws must not change what becomes of the call.
        }
      }
    });
  }

  private begin(name: string, attributes: Attributes): Span {
    try {
      return this.tracer.startSpan(name, { attributes });
    } catch {
      return trace.wrapSpanContext(INVALID_SPAN_CONTEXT);
    }
  }

  private fail(span: Span, error: unknown): void {
    span.setAttribute('fencing.outcome', outcomeOf(error));
    // That somebody else has the key is no error of this call.
    if (error instanceof LeaseBusyError) return;
    span.setStatus({ code: SpanStatusCode.ERROR });
    span.setAttribute('error.type', typeOf(error));
    if (!(error instanceof StaleGenerationError)) return;
    const { key, currentGeneration: current } = error;
    if (current === undefined || key === undefined) return;
    span.setAttribute('fencing.current_generation', current);
    // Known where the grant was taken in this process. Of other processes the audit tells the owner.
    const superseding = this.grants.find(key, current);
    if (superseding) span.addLink({ context: superseding, attributes: { 'fencing.link': 'superseded_by' } });
  }
}

function outcomeOf(error: unknown): string {
  if (error instanceof LeaseBusyError) return 'busy';
  if (error instanceof StaleGenerationError) return 'stale';
  if (error instanceof CommitUnknownError) return 'unknown';
  if (error instanceof StoreUnavailableError) return 'unavailable';
  if (error instanceof LeaseLostError) return 'lost';
  if (error instanceof LeaseReleasedError || error instanceof LeaseUncertainError) return 'refused';
  return 'failed';
}

function typeOf(error: unknown): string {
  if (error instanceof FencingError) return error.code;
  return (error as { constructor?: { name?: string } } | null | undefined)?.constructor?.name || '_OTHER';
}
