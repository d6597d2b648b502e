import { HeldLease } from '../../libs/fencing/src/core/lease.js';

/** Mistakes that are planted to see whether the checker finds them, and what it must find. */
export const PLANTS = {
  // the fence
  'a guard that does not lock': ['I1', 'I2', 'I3'],
  'a guard that compares nothing': ['I1', 'I2', 'I3'],
  'a guard that is content with a lower fence': ['I1', 'I3'],
  'an activation that does nothing before the first write': ['I2', 'I3'],
  'an activation that does not wait': ['I1', 'I2', 'I3'],
  'an activation that ignores the owner': ['I1', 'I3'],
  'an activation that overwrites a newer one': ['I1', 'I2', 'I3'],
  'no idle limit': ['I7', 'I9'],
  'a receipt that is looked up before it is written': ['I10'],
  'a commit that is believed without an answer': ['I4'],
  'a lost commit that is looked for without waiting': ['I4'],
  // the store
  'a release by key': ['I5'],
  'a renewal takes the key again': ['I5'],
  'acquiring again is not idempotent': ['I6'],
  'a hand-over that passes others over': ['I9'],
  // the keeper
  'no local deadline': ['validity'],
  'validity counts from the answer': ['validity'],
  'late work is let through': ['released'],
} as const;

export type Plant = keyof typeof PLANTS;

interface LeaseInsides {
  deadline: number;
  extend: (this: LeaseInsides, sentAt: number) => void;
  ended: (this: LeaseInsides) => unknown;
}

/** Plants a mistake in the code under test itself. Answers how to take it out again. */
export function plantInKeeper(plant: Plant | undefined): () => void {
  const lease = HeldLease.prototype as unknown as LeaseInsides;
  const original = { extend: lease.extend, ended: lease.ended };
  if (plant === 'no local deadline') {
    lease.extend = function () {
      this.deadline = Infinity;
    };
  }
  if (plant === 'validity counts from the answer') {
    lease.extend = function () {
      const { host } = this as unknown as HeldLease;
      original.extend.call(this, host.clock.now());
    };
  }
  if (plant === 'late work is let through') {
    lease.ended = function () {
      const reason = original.ended.call(this);
      return (this as unknown as HeldLease).state === 'released' ? undefined : reason;
    };
  }
  return () => Object.assign(lease, original);
}
