// Fails a file that leaves a socket, server, timer or process behind. --detectOpenHandles does not see client sockets
// (pg, ioredis); this does.
const kinds = /^(TCPSocketWrap|TCPServerWrap|PipeWrap|Timeout|ProcessWrap)$/;
const open = () => process.getActiveResourcesInfo().filter((kind) => kinds.test(kind));

/** What is open now beyond what was open before. @param {string[]} before */
function extra(before) {
  const left = open();
  for (const kind of before) {
    const index = left.indexOf(kind);
    if (index >= 0) left.splice(index, 1);
  }
  return left;
}

/** @type {string[]} */
let before = [];
beforeAll(() => {
  // Node opens its output when it is first used; where that is a pipe, a warning in a test would look like a leak.
  for (const output of [process.stdout, process.stderr]) output.write('');
  before = open();
});

afterAll(async () => {
  // A client that was just made takes a few turns of the event loop to show, and a closed one to go.
  let left;
  const end = Date.now() + 3000;
  do {
    await new Promise((resolve) => setTimeout(resolve, 20));
    left = extra(before);
  } while (left.length > 0 && Date.now() < end);
  if (left.length > 0) throw new Error(`still open after the last test of this file: ${left.join(', ')}`);
});
