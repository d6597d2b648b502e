import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import type { OperationRequest } from '../core/fence.js';
import { type FenceTest, nextOf } from './fence-case.js';

const operation = (fingerprint = 'payload', id = `op ${randomUUID()}`): OperationRequest => ({
  where: 'the contract',
  id,
  fingerprint,
});

/** Operations and their receipts. */
export function provesOperating(test: FenceTest): void {
  test('I10: commits an operation once; whoever sends it again gets the stored result, also under a later grant', async (one) => {
    const grant = await one.activated();
    const request = operation();
    const text = request.id;
    const first = await one.write(
      grant,
      async (manager) => {
        await one.note(manager, text);
        return { total: 7, list: ['a'] };
      },
      { operation: request },
    );
    assert.deepEqual([first.duplicate, first.committed], [false, true]);
    const next = nextOf(grant);
    await one.activate(next, one.other);
    const again = await one.write(
      next,
      async (manager) => {
        await one.note(manager, text);
        return { total: 0, list: [] as string[] };
      },
      { operation: request },
      one.other,
    );
    assert.equal(again.duplicate, true);
    assert.deepEqual(again.result, { total: 7, list: ['a'] });
    assert.equal(await one.timesNoted(text), 1);
    const receipt = await one.fence.receipt(request.id);
    assert.ok(receipt, 'there is a receipt');
    const { acceptedAt, ...facts } = receipt;
    const { fingerprint, id } = request;
    assert.deepEqual(facts, { ...grant, id, fingerprint, result: { total: 7, list: ['a'] } });
    assert.ok(acceptedAt instanceof Date);
  });

  test('I10: commits it once where many send it at the same time', async (one) => {
    const grant = await one.activated();
    const request = operation();
    const outcomes = await Promise.all(
      Array.from({ length: 8 }, (_, i) =>
        one.write(
          grant,
          async (manager) => {
            await one.note(manager, request.id);
            return i;
          },
          { operation: request },
          i % 2 ? one.fence : one.other,
        ),
      ),
    );
    assert.equal(await one.timesNoted(request.id), 1);
    assert.equal(outcomes.filter(({ duplicate }) => !duplicate).length, 1);
    assert.equal(new Set(outcomes.map(({ result }) => result)).size, 1, 'all have one result');
  });

  test('refuses an operation that comes again with another payload', async (one) => {
    const grant = await one.activated();
    const request = operation();
    await one.write(grant, async () => 1, { operation: request });
    const conflict = one.write(grant, (manager) => one.note(manager, 'other payload'), {
      operation: { ...request, fingerprint: 'another' },
    });
    await assert.rejects(conflict, { code: 'OPERATION_CONFLICT' });
    await one.assertNothingOf('other payload');
  });

  test('I4: a write that failed leaves no receipt, and may be sent again', async (one) => {
    const grant = await one.activated();
    const request = operation();
    const failed = one.write(grant, () => Promise.reject(new Error('of the body')), { operation: request });
    await assert.rejects(failed, /of the body/);
    assert.equal(await one.fence.receipt(request.id), undefined);
    assert.equal((await one.write(grant, async () => 2, { operation: request })).duplicate, false);
  });

  test('guards a duplicate as well: a stale owner is refused, and learns no result', async (one) => {
    const grant = await one.activated();
    const request = operation();
    await one.write(grant, async () => 'secret', { operation: request });
    await one.activate(nextOf(grant), one.other);
    await assert.rejects(
      one.write(grant, async () => 'x', { operation: request }),
      { code: 'STALE_GENERATION' },
    );
    const fresh = operation();
    await assert.rejects(
      one.write(grant, async () => 'x', { operation: fresh }),
      { code: 'STALE_GENERATION' },
    );
    assert.equal(await one.fence.receipt(fresh.id), undefined);
  });
}
