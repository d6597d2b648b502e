/** A number, unless the compiler sees that it is negative; its message then has the words of the name below. */
export type NotNegative<Ms extends number> = Ms extends number
  ? `${Ms}` extends `-${string}`
    ? number & { 'a time in ms is not negative': never }
    : Ms
  : never;

/** The times of `LeaseOptions`, where a negative literal does not compile; other values are checked when they are there. */
export interface LeaseTimes<Ttl extends number, Wait extends number, Hold extends number> {
  ttlMs?: NotNegative<Ttl>;
  waitMs?: NotNegative<Wait>;
  holdAtLeastMs?: NotNegative<Hold>;
}
