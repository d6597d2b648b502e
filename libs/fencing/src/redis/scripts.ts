/**
 * All Lua of the package. Each script is one atomic step of the lease store's contract (see `core/lease-store.ts`).
 *
 * Per bucket `b` of keys (its hash tag keeps them in one slot of a cluster):
 *   prefix:{b}:lease:<key>     "<owner> <generation>", or "> <waiter>" while a freed key is kept for a woken waiter; expires
 *   prefix:{b}:waiters:<key>   list of the processes that wait for the key, first come first; expires
 *   prefix:{b}:generation      the last generation issued for any key of the bucket
 *   prefix:{b}:wake            channel: "<waiter or -> <reserved ms> <key>"
 *
 * The server's clock in microseconds is below 2^53 until the year 2255, so the doubles of Lua are exact; `%.0f` writes them
 * without an exponent.
 */

/** Issues the next generation of a bucket: max(last issued + 1, clock in µs, floor + 1). Answers an error past 2^53 - 1. */
const ISSUE = `
local function issue(counter, floor)
  local time = redis.call('TIME')
  local last = tonumber(redis.call('GET', counter) or '0') or 0
  local generation = math.max(last + 1, time[1] * 1000000 + time[2], floor + 1)
  if generation > 9007199254740991 then return nil end
  local text = string.format('%.0f', generation)
  redis.call('SET', counter, text)
  return text
end
`;

/** Serves the first process that waits for a freed key and is not `except`: keeps the key for it and wakes it. */
const SERVE_WAITER = `
local function serveWaiter(lease, waiters, channel, except, reservedMs, key)
  local waiter = redis.call('LPOP', waiters)
  if waiter == except then waiter = redis.call('LPOP', waiters) end
  if not waiter then return false end
  redis.call('SET', lease, '> ' .. waiter, 'PX', reservedMs)
  redis.call('PUBLISH', channel, waiter .. ' ' .. reservedMs .. ' ' .. key)
  return true
end
local function enqueue(waiters, waiter, forMs)
  if not redis.call('LPOS', waiters, waiter) then redis.call('RPUSH', waiters, waiter) end
  if redis.call('PTTL', waiters) < tonumber(forMs) then redis.call('PEXPIRE', waiters, forMs) end
end
`;

/**
 * KEYS lease, generation, waiters. ARGV owner, ttlMs, floor, waiter ('' = will not wait), forMs.
 * Answers {1, generation} or {0, remaining ms} (-1: the key has no expiry, so something else made it).
 */
export const ACQUIRE = `${ISSUE}${SERVE_WAITER}
local held = redis.call('GET', KEYS[1])
local owner, ttl, floor, waiter = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
if held then
  local holder, generation = string.match(held, '^(%S+) (%S+)$')
  if holder == owner then
    if tonumber(generation) > floor then
      redis.call('PEXPIRE', KEYS[1], ttl)
      return {1, generation}
    end
  elseif not (waiter ~= '' and held == '> ' .. waiter) then
    if waiter ~= '' then enqueue(KEYS[3], waiter, ARGV[5]) end
    return {0, redis.call('PTTL', KEYS[1])}
  end
end
local generation = issue(KEYS[2], floor)
if not generation then return redis.error_reply('FENCING_EXHAUSTED no generation is left') end
redis.call('SET', KEYS[1], owner .. ' ' .. generation, 'PX', ttl)
if waiter ~= '' then redis.call('LREM', KEYS[3], 0, waiter) end
return {1, generation}
`;

/** KEYS leases. ARGV owner, ttlMs for each. Answers 1 or 0 for each. Never creates a key. */
export const RENEW = `
local answers = {}
for i, lease in ipairs(KEYS) do
  local held = redis.call('GET', lease)
  local owner = ARGV[2 * i - 1]
  if held and string.sub(held, 1, #owner + 1) == owner .. ' ' then
    answers[i] = redis.call('PEXPIRE', lease, ARGV[2 * i])
  else
    answers[i] = 0
  end
end
return answers
`;

/**
 * KEYS lease, generation, waiters. ARGV owner, holdMs (0 = free it), channel, key, reservedMs, then of the successor:
 * owner ('' = none), ttlMs, waiter, forMs.
 * Answers {0} not the owner, {1} freed or kept, {2, generation} handed over, {3, reservedMs} another process goes first.
 */
export const RELEASE = `${ISSUE}${SERVE_WAITER}
local held = redis.call('GET', KEYS[1])
local owner, holdMs, channel, key, reservedMs = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
if not held or string.sub(held, 1, #owner + 1) ~= owner .. ' ' then return {0} end
if holdMs > 0 then
  redis.call('PEXPIRE', KEYS[1], holdMs)
  if redis.call('EXISTS', KEYS[3]) == 1 then redis.call('PUBLISH', channel, '- ' .. ARGV[2] .. ' ' .. key) end
  return {1}
end
local successor = ARGV[6]
if serveWaiter(KEYS[1], KEYS[3], channel, ARGV[8], reservedMs, key) then
  if successor == '' then return {1} end
  enqueue(KEYS[3], ARGV[8], ARGV[9])
  return {3, reservedMs}
end
if successor ~= '' then
  local generation = issue(KEYS[2], 0)
  if generation then
    redis.call('SET', KEYS[1], successor .. ' ' .. generation, 'PX', ARGV[7])
    return {2, generation}
  end
end
redis.call('DEL', KEYS[1])
return {1}
`;

/** KEYS lease, waiters. ARGV waiter, channel, key, reservedMs. The waiter gives up; what was kept for it goes to the next. */
export const WITHDRAW = `${SERVE_WAITER}
redis.call('LREM', KEYS[2], 0, ARGV[1])
if redis.call('GET', KEYS[1]) == '> ' .. ARGV[1] then
  if not serveWaiter(KEYS[1], KEYS[2], ARGV[2], ARGV[1], ARGV[4], ARGV[3]) then redis.call('DEL', KEYS[1]) end
end
return 1
`;

/** KEYS lease. Answers {value, remaining ms} or nil. */
export const INSPECT = `
local held = redis.call('GET', KEYS[1])
if not held then return nil end
return {held, redis.call('PTTL', KEYS[1])}
`;
