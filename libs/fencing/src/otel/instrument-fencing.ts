import { type MeterProvider, metrics, trace, type TracerProvider } from '@opentelemetry/api';
import { checkChoice, checkNames } from '../core/options.js';
import { recordMetrics } from './fencing-metrics.js';
import { traceCalls } from './fencing-spans.js';

/** Options of `instrumentFencing`. */
export interface FencingInstrumentationOptions {
  /** Where the metrics go; `false`: none are recorded. @default the global one of `@opentelemetry/api` */
  meterProvider?: MeterProvider | false;
  /** Where the spans go; `false`: none are made. @default the global one of `@opentelemetry/api` */
  tracerProvider?: TracerProvider | false;
  /**
   * How spans name a key: `'hash'` (as `keyLabel` does) or `'text'`, in full. Keys often carry personal data. Metrics never name keys.
   * @default 'hash'
   */
  keys?: 'hash' | 'text';
}

/** What was set up, and how to take it back. */
export interface FencingInstrumentation {
  /** Stops recording. May be called twice. */
  stop(): void;
}

/** The one of this process, also where both the ESM and the CommonJS copy of the package are loaded. */
const current = ((globalThis as Record<symbol, unknown>)[Symbol.for('nestjs-fencing/otel')] ??= {}) as {
  stop?: () => void;
};

const SCOPE = 'nestjs-fencing';

/**
 * Records metrics and spans of all leases and fenced writes of this process with OpenTelemetry. Call it once, when the process starts,
 * after the providers were registered. Calling it again replaces what was set up before: nothing is counted twice.
 * Until it is called, nothing is computed.
 *
 * ```ts
 * instrumentFencing(); // beside the registration of your SDK
 * ```
 * @throws FencingConfigError where an option is wrong
 */
export function instrumentFencing(options: FencingInstrumentationOptions = {}): FencingInstrumentation {
  const where = 'instrumentFencing';
  checkNames(where, options, ['meterProvider', 'tracerProvider', 'keys']);
  const { meterProvider = metrics, tracerProvider = trace, keys = 'hash' } = options;
  checkChoice(where, 'keys', keys, ['hash', 'text']);

  current.stop?.();
  const stops = [
    meterProvider ? recordMetrics(meterProvider.getMeter(SCOPE)) : undefined,
    tracerProvider ? traceCalls(tracerProvider.getTracer(SCOPE), keys) : undefined,
  ];
  const stop = (): void => {
    stops.splice(0).forEach((one) => one?.());
    if (current.stop === stop) current.stop = undefined;
  };
  current.stop = stop;
  return { stop };
}
