// Loaded by Node itself in Jest's worker processes: a worker ends when Jest has ended, however that happened. It looks for
// that rather than listen for 'disconnect', as such a listener would keep the worker alive.
if (process.env.JEST_WORKER_ID) {
  const jest = process.ppid;
  setInterval(() => {
    if (process.ppid !== jest) process.exit(1);
  }, 500).unref();
}
