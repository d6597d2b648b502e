// Mechanisms of the quorum of Redis nodes, each taken out. See scripts/mutants.mjs.

const claim = 'libs/fencing/src/redis/quorum/quorum-claim.ts';
const store = 'libs/fencing/src/redis/quorum/quorum-lease-store.ts';
const poll = 'libs/fencing/src/redis/quorum/quorum-poll.ts';
const check = 'libs/fencing/src/redis/quorum/quorum-check.ts';
const hints = 'libs/fencing/src/redis/quorum/quorum-hints.ts';
const acks = 'libs/fencing/src/redis/replica-acks.ts';
const redis = 'libs/fencing/src/redis/redis-lease-store.ts';

/** @param {string} title */
const own = (title) => ({ test: 'quorum/quorum-lease-store.spec', title });
/** @param {string} title */
const replicas = (title) => ({ test: 'redis-replicas', title });

/** @type {import('../../scripts/mutants.mjs').Mutant[]} */
export default [
  {
    invariant: 'two quorums share a node: a majority, not half (quorum)',
    file: poll,
    from: 'Math.floor(nodes / 2) + 1',
    to: 'Math.floor(nodes / 2)',
    ...own('(I1: generations increase|is busy where another)'),
  },
  {
    invariant: 'I1: a grant is given when a majority has the same generation, not just any (quorum)',
    file: claim,
    from: 'issued.find((one) => countOf(one, issued) >= this.majority)',
    to: 'issued.at(-1)',
    ...own('(gives a grant only|one node whose counter)'),
  },
  {
    invariant: 'a node whose counter is far ahead does not drag the others along (quorum)',
    file: claim,
    from: 'issued[this.majority - 1]! + Math.ceil(lead)',
    to: 'issued.at(-1)! + Math.ceil(lead)',
    ...own('one node whose counter'),
  },
  {
    invariant: 'partial grants are undone (quorum)',
    file: claim,
    from: 'await this.undo(votes); if (isTie',
    to: 'if (isTie',
    ...own('a tie settles'),
  },
  {
    invariant: 'late partial grants are undone (quorum)',
    file: claim,
    from: 'if (this.won !== undefined) this.tidy(at, vote);',
    to: '',
    ...own('takes a partial grant back also where'),
  },
  {
    invariant: 'a late answer takes nothing from a later request of the same owner (quorum)',
    file: store,
    from: 'if (before) before.superseded = true;',
    to: '',
    ...own('a late answer to a request'),
  },
  {
    invariant: 'a tie is tried again, with a random pause (quorum)',
    file: claim,
    from: 'if (isTie && clock.now() < until && !closing.aborted) {',
    to: 'if (false as boolean) {',
    ...own('a tie settles'),
  },
  {
    invariant: 'I6: requests of one owner take turns (quorum)',
    file: store,
    from: 'before ? before.then(work) : work()',
    to: 'work()',
    ...own('I6: requests of one owner'),
  },
  {
    invariant: 'a renewal needs a majority (quorum)',
    file: store,
    from: 'return requests.map((_, at) => poll.count((answers) => answers[at]!) >= this.majority);',
    to: 'return requests.map((_, at) => poll.count((answers) => answers[at]!) >= 1);',
    ...own('renews what a majority'),
  },
  {
    invariant: 'no answer of a majority is unavailable, not lost (quorum)',
    file: store,
    from: 'if (poll.values.length < this.majority) throw tooFewAnswers(nodes, poll.votes); // A majority',
    to: '// A majority',
    ...own('renews what a majority'),
  },
  {
    invariant: 'a silent node is not waited for once that is known (quorum)',
    file: poll,
    from: 'this.votes[at] || node.isSilent',
    to: 'this.votes[at]',
    ...own('does not wait for a silent node'),
  },
  {
    invariant: 'I11: requests for a silent node do not pile up (quorum)',
    file: poll,
    from: 'if (this.open >= MOST_OPEN && this.isSilent) return Promise.reject(NOT_SENT);',
    to: '',
    ...own('keeps no more than a few requests'),
  },
  {
    invariant: 'two names of one server are one node (quorum)',
    file: check,
    from: 'if (first !== undefined) throw',
    to: 'if (false as boolean) throw',
    test: 'quorum-faults',
    title: 'refuses at boot two clients',
  },
  {
    invariant: 'a grant that too few replicas confirm is given back',
    file: redis,
    from: 'request.floor === 0 && this.releaseNow(request)',
    to: 'request.floor < 0',
    ...replicas('gives a grant back'),
  },
  {
    invariant: 'what its owner held already is not given back',
    file: redis,
    from: 'request.floor === 0 && this.releaseNow(request)',
    to: 'request.floor >= 0 && this.releaseNow(request)',
    ...replicas('does not give back'),
  },
  {
    invariant: 'too few confirmations are a failure',
    file: acks,
    from: 'if (Number(acks) >= min) return;',
    to: 'if (Number(acks) >= 0) return;',
    ...replicas('(gives a grant back|hands nothing over)'),
  },
  {
    invariant:
      'a majority of hints is passed on, also after one of them was passed on alone (quorum; found by the contention test)',
    file: hints,
    from: 'if (round.from.size !== majority) return;',
    to: 'if (round.from.size < majority || round.told) return;',
    test: 'quorum/quorum-hints.spec',
    title: 'a majority that follows',
  },
];
