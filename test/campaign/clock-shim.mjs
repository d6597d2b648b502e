// Preloaded into the workers: the wall clock can be set to another time, as an administrator or NTP does.
const shift = { ms: 0 };
/** @type {any} */ (globalThis)[Symbol.for('campaign/clock')] = shift;

const RealDate = Date;
const realNow = Date.now.bind(Date);

/** @type {any} */ (globalThis).Date = new Proxy(RealDate, {
  construct(target, args, newTarget) {
    return Reflect.construct(target, args.length === 0 ? [realNow() + shift.ms] : args, newTarget);
  },
  apply: () => new RealDate(realNow() + shift.ms).toString(),
});
RealDate.now = () => realNow() + shift.ms;
