import {
  type ActivationAnswer,
  type ActivationRequest,
  Fence,
  type Grant,
  type WriteAuthority,
  type WriteOutcome,
  type WriteRequest,
} from 'nestjs-fencing';

/** A fence that is right; each mutant spoils one thing of it. */
export class RightFence<Manager> extends Fence<Manager> {
  constructor(protected readonly inner: Fence<Manager>) {
    super();
  }
  check() {
    return this.inner.check();
  }
  activate(request: ActivationRequest): Promise<ActivationAnswer> {
    return this.inner.activate(request);
  }
  write<T>(request: WriteRequest<Manager, T>): Promise<WriteOutcome<T>> {
    return this.inner.write(request);
  }
  inTransaction() {
    return this.inner.inTransaction();
  }
  inspect(key: string) {
    return this.inner.inspect(key);
  }
  receipt(id: string) {
    return this.inner.receipt(id);
  }
  pruneReceipts(olderThanMs: number) {
    return this.inner.pruneReceipts(olderThanMs);
  }
  revoke(request: Parameters<Fence['revoke']>[0]) {
    return this.inner.revoke(request);
  }
  pruneAudit(olderThanMs: number) {
    return this.inner.pruneAudit(olderThanMs);
  }
  close() {
    return this.inner.close();
  }
}

/** The same authority, with other grants. */
function withGrants(authority: WriteAuthority, grants: readonly Grant[]): WriteAuthority {
  return {
    grants,
    remainingMs: () => authority.remainingMs(),
    ended: () => authority.ended(),
    onEnd: (listener) => authority.onEnd(listener),
    onRenewed: (listener) => authority.onRenewed(listener),
  };
}

/** Writes under whatever the fence names, where `passes` lets the grant through. */
abstract class LooseGuard<Manager> extends RightFence<Manager> {
  protected abstract passes(grant: Grant, fence: { generation: number; owner: string }): boolean;
  override async write<T>(request: WriteRequest<Manager, T>): Promise<WriteOutcome<T>> {
    const grants: Grant[] = [];
    for (const grant of request.authority.grants) {
      const fence = await this.inner.inspect(grant.key);
      grants.push(fence && this.passes(grant, fence) ? { ...grant, ...fence } : grant);
    }
    return this.inner.write({ ...request, authority: withGrants(request.authority, grants) });
  }
}

class NewerPasses<Manager> extends LooseGuard<Manager> {
  protected passes(grant: Grant, fence: { generation: number }) {
    return grant.generation > fence.generation;
  }
}

class OlderPasses<Manager> extends LooseGuard<Manager> {
  protected passes(grant: Grant, fence: { generation: number }) {
    return grant.generation < fence.generation;
  }
}

class OwnerNotCompared<Manager> extends LooseGuard<Manager> {
  protected passes(grant: Grant, fence: { generation: number }) {
    return grant.generation === fence.generation;
  }
}

/** A key without a row is nobody's, so anybody may write. */
class NoRowPasses<Manager> extends RightFence<Manager> {
  override async write<T>(request: WriteRequest<Manager, T>): Promise<WriteOutcome<T>> {
    for (const grant of request.authority.grants)
      if (!(await this.inner.inspect(grant.key))) await this.inner.activate({ ...grant, waitMs: 1_000 });
    return this.inner.write(request);
  }
}

class OnlyTheFirstKey<Manager> extends RightFence<Manager> {
  override write<T>(request: WriteRequest<Manager, T>): Promise<WriteOutcome<T>> {
    const [first] = request.authority.grants;
    return this.inner.write({ ...request, authority: withGrants(request.authority, [first!]) });
  }
}

/** Does not look whether the leases have ended. */
class EndIgnored<Manager> extends RightFence<Manager> {
  override write<T>(request: WriteRequest<Manager, T>): Promise<WriteOutcome<T>> {
    const authority = {
      ...withGrants(request.authority, request.authority.grants),
      remainingMs: () => 30_000,
      ended: () => undefined,
      onEnd: () => () => undefined,
    };
    return this.inner.write({ ...request, authority });
  }
}

