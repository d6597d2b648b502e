import { describe, expect, it } from '@jest/globals';
import { breachesOf, type StoreEvent } from './lease-store-history.js';

const KEY = 'k';
const granted = (
  owner: string,
  generation: number,
  sentAt: number,
  more: Partial<StoreEvent> = {},
): StoreEvent => ({
  what: 'granted',
  accepted: true,
  key: KEY,
  owner,
  generation,
  ttlMs: 100,
  sentAt,
  answeredAt: sentAt + 2,
  ...more,
});
const renewed = (owner: string, sentAt: number, accepted = true): StoreEvent => ({
  what: 'renewed',
  accepted,
  key: KEY,
  owner,
  ttlMs: 100,
  sentAt,
  answeredAt: sentAt + 2,
});
const released = (owner: string, sentAt: number, accepted = true): StoreEvent => ({
  ...renewed(owner, sentAt, accepted),
  what: 'released',
});

describe('the checker of a history', () => {
  it('finds nothing in an orderly one', () => {
    expect(
      breachesOf([
        granted('a', 1, 0),
        granted('a', 1, 1),
        renewed('a', 50),
        released('a', 80),
        released('a', 90, false),
        granted('b', 2, 85),
        renewed('b', 150),
        renewed('a', 160, false),
        granted('c', 3, 251),
        granted('x', 1, 10, { key: 'another' }),
      ]),
    ).toEqual([]);
  });

  it.each([
    [
      'one generation for two owners',
      /^I1: generation 1 /,
      [granted('a', 1, 0), released('a', 5), granted('b', 1, 10)],
    ],
    [
      'a generation that falls',
      /^I1: 1 \(b\) was granted after 2/,
      [granted('a', 2, 0), released('a', 5), granted('b', 1, 10)],
    ],
    ['a generation of one owner that falls', /^I1: 1 \(a\)/, [granted('a', 2, 0), granted('a', 1, 200)]],
    ['two holders', /^exclusion: b /, [granted('a', 1, 0), granted('b', 2, 50)]],
    [
      'two holders after a renewal',
      /^exclusion: b /,
      [granted('a', 1, 0), renewed('a', 80), granted('b', 2, 150)],
    ],
    ['a retry with a generation of its own', /^I6: a /, [granted('a', 1, 0), granted('a', 2, 3)]],
    ['a renewal for a stranger', /^I5: renewed for b, who/, [granted('a', 1, 0), renewed('b', 50)]],
    [
      'a renewal after the next grant',
      /^I5: renewed for a after b/,
      [granted('a', 1, 0), granted('b', 2, 101), renewed('a', 110)],
    ],
    [
      'a release after the next grant',
      /^I5: released for a after b/,
      [granted('a', 1, 0), granted('b', 2, 101), released('a', 110)],
    ],
    [
      'two releases that both held',
      /^I5: released for a after its/,
      [granted('a', 1, 0), released('a', 10), released('a', 20)],
    ],
    [
      'a renewal after the release',
      /^I5: renewed for a after its/,
      [granted('a', 1, 0), released('a', 10), renewed('a', 20)],
    ],
  ])('finds %s', (_, breach, events) => {
    expect(breachesOf(events)).toEqual(expect.arrayContaining([expect.stringMatching(breach)]));
  });

  it('takes nothing for certain that may have been in another order, or have ended', () => {
    expect(
      breachesOf([
        // Sent before the other was answered.
        granted('a', 2, 0, { answeredAt: 50 }),
        released('a', 51),
        granted('b', 1, 10, { ttlMs: 20, answeredAt: 31 }),
        // Granted anew after its end.
        granted('c', 5, 200),
        granted('c', 6, 301),
        // Its owner stopped counting on it when it sent the release, which came too late.
        granted('d', 7, 500),
        released('d', 599, false),
        granted('e', 8, 600),
      ]),
    ).toEqual([]);
  });
});
