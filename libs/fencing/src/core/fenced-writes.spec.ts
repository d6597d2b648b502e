import { afterEach, describe, expect, it } from '@jest/globals';
import { ManualClock } from '../testing/manual-clock.js';
import { MemoryLeaseStore } from '../testing/memory-lease-store.js';
import { CommitUnknownError } from './errors.js';
import type { FencingEvent } from './events.js';
import { Fence, type WriteRequest } from './fence.js';
import { FencedWrites } from './fenced-writes.js';
import { LeaseKeeper } from './lease-keeper.js';
import { silentLogger } from './logger.js';
import { resolveLeaseOptions } from './options.js';

/** A fence whose first commit has no answer. */
class UnansweredFence extends Fence {
  writes = 0;
  async check() {}
  async activate() {
    return { activated: true } as const;
  }
  async write<T>({ authority, body }: WriteRequest<unknown, T>) {
    this.writes += 1;
    const result = await body(undefined);
    if (this.writes === 1) throw new CommitUnknownError(authority.grants[0]!.key, new Error('cut'));
    return { result, duplicate: false, committed: true };
  }
  inTransaction() {
    return false;
  }
  async inspect() {
    return undefined;
  }
  async receipt() {
    return undefined;
  }
  async pruneReceipts() {
    return 0;
  }
  revoke(): never {
    throw new Error('not here');
  }
  async pruneAudit() {
    return 0;
  }
  async close() {}
}

describe('a commit of unknown outcome', () => {
  const fence = new UnansweredFence();
  const store = new MemoryLeaseStore();
  const clock = new ManualClock();
  const keeper = new LeaseKeeper({ store, fence, clock, logger: silentLogger, storeTimeoutMs: 2_000 });
  const writes = new FencedWrites(keeper, fence);
  const write = () => writes.write('test', {}, async () => undefined);
  const options = resolveLeaseOptions('test');

  afterEach(() => {
    fence.writes = 0;
  });

  it('I3, I4: ends the lease, since a later write of the same grant could overwrite it', async () => {
    let second: unknown;
    const call = keeper.run(['key', 'another key'], options, async (leases) => {
      await write().catch(() => undefined);
      second = await write().catch((error: unknown) => error);
      expect(leases.map(({ state }) => state)).toEqual(['lost', 'lost']);
      return 'went on';
    });
    await expect(call).rejects.toMatchObject({ code: 'LEASE_LOST', reason: 'unsettled', result: 'went on' });
    expect(second).toMatchObject({ code: 'LEASE_LOST', reason: 'unsettled' });
    expect(fence.writes).toBe(1);
  });

  it('is told as write.unknown, with the grant and the method that wrote', async () => {
    const heard: FencingEvent[] = [];
    const stop = keeper.events.listen((event) => heard.push(event), ['write.unknown', 'lease.lost']);
    let owner = '';
    const call = keeper.run(['key'], options, async ([lease]) => {
      ({ owner } = lease!);
      await writes.write('@FencedWrite on Rows.save', {}, async () => clock.advance(40));
    });
    await expect(call).rejects.toBeInstanceOf(CommitUnknownError);
    stop();
    expect(heard).toMatchObject([
      { name: 'lease.lost', reason: 'unsettled', owner },
      { name: 'write.unknown', key: 'key', owner, tookMs: 40, where: '@FencedWrite on Rows.save' },
    ]);
  });

  it('is what the caller gets, and the next call takes a lease of its own', async () => {
    await expect(keeper.run(['key'], options, write)).rejects.toBeInstanceOf(CommitUnknownError);
    await expect(keeper.run(['key'], options, write)).resolves.toBeUndefined();
  });

  it('of another database, which a body let through, does not end the lease: this write was rolled back', async () => {
    fence.writes = 1;
    await keeper.run(['key'], options, async ([lease]) => {
      const failing = writes.write('test', {}, async () => {
        throw new CommitUnknownError('of the other', new Error('cut'));
      });
      await expect(failing).rejects.toBeInstanceOf(CommitUnknownError);
      expect(lease!.state).toBe('held');
    });
  });
});
