import {
  type ActivationAnswer,
  Fence,
  type FenceSource,
  type WriteOutcome,
  type WriteRequest,
} from 'nestjs-fencing';
import { DataSource, type EntityManager } from 'typeorm';

/**
 * WHAT NOT TO DO. This is what a lock alone gives: whoever got it writes, whenever that may be. It exists for
 * `npm run drill -- --without-fence`, to show what the fence is for; the package itself has no way to switch it off.
 *
 * It activates nothing and checks nothing: the body runs in a plain transaction, its operation id is not looked at, and
 * nobody asks whether the lease still stands. What injected repositories do is not even in that transaction, as always
 * in TypeORM.
 */
class UnfencedFence extends Fence<EntityManager> {
  constructor(private readonly dataSource: DataSource) {
    super();
  }

  async check(): Promise<void> {}

  async activate(): Promise<ActivationAnswer> {
    return { activated: true };
  }

  async write<T>({ body }: WriteRequest<EntityManager, T>): Promise<WriteOutcome<T>> {
    const result = await this.dataSource.transaction((manager) => body(manager));
    return { result, duplicate: false, committed: true };
  }

  inTransaction(): boolean {
    return false;
  }

  async inspect(): Promise<undefined> {
    return undefined;
  }

  async receipt(): Promise<undefined> {
    return undefined;
  }

  async pruneReceipts(): Promise<number> {
    return 0;
  }

  revoke(): never {
    throw new Error('There is no fence to raise.');
  }

  async pruneAudit(): Promise<number> {
    return 0;
  }

  async close(): Promise<void> {}
}

export function unfenced(): FenceSource {
  return {
    token: DataSource,
    tokenHelp: 'The drill has no DataSource.',
    create: (dataSource) => new UnfencedFence(dataSource as DataSource),
  };
}
