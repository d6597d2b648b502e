// The example of docs/observability.md, compiled and run by test/health.e2e-spec.ts.
// #region health
import { Controller, Get } from '@nestjs/common';
import { HealthCheckService } from '@nestjs/terminus';
import { FencingHealthIndicator } from 'nestjs-fencing';

@Controller()
export class HealthController {
  constructor(
    private readonly health: HealthCheckService, // import TerminusModule
    private readonly fencing: FencingHealthIndicator, // FencingModule provides it
  ) {}

  @Get('health')
  check() {
    return this.health.check([() => this.fencing.isHealthy()]);
  }
}
// #endregion
