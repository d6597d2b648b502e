// The examples of docs/observability.md, compiled and run by test/otel.e2e-spec.ts.
// #region prometheus
import { PrometheusExporter } from '@opentelemetry/exporter-prometheus';
import { MeterProvider } from '@opentelemetry/sdk-metrics';
import { instrumentFencing } from 'nestjs-fencing/otel';

export function startMetrics(port: number) {
  const exporter = new PrometheusExporter({ port }); // serves /metrics
  const meterProvider = new MeterProvider({ readers: [exporter] });
  const instrumentation = instrumentFencing({ meterProvider });
  return async (): Promise<void> => {
    instrumentation.stop();
    await meterProvider.shutdown();
  };
}
// #endregion
