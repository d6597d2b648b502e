import { StoreUnavailableError } from '../core/errors.js';
import type {
  AcquireAnswer,
  AcquireRequest,
  LeaseSnapshot,
  ReleaseAnswer,
  ReleaseRequest,
  RenewRequest,
} from '../core/lease-store.js';
import { MemoryLeaseStore } from './memory-lease-store.js';

/** The memory lease store as a server that can hang: what is sent meanwhile is carried out when it goes on. */
export class StallingLeaseStore extends MemoryLeaseStore {
  private stalled: Promise<void> | undefined;
  private goOn: (() => void) | undefined;
  isClosed = false;

  freeze(): void {
    this.stalled ??= new Promise((resolve) => (this.goOn = resolve));
  }

  thaw(): void {
    this.goOn?.();
    this.stalled = this.goOn = undefined;
  }

  override async acquire(request: AcquireRequest): Promise<AcquireAnswer> {
    await this.stalled;
    return super.acquire(request);
  }

  override async renew(requests: readonly RenewRequest[]): Promise<boolean[]> {
    await this.stalled;
    return super.renew(requests);
  }

  override async release(request: ReleaseRequest): Promise<ReleaseAnswer> {
    await this.stalled;
    return super.release(request);
  }

  override async withdraw(key: string, waiterId: string): Promise<void> {
    await this.stalled;
    return super.withdraw(key, waiterId);
  }

  /** Nobody bounds this one but the store itself. */
  override async inspect(key: string): Promise<LeaseSnapshot | undefined> {
    if (this.stalled) throw new StoreUnavailableError('lease store', 'it is frozen.', { key });
    return super.inspect(key);
  }

  override async close(): Promise<void> {
    this.isClosed = true;
    this.thaw();
    await super.close();
  }
}