/** Says nothing of a refusal. */
class SilentlyStale<Manager> extends RightFence<Manager> {
  override async write<T>(request: WriteRequest<Manager, T>): Promise<WriteOutcome<T>> {
    try {
      return await this.inner.write(request);
    } catch (error) {
      if ((error as { code?: string }).code !== 'STALE_GENERATION') throw error;
      return { result: undefined as T, duplicate: false, committed: true };
    }
  }
}

class ReceiptsIgnored<Manager> extends RightFence<Manager> {
  override write<T>(request: WriteRequest<Manager, T>): Promise<WriteOutcome<T>> {
    return this.inner.write({ ...request, operation: undefined });
  }
}

class PayloadNotCompared<Manager> extends RightFence<Manager> {
  override write<T>(request: WriteRequest<Manager, T>): Promise<WriteOutcome<T>> {
    const { operation } = request;
    return this.inner.write({ ...request, operation: operation && { ...operation, fingerprint: 'any' } });
  }
}

/** Looks for the receipt first, and writes it after the effect. */
class ReceiptAfterTheEffect<Manager> extends RightFence<Manager> {
  override async write<T>(request: WriteRequest<Manager, T>): Promise<WriteOutcome<T>> {
    const { operation } = request;
    if (!operation || (await this.inner.receipt(operation.id))) return this.inner.write(request);
    const { result } = await this.inner.write({ ...request, operation: undefined });
    return this.inner.write({ ...request, body: async () => result });
  }
}

class ActivationTakesAny<Manager> extends RightFence<Manager> {
  override async activate(request: ActivationRequest): Promise<ActivationAnswer> {
    await this.inner.activate(request);
    return { activated: true };
  }
}

/** Answers its own generation instead of the fence's. */
class ActivationTellsNothing<Manager> extends RightFence<Manager> {
  override async activate(request: ActivationRequest): Promise<ActivationAnswer> {
    const { activated } = await this.inner.activate(request);
    return activated ? { activated } : { activated, generation: request.generation };
  }
}

/** A retry is refused like anybody's. */
class ActivationOnce<Manager> extends RightFence<Manager> {
  override async activate(request: ActivationRequest): Promise<ActivationAnswer> {
    const fence = await this.inner.inspect(request.key);
    if (fence && fence.generation >= request.generation)
      return { activated: false, generation: fence.generation };
    return this.inner.activate(request);
  }
}

/** Compares, and lets the body run when the transaction of the comparison is over: nothing keeps the fence. */
class GuardBeforeTheWrite<Manager> extends RightFence<Manager> {
  override async write<T>(request: WriteRequest<Manager, T>): Promise<WriteOutcome<T>> {
    let manager!: Manager;
    const outcome = await this.inner.write({ ...request, body: async (one) => void (manager = one) });
    return { ...outcome, result: await request.body(manager) };
  }
}

type MutantFence = new <Manager>(inner: Fence<Manager>) => RightFence<Manager>;

/** Each mistake, and a part of the title of a test that finds it. */
export const MUTANT_FENCES: readonly (readonly [MutantFence, string])[] = [
  [NewerPasses, 'a newer grant that was not activated'],
  [OlderPasses, 'refuses a write of an older grant'],
  [OwnerNotCompared, 'the same generation of another owner may not write'],
  [NoRowPasses, 'where the key was never activated'],
  [OnlyTheFirstKey, 'guards every key of a write'],
  [OnlyTheFirstKey, 'I3: keeps every key'],
  [EndIgnored, 'starts nothing once the leases have ended'],
  [EndIgnored, 'commits nothing of a write whose leases end'],
  [SilentlyStale, 'refuses a write of an older grant'],
  [ReceiptsIgnored, 'I10: commits an operation once'],
  [PayloadNotCompared, 'with another payload'],
  [ReceiptAfterTheEffect, 'where many send it at the same time'],
  [ActivationTakesAny, 'refuses a lower generation'],
  [ActivationTellsNothing, 'refuses a lower generation'],
  [ActivationOnce, 'content with the same grant'],
  [GuardBeforeTheWrite, 'I2: waits for open writes'],
  [GuardBeforeTheWrite, 'takes back what a body did'],
];
