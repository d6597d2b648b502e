// Points DATABASE_URL and REDIS_URL at this Jest worker's own database and Redis index.
const worker = process.env.JEST_WORKER_ID ?? '1';

/** @param {string | undefined} url @param {string} pathname */
function withPath(url, pathname) {
  const changed = new URL(/** @type {string} */ (url));
  changed.pathname = pathname;
  return changed.href;
}

process.env.DATABASE_URL = withPath(process.env.TEST_DATABASE_URL, `/fencing_test_${worker}`);
process.env.REDIS_URL = withPath(process.env.TEST_REDIS_URL, `/${worker}`);
