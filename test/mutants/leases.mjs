// Mechanisms of the lease store in Redis, the keeper, renewals and leases, each taken out. See scripts/mutants.mjs.

const scripts = 'libs/fencing/src/redis/scripts.ts';
const redisStore = 'libs/fencing/src/redis/redis-lease-store.ts';
const keeper = 'libs/fencing/src/core/lease-keeper.ts';
const taker = 'libs/fencing/src/core/lease-taker.ts';
const activation = 'libs/fencing/src/core/activation.ts';
const handOver = 'libs/fencing/src/core/hand-over.ts';
const acquirer = 'libs/fencing/src/core/acquirer.ts';
const storeClient = 'libs/fencing/src/core/store-client.ts';
const sender = 'libs/fencing/src/redis/step-sender.ts';
const renewals = 'libs/fencing/src/core/renewals.ts';
const lease = 'libs/fencing/src/core/lease.ts';

/** @param {string} title */
const redis = (title) => ({ test: 'redis-lease-store', title });
/** @param {string} title */
const faults = (title) => ({ test: 'lease-keeper.faults', title });
/** @param {string} title */
const waiting = (title) => ({ test: 'lease-keeper.waiting', title });

/** @type {import('../../scripts/mutants.mjs').Mutant[]} */
export default [
  // -------------------------------------------------------------------------------------------- one atomic step each, in Lua
  {
    invariant: 'I5: release compares the owner',
    file: scripts,
    from: `if not holds(held, owner) then return 0 end
  local waited`,
    to: `if not held then return 0 end
  local waited`,
    ...redis('I5: release'),
  },
  {
    invariant: 'I5: renewal compares the owner',
    file: scripts,
    from: `if type(held) == 'string' and holds(held, ARGV[a + i]) then`,
    to: `if type(held) == 'string' then`,
    ...redis('I5: renewal'),
  },
  {
    invariant: 'a renewal never creates a key (field report 7)',
    file: scripts,
    from: `answers[i + 1] = 0`,
    to: `redis.call('SET', KEYS[k + i], ARGV[a + i] .. ' 1', 'PX', ttl) answers[i + 1] = 1`,
    ...redis('never creates a key'),
  },
  {
    invariant: 'I6: an acquisition that is sent again is no second one',
    file: scripts,
    from: `if not holds(held, owner) then
      local remaining`,
    to: `if true then
      local remaining`,
    ...redis('I6: answers a repeated acquisition'),
  },
  {
    invariant: 'I6: a late duplicate does not move a lease that is in use',
    file: scripts,
    from: `if tonumber(generation) > tonumber(floor) then`,
    to: `if tonumber(generation) > tonumber(floor) and tonumber(floor) > 0 then`,
    ...redis('issues above the floor'),
  },
  {
    invariant: 'generations are above the last one issued',
    file: scripts,
    from: `math.max(last + 1, `,
    to: `math.max(`,
    ...redis('counts on from a counter'),
  },
  {
    invariant: 'I7: the clock carries generations over the loss of the counter',
    file: scripts,
    from: `math.max(last + 1, clock(), floor + 1)`,
    to: `math.max(last + 1, floor + 1)`,
    ...redis('after the counter was lost'),
  },
  {
    invariant: 'generations are above the floor',
    file: scripts,
    from: `clock(), floor + 1)`,
    to: `clock())`,
    ...redis('issues above the floor'),
  },
  {
    invariant: 'generations end at 2^53 - 1 with an error, never with a wrap',
    file: scripts,
    from: `if generation > 9007199254740991 then`,
    to: `if generation > 1e300 then`,
    ...redis('reaches the largest safe integer'),
  },
  {
    invariant: 'generations are written as digits, exactly',
    file: scripts,
    from: `format('%d', generation)`,
    to: `tostring(generation)`,
    ...redis('clock in microseconds'),
  },
  {
    invariant: 'every grant expires (field report 39)',
    file: scripts,
    from: `attempt('SET', lease, owner .. ' ' .. text .. mark, 'PX', ttl)`,
    to: `attempt('SET', lease, owner .. ' ' .. text .. mark)`,
    ...redis('without expiry'),
  },
  {
    invariant: 'I11: the list of waiters expires',
    file: scripts,
    from: `call('PEXPIRE', waiters, forMs)`,
    to: `call('PTTL', waiters)`,
    ...redis('without expiry'),
  },
  {
    invariant: 'I9: a hand-over is refused in favour of another process',
    file: scripts,
    from: `if mark ~= '' and mayOvertake == '0' then`,
    to: `if successor == '' then`,
    ...redis('refuses the hand-over'),
  },
  {
    invariant: 'I9: what was kept for a waiter that withdraws goes to the next',
    file: scripts,
    from: `== '> ' .. waiter and not serveWaiter(lease, counter, waiters) then`,
    to: `== '> ' .. waiter then`,
    ...redis('passes what was kept'),
  },
  {
    invariant: 'a freed key is kept for the one that was woken',
    file: scripts,
    from: `if attempt('SET', lease, '> ' .. waiter, 'PX', RESERVED_MS).err then call('DEL', lease) end`,
    to: `call('DEL', lease)`,
    ...redis('serves waiting processes first come'),
  },
  {
    invariant: 'I9: a process that waits leaves its mark on the lease',
    file: scripts,
    from: `if remaining > 0 and string.find(`,
    to: `if remaining < 0 and string.find(`,
    ...redis('serves waiting processes first come'),
  },
  {
    invariant: 'I9: the mark goes on to whom a freed key was kept for',
    file: scripts,
    from: `if call('EXISTS', waiters) == 1 then mark = ' w' end`,
    to: ``,
    ...redis('serves waiting processes first come'),
  },
  {
    invariant: 'I9: the mark goes on with a hand-over inside a process',
    file: scripts,
    from: `grant(lease, counter, successor, ttl, 0, mark)`,
    to: `grant(lease, counter, successor, ttl, 0, '')`,
    ...redis('is not forgotten by hand-overs'),
  },
  {
    invariant: 'a process that got its key leaves the line, however the key became free',
    file: scripts,
    from: `elseif held or inLine == '1' then`,
    to: `elseif held then`,
    ...redis('leaves the line'),
  },
  {
    invariant: 'a process that may be in line says so',
    file: redisStore,
    from: `if (place !== undefined) this.inLine.add(place);`,
    to: ``,
    ...redis('leaves the line'),
  },
  {
    invariant: 'waiters are told whose turn it is',
    file: scripts,
    from: `wake(lease, counter, waiter, RESERVED_MS)`,
    to: ``,
    ...redis('wakes a waiting process when the key'),
  },
  {
    invariant: 'a step that fails does not fail those that share its request',
    file: scripts,
    from: `done, outcome, value = pcall(steps[name], KEYS[k]`,
    to: `done, outcome, value = true, steps[name](KEYS[k]`,
    ...redis('fails a step alone'),
  },
  // ------------------------------------------------------------------------------------------------------- the Redis store
  {
    invariant: 'a server that forgot its scripts is given them again (field report 33)',
    file: sender,
    from: `startsWith('NOSCRIPT')`,
    to: `startsWith('NEVER')`,
    ...redis('has forgotten its scripts'),
  },
  {
    invariant: 'keys of a bucket share a slot',
    file: redisStore,
    from: 'waiters: `${name}:waiters:`',
    to: 'waiters: `${options.prefix}:waiters:`',
    ...redis('one slot of a cluster'),
  },
  {
    invariant: 'a full Redis is not tried again as if it were busy (field report 17)',
    file: redisStore,
    from: `retryable: !answered || PASSING.test(message)`,
    to: `retryable: true`,
    ...redis('at its memory limit'),
  },
  {
    invariant: 'eviction is warned of (field report 17)',
    file: redisStore,
    from: `policy === 'noeviction'`,
    to: `policy !== 'noeviction'`,
    ...redis('warns at boot'),
  },
  {
    invariant: 'a demoted master is left (field report 33)',
    file: redisStore,
    from: `if (DEMOTED.test(message)) this.leaveDemotedNode();`,
    to: ``,
    ...redis('is left'),
  },
  // --------------------------------------------------------------------------------------------------- leases and renewals
  {
    invariant: 'the deadline is looked at by the clock, not by a timer (field report 3b)',
    file: lease,
    from: `if (!this.hasEnded && this.host.clock.now() >= this.deadline) this.lose('expired');`,
    to: ``,
    test: 'core/lease.spec',
  },
  {
    invariant: 'validity has a drift margin',
    file: lease,
    from: `this.options.ttlMs * 0.99 - 2`,
    to: `this.options.ttlMs`,
    test: 'core/lease.spec',
  },
  {
    invariant: "onUncertain 'stop' aborts at the first doubt",
    file: lease,
    from: `if (this.options.onUncertain === 'stop') {`,
    to: `if (this.options.ttlMs < 0) {`,
    test: 'core/lease.spec',
  },
  {
    invariant: 'a late confirmation revives nothing',
    file: lease,
    from: `if (this.ended()) return;
    const { events, clock } = this.host;
    if (events.hears('lease.renewed'))`,
    to: `const { events, clock } = this.host;
    if (events.hears('lease.renewed'))`,
    test: 'core/lease.spec',
  },
  {
    invariant: 'I8: the local deadline ends a lease although the store is silent',
    file: renewals,
    from: `at >= lease.validUntil ? Math.ceil(lease.validUntil) : Math.floor(at / grid) * grid`,
    to: `Math.floor(at / grid) * grid`,
    test: 'core/renewals',
    title: 'lost at its deadline',
  },
  {
    invariant: 'a failed renewal does not end renewing (field report 23)',
    file: renewals,
    from: `this.schedule(lease, sentAt + lease.options.ttlMs / 6);`,
    to: ``,
    test: 'core/renewals',
  },
  {
    invariant: 'validity counts from before the request was sent',
    file: renewals,
    from: `lease.confirm(sentAt);`,
    to: `lease.confirm(this.clock.now());`,
    test: 'core/renewals',
  },
  {
    invariant: '"not the owner" is final',
    file: renewals,
    from: `lease.lose('superseded');`,
    to: `lease.doubt();`,
    test: 'core/renewals',
  },
  {
    invariant: 'I11: leases that are due together share a request',
    file: renewals,
    from: `const LARGEST_BATCH = 250;`,
    to: `const LARGEST_BATCH = 1;`,
    test: 'core/renewals',
  },
  {
    invariant: 'a lease that ended is not renewed, nor scheduled again',
    file: renewals,
    from: `.filter((lease) => !lease.ended());`,
    to: `;`,
    test: 'core/renewals',
    title: 'ended between two batches',
  },
  {
    invariant: 'a listener that throws is contained (field report 22)',
    file: 'libs/fencing/src/core/signal.ts',
    from: `} catch (error) { report(error); }`,
    to: `} catch (error) { throw error; }`,
    test: 'core/signal',
    title: 'contains a listener that throws',
  },
  // ------------------------------------------------------------------------------------------------------------ the keeper
  {
    invariant: 'the owner is new for each grant (field report 5)',
    file: taker,
    from: `key, owner: randomUUID(), options`,
    to: `key, owner: this.acquirer.waiterId, options`,
    test: 'lease-keeper.spec',
    title: 'has an owner of its own',
  },
  {
    invariant: 'a second try for a grant has an owner of its own',
    file: taker,
    from: `call.owner = randomUUID();`,
    to: ``,
    ...faults('begins again with a new owner'),
  },
  {
    invariant: 'several keys are taken in one order (no deadlock)',
    file: taker,
    from: `[...new Set(keys)].sort()`,
    to: `[...new Set(keys)]`,
    test: 'lease-keeper.spec',
    title: 'sorted order',
  },
  {
    invariant: 'a grant is activated before its body runs (I2, I3)',
    file: activation,
    from: `return this.fence !== undefined && options.activate === 'start';`,
    to: `return this.fence !== undefined && options.activate !== 'start';`,
    ...faults('is activated before its body begins'),
  },
  {
    invariant: 'I7: a store that lost its counter heals through the floor',
    file: activation,
    from: `this.acquireAbove(lease, answer.generation)`,
    to: `this.acquireAbove(lease, 0)`,
    ...faults('heals a store'),
  },
  {
    invariant: 'a body never begins with less than half of the ttl (field report 38)',
    file: taker,
    from: `(hasEnoughLeft(lease) || (await renewToStart(lease)))`,
    to: `true`,
    ...faults('comes too late|slow activation|lost during the activation'),
  },
  {
    invariant: 'a grant that comes late is renewed first',
    file: taker,
    from: `if (!lease.ended()) await lease.host.confirm(lease).catch(() => undefined);`,
    to: ``,
    ...faults('is renewed first'),
  },
  {
    invariant: 'I8: a grant that comes after its caller gave up is released',
    file: acquirer,
    from: `({ granted }) => granted && release(),`,
    to: `() => undefined,`,
    ...faults('gives back a grant'),
  },
  {
    invariant: 'I8: what an unanswered acquisition may have got is released',
    file: acquirer,
    from: `if (open.length > 0) this.giveBack(call, open);`,
    to: ``,
    ...faults('frees what it may have been granted'),
  },
  {
    invariant: 'I8: no unanswered try of an acquisition is forgotten',
    file: acquirer,
    from: `open.push(asked);`,
    to: ``,
    ...faults('between two tries|after the second one'),
  },
  {
    invariant: 'I6: a release whose reply was lost is sent again',
    file: storeClient,
    from: `if (answer) return;`,
    to: `if (attempt >= 0) return;`,
    ...faults('was lost again'),
  },
  {
    invariant: 'releasing again ends with the ttl',
    file: storeClient,
    from: `attempt = 0; this.clock.now() < until; attempt++`,
    to: `attempt = 0; ; attempt++`,
    ...faults('stops sending a release'),
  },
  {
    invariant: 'a hand-over takes one request',
    file: handOver,
    from: `next && holdMs <= 0 ?`,
    to: `next && holdMs < -1e12 ?`,
    ...waiting('cost one request each'),
  },
  {
    invariant: 'I9: a waiter looks again although it heard nothing',
    file: acquirer,
    from: `const LONGEST_PAUSE_MS = 2_000;`,
    to: `const LONGEST_PAUSE_MS = 2_000_000;`,
    ...waiting('try again every two seconds'),
  },
  {
    invariant: 'I9: a watch that never gets live keeps nobody from the key',
    file: acquirer,
    from: `const left = until - this.clock.now(); return pause.wait(`,
    to: `if (watch?.live) return watch.live; const left = until - this.clock.now(); return pause.wait(`,
    ...waiting('without any hint'),
  },
  {
    invariant: 'I8: a hand-over to a waiter that gave up is taken back, also where its answer was lost',
    file: handOver,
    from: `if (grant || !answer) this`,
    to: `if (grant) this`,
    ...waiting('leave nothing behind'),
  },
  {
    invariant: 'a waiter that gave up during the hand-over is skipped',
    file: handOver,
    from: `this.passOn(waiter.key, { sentAt, waitMs });`,
    to: ``,
    ...waiting('are skipped by the hand-over'),
  },
  {
    invariant: 'a place at the store that nobody uses is given up',
    file: acquirer,
    from: `registered ||= waiter !== undefined; const pauseMs`,
    to: `const pauseMs`,
    ...waiting('whether the store has noted them'),
  },
  {
    invariant: 'a caller that aborts does not wait for a silent store',
    file: acquirer,
    from: `this.client.ask(asked, until), call.signal,`,
    to: `this.client.ask(asked, until), undefined,`,
    ...waiting('while the store is silent'),
  },
  {
    invariant: 'a stopping keeper takes no new leases',
    file: acquirer,
    from: `this.stopping = true; for`,
    to: `for`,
    test: 'lease-keeper.spec',
    title: 'takes no new ones',
  },
  {
    invariant: 'a stopping keeper ends what outlives the drain',
    file: keeper,
    from: `for (const lease of cut) lease.lose('drained');`,
    to: ``,
    test: 'lease-keeper.spec',
    title: 'after drainMs',
  },
  {
    invariant: 'holdAtLeastMs keeps the key',
    file: handOver,
    from: `options.holdAtLeastMs - (now - lease.grantedAt)`,
    to: `0`,
    test: 'lease-keeper.spec',
    title: 'holdAtLeastMs keeps',
  },
  // ------------------------------------------------------------------------------------- the same on real servers, end to end
  {
    invariant: 'I1 to I3: the guard refuses what is not the activated grant',
    file: 'libs/fencing/src/typeorm/sql.ts',
    from: `WHERE f.key = p_key AND f.generation = p_generation AND f.owner = p_owner FOR SHARE; IF NOT FOUND THEN`,
    to: `WHERE f.key = p_key FOR SHARE; IF NOT FOUND THEN`,
    test: 'faults-lost-data',
    title: 'I1 to I3',
  },
  {
    invariant: 'I7: on real servers, the next holder is above what the database has seen',
    file: activation,
    from: `this.acquireAbove(lease, answer.generation)`,
    to: `this.acquireAbove(lease, 0)`,
    test: 'faults-lost-data',
    title: 'FLUSHALL',
  },
  // ------------------------------------------------------------------------------------------------------------ the events
  {
    invariant: 'events: nothing is computed while nobody listens',
    file: 'libs/fencing/src/core/events.ts',
    from: `return this.listeners[name].size > 0 || CHANNELS[name].hasSubscribers;`,
    to: `return true;`,
    test: 'core/events',
    title: 'computes nothing',
  },
  {
    invariant: 'events: a grant that never reached a method is not told as a lease',
    file: keeper,
    from: `if (lease.begun) this.tellEnd(lease);`,
    to: `this.tellEnd(lease);`,
    test: 'core/events',
    title: 'never reached a method',
  },
  {
    invariant: 'events: a caller tells once that its key is taken',
    file: acquirer,
    from: `if (call.contended) return;`,
    to: ``,
    test: 'core/events',
    title: 'is told once by a caller',
  },
];
