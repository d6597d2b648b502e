import { Barrier, eventually, Gate } from './gate.js';

it('a gate holds until it is opened, and not after', async () => {
  const gate = new Gate();
  const passed: string[] = [];
  const waiter = gate.wait().then(() => passed.push('waited'));
  await Promise.resolve();
  expect([gate.isOpen, passed]).toEqual([false, []]);
  gate.open();
  await waiter;
  await gate.wait();
  expect([gate.isOpen, passed]).toEqual([true, ['waited']]);
});

it('a barrier holds everyone until the last has come', async () => {
  const barrier = new Barrier(3);
  const passed: number[] = [];
  const first = [1, 2].map((party) => barrier.arrive().then(() => passed.push(party)));
  await Promise.resolve();
  expect(passed).toEqual([]);
  await barrier.arrive();
  await Promise.all(first);
  expect(passed).toEqual([1, 2]);
});

describe('eventually', () => {
  it('returns the first truthy answer, and asks again after an error', async () => {
    let asked = 0;
    const answer = await eventually(
      () => {
        if (++asked < 3) throw new Error('not yet');
        return asked === 3 ? 0 : 'there';
      },
      { everyMs: 1 },
    );
    expect([answer, asked]).toEqual(['there', 4]);
  });

  it('fails with the last answer', async () => {
    const never = eventually(() => null, { timeoutMs: 20, everyMs: 1 });
    await expect(never).rejects.toThrow('not so within 20 ms; last seen: null');
  });
});
