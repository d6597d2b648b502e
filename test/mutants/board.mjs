// Mechanisms of the board, each taken out. See scripts/mutants.mjs.

const board = 'libs/fencing/src/board/';
const access = `${board}board-access.ts`;
const http = 'test/board.e2e';

/** @param {string} title */
const alone = (title) => ({ test: http, title });
const local = alone('on express answers its own machine only');
const foreign = alone('on express tells no page of another origin');

/** @type {import('../../scripts/mutants.mjs').Mutant[]} */
export default [
  {
    invariant: 'without a guard, only a loopback address gets in',
    file: access,
    from: `if (!LOOPBACK.test(socket?.remoteAddress ?? '')) return false;`,
    to: ``,
    ...local,
  },
  {
    invariant: 'without a guard, what a proxy passed on does not get in',
    file: access,
    from: `PASSED_ON.test(name)`,
    to: `name === ''`,
    ...local,
  },
  {
    invariant: 'without a guard, no name that a stranger points at this machine gets in',
    file: access,
    from: `return LOCAL_HOST.test(one(headers.host));`,
    to: `return true;`,
    ...local,
  },
  {
    invariant: 'what the browser says of the origin counts',
    file: access,
    from: `if (site !== undefined) return site === 'same-origin' || site === 'none';`,
    to: ``,
    ...foreign,
  },
  {
    invariant: 'the origin of a browser that says nothing of it is compared',
    file: access,
    from: `return new URL(one(origin)).host === one(headers.host).toLowerCase();`,
    to: `return true;`,
    ...foreign,
  },
  {
    invariant: 'a form of another page, which can set no header, revokes nothing',
    file: access,
    from: `if (changes && request.headers[BOARD_HEADER] === undefined)`,
    to: `if (changes && request.headers[BOARD_HEADER] === 'x')`,
    ...foreign,
  },
  {
    invariant: 'the guard is asked for every route',
    file: `${board}fencing-board.module.ts`,
    from: `[new BoardAccess(guards.length > 0), ...guards]`,
    to: `[new BoardAccess(guards.length > 0)]`,
    ...alone('on express lets nobody see'),
  },
  {
    invariant: 'no board without a guard in production',
    file: `${board}board-options.ts`,
    from: `guards.length === 0 && process.env.NODE_ENV === 'production'`,
    to: `guards.length < 0`,
    ...alone('does not start without a guard in production'),
  },
  {
    invariant: 'streams end with the application',
    file: `${board}fencing-board.module.ts`,
    from: `this.streams.close();`,
    to: ``,
    ...alone('on express ends its streams'),
  },
  {
    invariant: 'no more than four views a second',
    file: `${board}board-streams.ts`,
    from: `const BATCH_MS = 250;`,
    to: `const BATCH_MS = 20;`,
    ...alone('sends a view at once'),
  },
  {
    invariant: 'nothing piles up for a slow reader',
    file: `${board}board-streams.ts`,
    from: `if (due && !visitor.response.writableNeedDrain) this.send`,
    to: `if (due) this.send`,
    test: 'board-streams',
  },
  {
    invariant: 'views take a twentieth of the process at most',
    file: `${board}board-streams.ts`,
    from: `this.restUntil = now + REST * (now - began);`,
    to: ``,
    test: 'board-streams',
  },
  {
    invariant: 'no more than 32 visitors',
    file: `${board}board-streams.ts`,
    from: `this.visitors.size >= MOST_VISITORS`,
    to: `false`,
    ...alone('no more than 32'),
  },
  {
    invariant: 'what is remembered is bounded',
    file: `${board}board-log.ts`,
    from: `if (list.length > most) list.shift();`,
    to: ``,
    test: 'board-log',
  },
  {
    invariant: 'a refused write is shown beside what caused it',
    file: `${board}board-view.ts`,
    from: `if (revoked) return { generation: current, at: revoked.at, revoked };`,
    to: ``,
    ...alone('names the revocation'),
  },
  {
    invariant: 'keys are put in as text',
    file: `${board}page/script.ts`,
    from: `if (text !== undefined) node.textContent = text;`,
    to: `if (text !== undefined) node.innerHTML = text;`,
    test: 'board-page',
    title: 'hostile key',
  },
  {
    invariant: 'the page has no more than 60 rows',
    file: `${board}board-view.ts`,
    from: `const PAGE = 25;`,
    to: `const PAGE = 100;`,
    test: 'board-page',
    title: '10 000 leases',
  },
  {
    invariant: 'the exercise shows what the fence is for',
    file: 'src/home/exercise-reports.service.ts',
    from: `@FencedWrite() async publish`,
    to: `async publish`,
    test: 'test/home',
    title: 'runs the exercise',
  },
];
