import { describe, expect, it } from '@jest/globals';
import { observe } from '../../../../test/support/faulty-store.js';
import { ManualClock } from '../testing/manual-clock.js';
import { StoreUnavailableError } from './errors.js';
import { Probe } from './probe.js';

describe('a probe', () => {
  const clock = new ManualClock();
  const never = () => new Promise<never>(() => undefined);

  it('finds no trouble where there is an answer', async () => {
    expect(await new Probe(clock, async () => 'anything').trouble(1_000)).toBeUndefined();
  });

  it('tells the code of what went wrong, and nothing of its message', async () => {
    const cause = Object.assign(new Error('for customer 42'), { code: 'ECONNREFUSED' });
    const fail = async () => {
      throw new StoreUnavailableError('lease store', 'no answer.', { cause });
    };
    expect(await new Probe(clock, fail).trouble(1_000)).toBe('ECONNREFUSED');
  });

  it('answers at its deadline where there is no answer', async () => {
    const check = observe(new Probe(clock, never).trouble(1_000));
    await clock.advance(999);
    expect(check.state).toBe('pending');
    await clock.advance(1);
    expect(check.value).toBe('no answer within 1000 ms');
  });

  it('I11: has one question open, however often it is asked; a stuck one is asked anew after ten seconds', async () => {
    let asked = 0;
    const probe = new Probe(clock, () => {
      asked += 1;
      return never();
    });
    for (let i = 0; i < 60; i++) {
      void probe.trouble(500);
      await clock.advance(1_000);
    }
    expect(asked).toBe(6);
  });

  it('hears of a recovery at the next question', async () => {
    let answer = never as () => Promise<unknown>;
    const probe = new Probe(clock, () => answer());
    const first = observe(probe.trouble(1_000));
    await clock.advance(1_000);
    expect(first.value).toBe('no answer within 1000 ms');
    answer = async () => undefined;
    await clock.advance(10_000);
    expect(await probe.trouble(1_000)).toBeUndefined();
  });
});
