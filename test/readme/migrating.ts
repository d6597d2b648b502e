import { Injectable } from '@nestjs/common';
import { FencedWrite, FencingService, LeaseBusyError, Leased } from 'nestjs-fencing';

// #region redlock
@Injectable()
export class Reports {
  constructor(private readonly fencing: FencingService) {}

  async rebuild(id: string): Promise<void> {
    await this.fencing.run(`report:${id}`, { ttlMs: 10_000, waitMs: 2_000 }, async (lease) => {
      const totals = await this.readLedger(id, lease.signal);
      lease.assertHeld();
      await this.publish(id, totals);
    });
  }

  @FencedWrite()
  async publish(id: string, totals: number): Promise<string> {
    return `${id}: ${totals}`; // the writes, with plain TypeORM
  }

  async readLedger(id: string, signal: AbortSignal): Promise<number> {
    signal.throwIfAborted();
    return id.length;
  }
}
// #endregion

// #region nest-redlock
@Injectable()
export class Carts {
  @Leased('cart:{0}', { ttlMs: 5_000 })
  async checkout(cartId: string): Promise<string> {
    return this.place(cartId);
  }

  @FencedWrite()
  async place(cartId: string): Promise<string> {
    return `order of ${cartId}`; // the writes, with plain TypeORM
  }
}
// #endregion

// #region redis-semaphore
@Injectable()
export class Stock {
  constructor(private readonly fencing: FencingService) {}

  async reserve(sku: string): Promise<'reserved' | 'busy'> {
    try {
      await using lease = await this.fencing.acquire(`stock:${sku}`, { ttlMs: 10_000, waitMs: 0 });
      await lease.run(() => this.fencing.write({}, () => undefined)); // the writes
      return 'reserved';
    } catch (error) {
      if (error instanceof LeaseBusyError) return 'busy';
      throw error;
    }
  }
}
// #endregion

// #region shedlock
@Injectable()
export class Nightly {
  @Leased('nightly', { ttlMs: 30_000, waitMs: 0, onBusy: 'skip', holdAtLeastMs: 60_000 })
  async run(): Promise<void> {
    await this.clean();
  }

  @FencedWrite()
  async clean(): Promise<void> {} // the writes, with plain TypeORM
}
// #endregion
