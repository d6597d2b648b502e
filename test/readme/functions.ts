// The second example of the README: what stands between the region marks is there word for word (readme.e2e-spec.ts).
import 'reflect-metadata';
// #region functions
import { Injectable } from '@nestjs/common';
import { FencingService, LeaseBusyError, StaleGenerationError } from 'nestjs-fencing';
import type { EntityManager } from 'typeorm';

@Injectable()
export class StockService {
  constructor(private readonly fencing: FencingService) {}

  async recount(sku: string, count: () => Promise<number>): Promise<'counted' | 'busy' | 'superseded'> {
    try {
      await this.fencing.run(`stock:${sku}`, { ttlMs: 10_000, waitMs: 0 }, async (lease) => {
        const counted = await count();
        lease.assertHeld(); // optional: stops early once going on is pointless
        await this.fencing.write({}, (manager: EntityManager) =>
          manager.query('INSERT INTO stock VALUES ($1, $2) ON CONFLICT (sku) DO UPDATE SET count = $2', [
            sku,
            counted,
          ]),
        );
      });
      return 'counted';
    } catch (error) {
      if (error instanceof LeaseBusyError) return 'busy';
      if (error instanceof StaleGenerationError) return 'superseded';
      throw error;
    }
  }
}
// #endregion
